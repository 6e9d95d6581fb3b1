from __future__ import annotations

import pytest

from vllm_startup.probes._gpu_devices import (
    Device,
    GpuName,
    Selection,
    check_gpus,
    choose,
    named_slices,
    parse_gpus,
)

SAME = [Device(index=i, uuid=f"GPU-{i}{i}aa-bbbb", model="NVIDIA H200") for i in range(4)]
MIXED = [
    Device(index=0, uuid="GPU-00aa-bbbb", model="NVIDIA T400"),
    Device(index=1, uuid="GPU-11aa-bbbb", model="NVIDIA H200"),
    Device(index=2, uuid="GPU-22aa-bbbb", model="NVIDIA H200"),
]
SLICED = [Device(index=0, uuid="GPU-00aa-bbbb", slices=("MIG-77aa-bbbb", "MIG-77cc-dddd", "MIG-88"))]

BY_PCI = "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("devices", "visible", "order", "expected", "codes"),
    [
        pytest.param(SAME, None, None, [0, 1, 2, 3], [], id="not set: all"),
        pytest.param(SAME, "2", None, [2], [], id="one"),
        pytest.param(SAME, "3,1", None, [3, 1], [], id="some, in the server's order"),
        pytest.param(SAME, " 0 , 2 ", None, [0, 2], [], id="blanks"),
        pytest.param(SAME, "+1,2x", None, [1, 2], [], id="numbers as strtoul reads them"),
        pytest.param(SAME, "0,-1,2", None, [0], [], id="a negative number ends the list"),
        pytest.param(SAME, "0,,2", None, [0], [], id="an empty entry ends the list"),
        pytest.param(SAME, "0,GPU-11", None, [0], [], id="a UUID ends a list of numbers"),
        pytest.param(SAME, "GPU-11,0", None, [1], [], id="a number ends a list of UUIDs"),
        pytest.param(SAME, "0,9,2", None, [0], ["gpu_not_found"], id="what does not exist ends the list"),
        pytest.param(SAME, "", None, [], ["gpu_none_visible"], id="empty"),
        pytest.param(SAME, "-1", None, [], ["gpu_none_visible"], id="minus one"),
        pytest.param(SAME, "NoDevFiles", None, [], ["gpu_none_visible"], id="NoDevFiles"),
        pytest.param(SAME, "GPU-", None, [], ["gpu_none_visible"], id="a bare prefix"),
        pytest.param(SAME, "1,1", None, [], ["gpu_none_visible"], id="twice the same"),
        pytest.param(
            SAME, "9", None, [], ["gpu_not_found", "gpu_none_visible"], id="only one that is not there"
        ),
        pytest.param(
            SAME, "9" * 5000, None, [], ["gpu_not_found", "gpu_none_visible"], id="an absurd number"
        ),
        pytest.param(SAME, "GPU-22aa-bbbb,GPU-0", None, [2, 0], [], id="UUIDs, whole and abbreviated"),
        pytest.param(SAME, "GPU-1,GPU-3", BY_PCI, [1, 3], [], id="UUIDs do not care for the order"),
        pytest.param(MIXED, "0", None, [0, 1, 2], ["gpu_order_unknown"], id="models differ, order not set"),
        pytest.param(
            MIXED, "0", "FASTEST_FIRST", [0, 1, 2], ["gpu_order_unknown"], id="models differ, fastest first"
        ),
        pytest.param(MIXED, "0", BY_PCI, [0], [], id="models differ, by PCI bus"),
        pytest.param(MIXED, "GPU-00", None, [0], [], id="models differ, by UUID"),
        pytest.param(MIXED, "2,0,1", None, [2, 0, 1], [], id="models differ, but all are named"),
        pytest.param([], "0", None, [], ["gpu_none_found"], id="no GPU at all"),
        pytest.param([], None, None, [], ["gpu_none_found"], id="no GPU at all, none named"),
    ],
)
def test_chooses_what_the_environment_leaves_the_server(
    devices: list[Device], visible: str | None, order: str | None, expected: list[int], codes: list[str]
) -> None:
    choice = choose(devices, None, Selection(visible, order))
    assert [target.index for target in choice.targets] == expected
    assert [note.code for note in choice.notes] == codes


