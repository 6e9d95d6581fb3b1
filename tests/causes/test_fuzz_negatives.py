"""What a rule knows, said as a warning or inside a dump of the configuration, amid arbitrary text."""

from __future__ import annotations

from diagnosing import cause_of
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import Sample, samples

CERTAIN = [
    sample for sample in samples() if sample.cause.confidence == "certain" and not sample.rule.explains
]

MILD = (
    "(EngineCore pid=200) WARNING 11-30 14:28:52 [core.py:1] {text}",
    "(EngineCore pid=200) INFO 11-30 14:28:52 [core.py:1] {text}",
    "/opt/site-packages/x/y.py:12: UserWarning: {text}",
    "(EngineCore pid=200) INFO 11-30 14:28:52 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config:"
    " model='m', compilation_config={{'x': {text!r}}}",
    "(APIServer pid=1) INFO 11-30 14:28:52 [utils.py:1] non-default args: {{'model': {text!r}}}",
)
around = st.lists(st.text(max_size=60).map(lambda text: text.replace("\n", " ")), max_size=6)


@given(st.sampled_from(CERTAIN), st.sampled_from(MILD), around, around)
def test_a_warning_or_a_dump_is_no_certain_cause_whatever_stands_around(
    sample: Sample, mild: str, before: list[str], after: list[str]
) -> None:
    alone = cause_of([*before, *after])
    assume(alone is None or alone.confidence != "certain")  # one word can be enough: OOMKilled
    text = sample.text.partition("\n")[0]
    cause = cause_of([*before, mild.format(text=text), *after])
    assert cause is None or cause.confidence != "certain"
