"""A refusal that argparse passes on, whose reason stands in the lines below."""

from __future__ import annotations

from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup._log.lines import LineReader
from vllm_startup.causes import Cause

REFUSED = "vllm serve: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig"
REASON = "  Value error, Please specify kv_role when kv_connector is set [type=value_error, input_value={}]"
LINK = "    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
FIELD = ["mode", "  Input should be 0, 1, 2 or 3 [type=enum, input_value=9, input_type=int]", LINK]


def read(*lines: str) -> Diagnosis:
    diagnosis, reader = Diagnosis(), LineReader()
    for text in lines:
        for line in reader.read(text):
            diagnosis.feed(line)
    return diagnosis


def cause_of(*lines: str) -> Cause:
    cause = read(*lines).verdict(ended=True)
    assert cause is not None
    assert (cause.kind, cause.fields) == ("invalid_arguments", {"argument": "--kv-transfer-config"})
    return cause


def test_the_reason_is_told_without_its_frame() -> None:
    cause = cause_of(REFUSED, REASON, LINK)
    refused = REFUSED.removeprefix("vllm serve: error: ")
    assert cause.message == f"{refused}: Value error, Please specify kv_role when kv_connector is set"
    assert [item.text for item in cause.evidence] == [f"{REFUSED} {REASON.strip()}"]
    assert cause_of(REFUSED, *FIELD).message == f"{refused}: mode: Input should be 0, 1, 2 or 3"


def test_what_follows_is_another_matter() -> None:
    logged = "INFO 11-30 14:28:52 [a.py:1] something else"
    for other in ("", logged):
        assert cause_of(REFUSED, other, *FIELD).message == REFUSED.removeprefix("vllm serve: error: ")
    endless = cause_of(REFUSED, *(f"line {number}" for number in range(100)))
    assert endless.message.endswith("line 8")


def test_the_refusal_is_fixed_when_nothing_follows() -> None:
    begun = read(REFUSED, FIELD[0])
    assert begun.busy
    assert begun.verdict(ended=False) is None
    assert begun.verdict(ended=False, quiet=True) is not None
    assert not read(REFUSED, FIELD[0], "").busy


def test_a_refusal_in_one_line_is_fixed_at_once() -> None:
    one = read("vllm serve: error: argument --dtype: invalid choice: 'float3'")
    assert not one.busy
    assert one.verdict(ended=False) is not None
