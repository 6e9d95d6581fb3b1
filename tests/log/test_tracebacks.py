from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_startup._log.exceptions import RaisedChain, RaisedError, carried, parse_exception
from vllm_startup._log.lines import LineReader
from vllm_startup._log.tracebacks import Tracebacks

HEADER = "Traceback (most recent call last):"
FRAME = ['  File "/a/b.py", line 3, in run', "    work()", "    ^^^^^^"]


def chains(*lines: str) -> list[RaisedChain]:
    tracebacks, reader = Tracebacks(), LineReader()
    for text in lines:
        for line in reader.read(text):
            tracebacks.feed(line)
    tracebacks.finish()
    return tracebacks.take()


def said(*lines: str) -> list[list[tuple[str, str, str]]]:
    return [[(error.link, error.type, error.text) for error in chain.links] for chain in chains(*lines)]


def record(process: str, *lines: str, level: str = "ERROR", source: str = "core.py:1510") -> list[str]:
    return [f"({process}) {level} 11-30 14:29:21 [{source}] {line}" for line in lines]


def test_a_plain_traceback() -> None:
    (chain,) = chains(HEADER, *FRAME, "ValueError: bad")
    (error,) = chain.links
    assert (error.type, error.text, error.location, error.frames) == (
        "ValueError",
        "bad",
        ("/a/b.py", "run"),
        1,
    )
    assert (error.first_line, error.line, error.last_line) == (1, 5, 5)
    assert error.functions == ("run",)


def test_an_exception_without_text() -> None:
    assert said(HEADER, *FRAME, "AssertionError") == [[("first", "AssertionError", "")]]


def test_a_record_s_traceback_names_process_level_and_headline() -> None:
    (chain,) = chains(
        *record("EngineCore pid=7", "EngineCore failed to start.", HEADER, *FRAME, "KeyError: 'x'")
    )
    assert (chain.process, chain.pid, chain.level) == ("EngineCore", 7, "ERROR")
    assert chain.headline == "EngineCore failed to start."


@pytest.mark.parametrize(
    ("connector", "link"),
    [
        ("During handling of the above exception, another exception occurred:", "context"),
        ("The above exception was the direct cause of the following exception:", "cause"),
    ],
)
def test_a_chain(connector: str, link: str) -> None:
    assert said(HEADER, *FRAME, "KeyError: 'x'", "", connector, "", HEADER, *FRAME, "OSError: y") == [
        [("first", "KeyError", "'x'"), (link, "OSError", "y")]
    ]


def test_a_message_of_several_lines() -> None:
    assert said(
        HEADER,
        *FRAME,
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, no such thing",
        "",
        "Upgrade it.",
        "    For further information visit https://errors.pydantic.dev/2.11/v/value_error",
    ) == [
        [
            (
                "first",
                "pydantic_core._pydantic_core.ValidationError",
                "1 validation error for ModelConfig\n  Value error, no such thing\n\nUpgrade it.\n"
                "    For further information visit https://errors.pydantic.dev/2.11/v/value_error",
            )
        ]
    ]


def test_two_tracebacks_one_after_the_other_are_no_chain() -> None:
    assert said(HEADER, *FRAME, "ValueError: a", HEADER, *FRAME, "RuntimeError: b") == [
        [("first", "ValueError", "a")],
        [("first", "RuntimeError", "b")],
    ]


def test_processes_that_print_at_once_are_kept_apart() -> None:
    one = record("Worker_TP0 pid=1", HEADER, *FRAME, "ValueError: one")
    two = record("Worker_TP1 pid=2", HEADER, *FRAME, "ValueError: two")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    assert {chain.process: chain.links[0].text for chain in chains(*mixed)} == {
        "Worker_TP0": "one",
        "Worker_TP1": "two",
    }


def test_a_record_inside_a_bare_traceback_does_not_end_it() -> None:
    (info,) = record("EngineCore pid=7", "Loading weights took 1.0 seconds", level="INFO")
    assert said(HEADER, FRAME[0], info, FRAME[1], info, "ValueError: bad") == [
        [("first", "ValueError", "bad")]
    ]


