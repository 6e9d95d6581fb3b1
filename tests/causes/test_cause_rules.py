"""What every rule has, and rules that users bring."""

from __future__ import annotations

import re

import pytest
from diagnosing import cause_of, read

from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup._log.exceptions import RaisedError
from vllm_startup._log.lines import Line
from vllm_startup.causes._rules import CauseRule, built_in_rules, compiled
from vllm_startup.causes._ruleset import built_in

RULES = built_in_rules()
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: re.sub(r"\W+", "_", rule.literal)[:50])

END = [
    "Traceback (most recent call last):",
    '  File "/opt/vllm/bin/vllm", line 6, in <module>',
    "    sys.exit(main())",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ValueError: EC source size mismatch for mm_hash=ab12", "checkpoint_mismatch"),
        ("ValueError: MoRIIO KV cache block size mismatch for layer 3: 16 != 32", "checkpoint_mismatch"),
        ("MemoryError: Not enough space in the data buffer, try calling free_buf()", "host_out_of_memory"),
        ("ValueError: num_speculative_tokens:4 must be divisible by n_predict=3", "parallel_size_invalid"),
    ],
)
def test_a_text_that_sounds_like_another_is_not_taken_for_it(text: str, kind: str) -> None:
    found = built_in().of_error(RaisedError(type="", text=text))
    assert found is None or found[1].kind != kind
    type_, _, said = text.partition(": ")
    found = built_in().of_error(RaisedError(type=type_, text=said))
    assert found is None or found[1].kind != kind


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-smi: error while loading shared libraries: libnvidia-ml.so.1: cannot open shared object file",
        "/start.sh: line 4: ray: command not found",
        "env: 'numactl': No such file or directory",
        "free(): invalid pointer",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "mkdir: cannot create directory '/root/.cache': Permission denied",
        "[ 1234.5] nginx[3321]: segfault at 10 ip 00007f3b sp 00007ffd error 4",
    ],
)
def test_what_a_start_can_go_on_after_does_not_end_it(line: str) -> None:
    diagnosis = read([line])
    assert not diagnosis.fatal
    assert diagnosis.verdict(ended=False) is None


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