@pytest.mark.parametrize(
    ("devices", "gpus", "expected", "codes"),
    [
        pytest.param(SAME, (2, 0), ["GPU-22aa-bbbb", "GPU-00aa-bbbb"], [], id="indices"),
        pytest.param(SAME, ("GPU-33",), ["GPU-33aa-bbbb"], [], id="abbreviated UUID"),
        pytest.param(SAME, (1, "GPU-11aa-bbbb", 1), ["GPU-11aa-bbbb"], [], id="the same by two names"),
        pytest.param(SAME, (0, 9), ["GPU-00aa-bbbb"], ["gpu_not_found"], id="one of two exists"),
        pytest.param(MIXED, (0,), ["GPU-00aa-bbbb"], [], id="indices are NVML's, whatever CUDA's order"),
        pytest.param(SLICED, ("MIG-77cc-dddd",), ["MIG-77cc-dddd"], [], id="slice"),
        pytest.param(SLICED, ("MIG-8",), ["MIG-88"], [], id="abbreviated slice"),
        pytest.param(SLICED, ("MIG-77",), [], ["gpu_not_found"], id="ambiguous"),
        pytest.param(SLICED, ("MIG-99",), [], ["gpu_not_found"], id="no such slice"),
    ],
)
def test_chooses_what_was_asked_for(
    devices: list[Device], gpus: tuple[GpuName, ...], expected: list[str], codes: list[str]
) -> None:
    choice = choose(devices, gpus, Selection("3", None))
    assert [target.uuid for target in choice.targets] == expected
    assert [note.code for note in choice.notes] == codes


def test_a_slice_has_the_index_of_its_gpu() -> None:
    devices = [Device(index=5, uuid="GPU-5", slices=("MIG-1",))]
    assert choose(devices, ["MIG-1"], Selection()).targets[0].index == 5


def test_says_what_exists_when_something_does_not() -> None:
    [note] = choose(SLICED, [3, "GPU-ff"], Selection()).notes
    assert note.text == (
        "gpus names 3, GPU-ff, which is no single GPU here; there are: "
        "0 (GPU-00aa-bbbb), MIG-77aa-bbbb, MIG-77cc-dddd, MIG-88"
    )


def test_names_the_variable_when_the_environment_is_wrong() -> None:
    notes = choose(SAME[:1], None, Selection("7")).notes
    assert (
        notes[0].text
        == "CUDA_VISIBLE_DEVICES names 7, which is no single GPU here; there are: 0 (GPU-00aa-bbbb)"
    )
    assert notes[1].text == "CUDA_VISIBLE_DEVICES='7' leaves the server no GPU, so GPU memory is not watched"


def test_cuts_what_it_quotes() -> None:
    assert max(len(note.text) for note in choose(SAME, None, Selection("GPU-" + "f" * 9999)).notes) < 250


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        (None, None, ()),
        (None, "0,1", ()),
        (None, "MIG-a,MIG-b", ("MIG-a", "MIG-b")),
        ((0, "MIG-a", "GPU-b"), "MIG-c", ("MIG-a",)),
    ],
)
def test_finds_the_slices_that_are_named(
    gpus: tuple[GpuName, ...] | None, visible: str | None, expected: tuple[str, ...]
) -> None:
    assert named_slices(gpus, Selection(visible)) == expected


def test_reads_the_selection_out_of_a_whole_environment() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HF_TOKEN": "secret"}
    assert Selection.of(environ) == Selection("1", "PCI_BUS_ID")
    assert Selection.of({"NVIDIA_VISIBLE_DEVICES": "2"}) == Selection(None, None)


def test_parses_a_list_as_it_is_written_on_a_command_line() -> None:
    assert parse_gpus("0, 12,GPU-8a1b,MIG-97c3") == (0, 12, "GPU-8a1b", "MIG-97c3")


@pytest.mark.parametrize("text", ["", "0,", "a", "0;1", "-1", "GPU-", "1.0", "²"])
def test_refuses_text_that_is_no_list_of_gpus(text: str) -> None:
    with pytest.raises(ValueError, match="gpus must"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("gpus", "error", "words"),
    [
        ("0,1", TypeError, "gpus must be a list"),
        (b"0", TypeError, "gpus must be a list"),
        (0, TypeError, "gpus must be a list"),
        ([], ValueError, "gpus is empty"),
        ([True], TypeError, "gpus must hold indices and UUIDs, got True"),
        ([1.0], TypeError, "gpus must hold indices and UUIDs, got 1.0"),
        ([None], TypeError, "gpus must hold indices and UUIDs, got None"),
        ([-1], ValueError, "gpus must not hold a negative index, got -1"),
        (["0"], ValueError, "indices .as int. or UUIDs"),
        (["gpu-1"], ValueError, "indices .as int. or UUIDs"),
        (["MIG-"], ValueError, "indices .as int. or UUIDs"),
    ],
)
def test_refuses_what_names_no_gpu(gpus: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_gpus(gpus)  # type: ignore[arg-type]  # the test is about wrong types
