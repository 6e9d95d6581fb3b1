"""The phases and the table of moves."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transitions import Machine, MachineError

from vllm_startup import Phase
from vllm_startup._phases import TRANSITIONS, End, diagram


def test_the_phases_in_their_order() -> None:
    assert list(Phase) == [
        "launching",
        "configuring",
        "initializing",
        "loading_weights",
        "compiling",
        "allocating_kv_cache",
        "warming_up",
        "starting_server",
        "ready",
    ]
    assert [phase.order for phase in Phase] == list(range(9))


def test_every_phase_is_documented() -> None:
    import ast
    import inspect

    from vllm_startup import _phases

    (kind,) = (
        n
        for n in ast.parse(inspect.getsource(_phases)).body
        if isinstance(n, ast.ClassDef) and n.name == "Phase"
    )
    members = [n for n in kind.body if isinstance(n, ast.Assign)]
    texts = [n for n in kind.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    assert len(texts) == len(members) + 1


def machine(initial: Phase) -> Any:
    moves = [list(transition) for transition in TRANSITIONS]
    return Machine(states=[*Phase, *End], transitions=moves, initial=initial, auto_transitions=False)


def trigger_to(destination: Phase | End) -> str:
    return next(trigger for trigger, _, to in TRANSITIONS if to is destination)


@pytest.mark.parametrize("source", Phase)
@pytest.mark.parametrize("destination", [phase for phase in Phase if phase is not Phase.LAUNCHING])
def test_moves_go_forward_and_may_skip(source: Phase, destination: Phase) -> None:
    model = machine(source)
    move = getattr(model, trigger_to(destination))
    if destination.order > source.order:
        move()
        assert model.state is destination
    else:
        with pytest.raises(MachineError):
            move()


@pytest.mark.parametrize("source", Phase)
def test_every_phase_but_ready_may_fail(source: Phase) -> None:
    model = machine(source)
    fail = getattr(model, trigger_to(End.FAILED))
    if source is Phase.READY:
        with pytest.raises(MachineError):
            fail()
    else:
        fail()
        assert model.state is End.FAILED


def test_failed_is_final() -> None:
    assert {type(source) for _, sources, _ in TRANSITIONS for source in sources} == {Phase}


def test_the_diagram_is_drawn_from_the_table() -> None:
    drawn = diagram()
    arrows = re.findall(r"^    (\S+) --> (\S+)$", drawn, flags=re.MULTILINE)
    steps = [(str(a), str(b)) for a, b in zip(list(Phase), list(Phase)[1:], strict=False)]
    assert set(arrows) == {
        ("[*]", "launching"),
        ("ready", "[*]"),
        ("failed", "[*]"),
        *steps,
        *((str(phase), "failed") for phase in Phase if phase is not Phase.READY),
    }
    assert drawn.startswith("stateDiagram-v2\n")
