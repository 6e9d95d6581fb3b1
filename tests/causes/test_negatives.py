"""No text that a rule knows is a cause where it is no event, rule by rule."""

from __future__ import annotations

import re

import pytest
from diagnosing import cause_of
from samples import Sample, samples

from vllm_startup.causes._rules import built_in_rules

SAMPLES = samples()
END = (
    "Traceback (most recent call last):",
    '  File "/opt/vllm/bin/vllm", line 6, in <module>',
    "    sys.exit(main())",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)
RECORD = "(EngineCore pid=200) {level} 11-30 14:28:52 [core.py:1] {text}"

CERTAIN = [sample for sample in SAMPLES if sample.cause.confidence == "certain"]


def named(value: object) -> str | None:
    if not isinstance(value, Sample):
        return None
    return re.sub(r"\W+", "_", f"{value.cause.kind}-{value.rule.literal}")[:70]


certain = pytest.mark.parametrize("sample", CERTAIN, ids=named)
# The others may explain what fails later, however mildly they were said.
no_explanation = pytest.mark.parametrize("sample", [s for s in CERTAIN if not s.rule.explains], ids=named)


def says_nothing(*lines: str) -> None:
    assert cause_of(lines) is None
    cause = cause_of([*lines, *END])
    assert cause is None or cause.confidence == "unknown"


def test_every_rule_has_a_text_that_it_knows() -> None:
    assert {id(sample.rule) for sample in SAMPLES} == {id(rule) for rule in built_in_rules()}


@no_explanation
@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_said_mildly(sample: Sample, level: str) -> None:
    says_nothing(*(RECORD.format(level=level, text=text) for text in sample.text.split("\n")))


@certain
def test_said_mildly_and_nothing_fails(sample: Sample) -> None:
    assert cause_of([RECORD.format(level="WARNING", text=text) for text in sample.text.split("\n")]) is None


@certain
def test_a_survived_exception(sample: Sample) -> None:
    before = ("Failed to import it:", "Traceback (most recent call last):", '  File "/a.py", line 1, in f')
    lines = (*before, *sample.text.split("\n"), "It is not needed.")
    says_nothing(*(RECORD.format(level="WARNING", text=text) for text in lines))


@certain
def test_a_library_s_warning(sample: Sample) -> None:
    text = sample.text.partition("\n")[0]
    says_nothing(f"/opt/site-packages/x/y.py:12: UserWarning: {text}", "  warnings.warn(message)")


@certain
def test_an_echo_of_source(sample: Sample) -> None:
    echo = f"    raise ValueError({sample.text!r})"
    lines = ["Traceback (most recent call last):", '  File "/a/b.py", line 3, in run', echo, "    ^^^^^^^^"]
    lines = ["EngineCore failed to start.", *lines, "ZeroDivisionError: division by zero"]
    cause = cause_of([*(RECORD.format(level="ERROR", text=line) for line in lines), *END])
    assert cause is not None
    assert (cause.kind, cause.fields["exception"]) == ("unclassified_error", "ZeroDivisionError")


@certain
def test_an_echo_of_source_in_a_notebook(sample: Sample) -> None:
    text = sample.text.partition("\n")[0]
    cause = cause_of(
        [
            "---------------------------------------------------------------------------",
            "ZeroDivisionError                         Traceback (most recent call last)",
            "File /usr/lib/python3/dist-packages/vllm/a.py:271, in LLM.__init__(self, model)",
            f"    270 raise ValueError({text!r})",
            "--> 271 self.engine = make(arguments)",
            "",
            "ZeroDivisionError: division by zero",
        ]
    )
    assert cause is not None
    assert (cause.kind, cause.fields["exception"]) == ("unclassified_error", "ZeroDivisionError")


@certain
def test_a_dump_of_the_configuration(sample: Sample) -> None:
    says_nothing(
        f"(APIServer pid=1) INFO 11-30 14:28:52 [utils.py:286] non-default args: {{'note': {sample.text!r}}}",
        "(EngineCore pid=200) INFO 11-30 14:28:52 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with "
        f"config: model='/models/m', note={sample.text!r}, dtype=torch.bfloat16",
        f"{{'model': '/models/m', 'note': {sample.text!r}}}",
    )