def test_bare_tracebacks_mixed_line_by_line_give_both_exceptions() -> None:
    assert said(
        HEADER, HEADER, FRAME[0], FRAME[0], FRAME[1], FRAME[1], "ValueError: a", "RuntimeError: b"
    ) == [
        [("first", "ValueError", "a")],
        [("first", "RuntimeError", "b")],
    ]


def test_an_excerpt_that_begins_in_the_middle() -> None:
    assert said("    sys.exit(main())", *FRAME, "ValueError: bad") == [[("first", "ValueError", "bad")]]


def test_an_excerpt_that_is_indented() -> None:
    lines = [HEADER, *FRAME, "ValueError: bad"]
    assert said(*("    " + line for line in lines)) == [[("first", "ValueError", "bad")]]


def test_an_exception_group() -> None:
    (chain,) = chains(
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/a/b.py", line 3, in run',
        "  |     raise group",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/a/c.py", line 4, in work',
        "    |     boom()",
        "    | ValueError: bad",
        "    +------------------------------------",
    )[-1:]
    assert ("ValueError", "bad") in [(error.type, error.text) for error in chain.links]


def test_a_syntax_error() -> None:
    assert said(
        HEADER,
        *FRAME,
        '  File "/a/c.py", line 1',
        "    def f(:",
        "          ^",
        "SyntaxError: invalid syntax",
    ) == [[("first", "SyntaxError", "invalid syntax")]]


def test_a_subprocess_s_traceback_quoted_by_its_parent() -> None:
    assert said(
        *record(
            "APIServer pid=1",
            HEADER,
            *FRAME,
            "RuntimeError: Error raised in subprocess:",
            "<frozen runpy>:128: RuntimeWarning: found in sys.modules",
            HEADER,
            *FRAME,
            "ImportError: no way",
        )
    ) == [
        [
            (
                "first",
                "RuntimeError",
                "Error raised in subprocess:\n<frozen runpy>:128: RuntimeWarning: found in sys.modules",
            ),
            ("quoted", "ImportError", "no way"),
        ]
    ]


def test_ray_quotes_a_worker_s_traceback_without_its_header() -> None:
    assert said(
        HEADER,
        *FRAME,
        "ray.exceptions.RayTaskError(ValueError): ray::RayWorkerWrapper.execute_method() (pid=9)",
        *FRAME,
        "ValueError: bad",
    ) == [
        [
            (
                "first",
                "ray.exceptions.RayTaskError(ValueError)",
                "ray::RayWorkerWrapper.execute_method() (pid=9)",
            ),
            ("quoted", "ValueError", "bad"),
        ]
    ]


def test_a_notebook_s_traceback() -> None:
    assert said(
        "---------------------------------------------------------------------------",
        "ValueError                                Traceback (most recent call last)",
        "Cell In[1], line 5",
        "      3 from vllm import LLM",
        '----> 5 llm = LLM("m")',
        "",
        "File /a/llm.py:243, in LLM.__init__(self, model)",
        '--> 243     raise ValueError("No available memory for the cache blocks")',
        "",
        "ValueError: bad",
    ) == [[("first", "ValueError", "bad")]]


def test_an_old_notebook_s_traceback_names_its_functions() -> None:
    (chain,) = chains(
        "ValueError                                Traceback (most recent call last)",
        "<ipython-input-7-92d2819a49ae> in <cell line: 4>()",
        "----> 4 llm = LLM(",
        "",
        "/usr/lib/python3.10/vllm/engine/llm_engine.py in from_engine_args(cls, engine_args)",
        "--> 501         raise ValueError(said)",
        "",
        "ValueError: bad",
    )
    assert chain.links[0].functions == ("<cell", "from_engine_args")
    assert chain.links[0].location == ("/usr/lib/python3.10/vllm/engine/llm_engine.py", "from_engine_args")


@pytest.mark.parametrize(
    "text",
    [
        "INFO: all is well",
        "Killed: 9",
        "NOTE: this",
        "/a/b.py:3: UserWarning: old",
        "key: value",
        "model: ValueError",
        "",
        "=====",
        "    ValueError: echoed",
        'self.error: str = ""',
    ],
)
def test_what_is_no_exception(text: str) -> None:
    assert parse_exception(text, loose=True) is None


