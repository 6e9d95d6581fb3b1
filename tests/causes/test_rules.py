"""What no rule may do: take text that is no event for one, or take long over it."""

from __future__ import annotations

import re
import time

import pytest
from diagnosing import cases, cause_of, read

from vllm_startup._log.lines import Line
from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup.causes._rules import CauseRule, built_in_rules, compiled

RULES = built_in_rules()
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: re.sub(r"\W+", "_", rule.literal)[:50])

END = [
    "Traceback (most recent call last):",
    '  File "/opt/vllm/bin/vllm", line 6, in <module>',
    "    sys.exit(main())",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


def decisive() -> list[tuple[str, str]]:
    """Every text that a case's cause rests on, with the kind."""
    found = {}
    for case in cases():
        cause = cause_of(case.lines)
        if cause is not None and cause.confidence == "certain" and cause.evidence[0].line:
            text = cause.evidence[0].text.rstrip("…")
            found[text] = cause.kind
    return [(kind, text) for text, kind in found.items()]


every_text = pytest.mark.parametrize(("kind", "text"), decisive(), ids=[kind for kind, _ in decisive()])


@every_text
@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING"])
def test_a_text_said_mildly_is_no_cause(kind: str, text: str, level: str) -> None:
    lines = [f"(EngineCore pid=200) {level} 11-30 14:28:52 [core.py:1] {text}"]
    cause = cause_of([*lines, *END])
    assert cause_of(lines) is None
    assert cause is None or cause.confidence == "unknown"


@every_text
def test_a_text_in_another_library_s_warning_is_no_cause(kind: str, text: str) -> None:
    lines = [f"/opt/vllm/lib/python3.12/site-packages/x/y.py:12: UserWarning: {text}", "  warnings.warn("]
    cause = cause_of([*lines, *END])
    assert cause_of(lines) is None
    assert cause is None or cause.confidence == "unknown"


@every_text
def test_a_text_echoed_as_source_is_no_cause(kind: str, text: str) -> None:
    prefix = "(EngineCore pid=200) ERROR 11-30 14:28:52 [core.py:1] "
    lines = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in run',
        f"    raise ValueError({text!r})",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^",
        "ZeroDivisionError: division by zero",
    ]
    cause = cause_of([*(prefix + line for line in lines), *END])
    assert cause is not None
    assert cause.kind == "unclassified_error"
    assert cause.fields["exception"] == "ZeroDivisionError"


@every_text
def test_a_text_in_a_config_dump_is_no_cause(kind: str, text: str) -> None:
    lines = [
        "(APIServer pid=100) INFO 11-30 14:28:52 [api_utils.py:286] non-default args: "
        f"{{'model': '/models/m', 'served_model_name': {[text]!r}}}",
        "(EngineCore pid=200) INFO 11-30 14:28:52 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with "
        f"config: model='/models/m', note={text!r}, dtype=torch.bfloat16",
        "(EngineCore pid=200) ERROR 11-30 14:28:52 [core.py:1510] EngineCore failed to start.",
    ]
    cause = cause_of([*lines, *END])
    assert cause is None or cause.confidence == "unknown"


@every_rule
def test_a_rule_says_where_its_wording_was_seen(rule: CauseRule) -> None:
    assert rule.versions
    assert len(rule.literal.strip()) >= 5


@every_rule
def test_a_pattern_is_sound(rule: CauseRule) -> None:
    if rule.pattern is not None:
        compiled(rule.pattern)


@every_rule
def test_a_rule_s_literal_said_mildly_is_no_cause(rule: CauseRule) -> None:
    said = [f"ValueError: {rule.literal}", rule.literal, f"error: {rule.literal}"]
    lines = [f"(EngineCore pid=200) WARNING 11-30 14:28:52 [core.py:1] {text}" for text in said]
    cause = cause_of([*lines, *END])
    assert cause is None or cause.confidence == "unknown"


FILLERS = (
    "a",
    " ",
    "'",
    "(",
    "0",
    ".",
    "a.",
    "a ",
    "[",
    "/",
    "1 ",
    "\n",
    ": ",
    "::",
    "https://huggingface.co/",
    "x/",
)


@every_rule
def test_hostile_text_takes_no_time(rule: CauseRule) -> None:
    for filler in (*FILLERS, rule.literal):
        long = filler * (200_000 // len(filler))
        for text in (rule.literal + long, long + rule.literal, f"ValueError: {rule.literal}{long}"):
            diagnosis = Diagnosis()
            began = time.perf_counter()
            diagnosis.feed(Line(text=text, message=text, number=1))
            diagnosis.finish()
            diagnosis.verdict(ended=True)
            assert time.perf_counter() - began < 0.2  # budget: 0.05 s on a machine of one's own


def test_users_bring_rules_of_their_own() -> None:
    from vllm_startup.causes import ProgramMissing

    rule = CauseRule(
        literal="our launcher",
        pattern=r"our launcher lacks (?P<program>\w+)",
        build=lambda found: ProgramMissing(message="it is not there", program=found.word("program")),
    )
    diagnosis = Diagnosis(rules=[rule])
    for number, text in enumerate(
        ("RuntimeError: our launcher lacks curl", "Engine core initialization failed")
    ):
        diagnosis.feed(Line(text=text, message=text, number=number))
    diagnosis.finish()
    cause = diagnosis.verdict(ended=True)
    assert isinstance(cause, ProgramMissing)
    assert cause.program == "curl"


def test_secrets_never_reach_evidence_or_message() -> None:
    diagnosis = read(
        [
            "Traceback (most recent call last):",
            '  File "/opt/vllm/bin/vllm", line 6, in <module>',
            "ValueError: bad call with --api-key sk-verysecretverysecret1234 and "
            "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEF",
        ]
    )
    cause = diagnosis.verdict(ended=True)
    assert cause is not None
    assert "verysecret" not in repr(cause)
    assert "hf_abcdefghij" not in repr(cause)
    assert "verysecret" not in cause.evidence[0].text