@pytest.mark.parametrize(
    "name", ["socket.gaierror", "struct.error", "zlib.error", "socket.timeout", "_c.error"]
)
def test_classes_that_begin_small(name: str) -> None:
    assert said(HEADER, *FRAME, f"{name}: [Errno -2] no") == [[("first", name, "[Errno -2] no")]]
    alone = said(f"{name}: [Errno -2] no")
    assert alone == ([] if name == "_c.error" else [[("first", name, "[Errno -2] no")]])


def test_a_class_of_a_binding_may_begin_small() -> None:
    assert said(HEADER, *FRAME, "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND") == [
        [("first", "nixl._bindings.nixlBackendError", "NIXL_ERR_BACKEND")]
    ]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("PermissionError: [Errno 13] no", ("PermissionError", "[Errno 13] no")),
        ("backend='inductor' raised:\nAssertionError: no", ("AssertionError", "no")),
        ("No valid triton configs. PTXASError: no", None),
        ("backend='x'\nand raised:\nAssertionError: no", None),
        ("it is no more", None),
    ],
)
def test_an_exception_that_another_one_s_text_begins_with(text: str, inside: tuple[str, str] | None) -> None:
    outer = RaisedError(type="x.InductorError", text=text, line=7, functions=("makedirs",))
    found = carried(outer)
    assert (found and (found.type, found.text)) == inside
    assert found is None or (found.line, found.functions) == (7, ("makedirs",))


def test_a_fence_ends_a_message() -> None:
    assert said(HEADER, *FRAME, "ValueError: bad", "```") == [[("first", "ValueError", "bad")]]


def test_it_is_open_while_a_traceback_goes_on_and_closed_in_the_end() -> None:
    tracebacks, reader = Tracebacks(), LineReader()
    for text in (HEADER, *FRAME):
        for line in reader.read(text):
            tracebacks.feed(line)
        assert tracebacks.open
    tracebacks.finish()
    assert not tracebacks.open


def test_a_server_that_goes_on_closes_what_was_left_open() -> None:
    tracebacks, reader = Tracebacks(), LineReader()
    for text in (HEADER, *FRAME, "ValueError: survived"):
        for line in reader.read(text):
            tracebacks.feed(line)
    for n in range(1000):
        for line in reader.read(f"(EngineCore pid=7) INFO 11-30 14:29:21 [core.py:{n}] fine"):
            tracebacks.feed(line)
    assert not tracebacks.open
    assert [chain.links[0].text for chain in tracebacks.take()] == ["survived"]


def test_memory_is_bounded_however_long_a_traceback_is() -> None:
    tracebacks, reader = Tracebacks(), LineReader()
    for text in [HEADER, *FRAME * 20_000, "ValueError: " + "x" * 100_000, *["y" * 1000] * 500]:
        for line in reader.read(text):
            tracebacks.feed(line)
    tracebacks.finish()
    (chain, *_) = tracebacks.take()
    assert len(chain.links[0].text) <= 4_100
    assert len(chain.links[0].functions) <= 200


LINES = st.sampled_from(
    [
        HEADER,
        *FRAME,
        "ValueError: x",
        "",
        "During handling of the above exception, another exception occurred:",
        "  | " + HEADER,
        "  +-+---------------- 1 ----------------",
        *record("EngineCore pid=7", HEADER, *FRAME, "KeyError: 'x'"),
        *record("Worker pid=8", HEADER, "RuntimeError: y", source="m.py:1"),
        "INFO:     Started server process [1]",
        "ray.exceptions.RayTaskError(ValueError): ray::f() (pid=1)",
    ]
)


@settings(deadline=None, max_examples=200)
@given(st.lists(LINES | st.text(), max_size=60))
def test_no_text_breaks_it(lines: list[str]) -> None:
    tracebacks, reader = Tracebacks(), LineReader()
    for text in lines:
        for line in reader.read(text.replace("\n", " ")):
            assert tracebacks.feed(line) in ("no", "frame", "message")
            tracebacks.peek()
    tracebacks.finish()
    assert not tracebacks.open
    for chain in tracebacks.take():
        assert chain.links
        assert all(error.type for error in chain.links)
