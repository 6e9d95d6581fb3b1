"""Which GPUs a server may use: what was asked for, or its own environment, against what exists.

Pure: no NVML, no processes. NVML numbers GPUs by PCI bus and knows nothing of
``CUDA_VISIBLE_DEVICES``; CUDA numbers them fastest first unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
vLLM's ``--device-ids`` (0.33) is not looked at: with it, name the GPUs by ``gpus=``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs

from vllm_startup._readings import ProbeNote

GpuName: TypeAlias = int | str
"""A GPU as people name it: NVML's index, or a UUID that begins with ``GPU-`` or ``MIG-``."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
QUOTED_CHARS = 80
ORDINAL_DIGITS = 9
"""Numbers are read so far: longer ones name no GPU, and past 4,300 digits `int` would raise."""


@attrs.frozen(kw_only=True)
class Device:
    """One GPU that the driver lists.

    Attributes:
        slices: UUIDs of its MIG devices, as far as they are known.
    """

    index: int
    uuid: str
    model: str = ""
    slices: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Target:
    """One GPU or MIG slice to watch; a slice has the index of the GPU that it is cut from."""

    index: int
    uuid: str


@attrs.frozen(kw_only=True)
class Choice:
    """What to watch, and what has to be said about it."""

    targets: tuple[Target, ...]
    notes: tuple[ProbeNote, ...] = ()


@attrs.frozen
class Selection:
    """The words of the server's environment that choose its GPUs; None where a word is not set."""

    visible: str | None = None
    order: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Selection:
        """Pick the two words out of a whole environment."""
        return cls(environ.get(VISIBLE), environ.get(ORDER))


def parse_gpus(text: str) -> tuple[GpuName, ...]:
    """Read a list as it is written on a command line: ``0,1`` or ``GPU-8a1b,GPU-97c3``.

    Raises:
        ValueError: An entry is neither an index nor a UUID.
    """
    words = [word.strip() for word in text.split(",")]
    return check_gpus([int(word) if word.isascii() and word.isdigit() else word for word in words])


def check_gpus(gpus: Iterable[GpuName]) -> tuple[GpuName, ...]:
    """Return ``gpus`` as a tuple.

    Raises:
        TypeError: It is one string or number, or holds something else than int and str.
        ValueError: It is empty, or holds a negative index or text that is no UUID.
    """
    if isinstance(gpus, str | bytes) or not isinstance(gpus, Iterable):
        raise TypeError(f"gpus must be a list such as [0, 1] or ['GPU-8a1b'], got {gpus!r}")
    names = tuple(gpus)
    if not names:
        raise ValueError("gpus is empty; leave it out to watch the GPUs that the server may use")
    for name in names:
        _check_gpu(name)
    return names


def _check_gpu(name: GpuName) -> None:
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise TypeError(f"gpus must hold indices and UUIDs, got {name!r}")
    if isinstance(name, int):
        if name < 0:
            raise ValueError(f"gpus must not hold a negative index, got {name}")
    elif not (name.startswith(("GPU-", "MIG-")) and len(name) > len("GPU-")):
        raise ValueError(
            f"gpus must hold indices (as int) or UUIDs that begin with GPU- or MIG-, got {name!r}"
        )


def named_slices(gpus: Sequence[GpuName] | None, selection: Selection) -> tuple[str, ...]:
    """Return the MIG UUIDs that are asked for; only they make it worth looking for slices."""
    names = _visible(selection.visible or "") if gpus is None else gpus
    return tuple(name for name in names if isinstance(name, str) and name.startswith("MIG-"))


def choose(devices: Sequence[Device], gpus: Sequence[GpuName] | None, selection: Selection) -> Choice:
    """Return the GPUs to watch: ``gpus`` if given, else what the server's environment allows.

    Args:
        devices: What the driver lists, by NVML's index.
        gpus: What was asked for; None for "whatever the server may use".
        selection: The server's own environment.
    """
    if not devices:
        text = "the NVIDIA driver lists no GPU that can be reached, so GPU memory is not watched"
        return Choice(targets=(), notes=(ProbeNote(code="gpu_none_found", text=text),))
    if gpus is not None:
        return _choose_asked(devices, gpus)
    if selection.visible is None:
        return Choice(targets=tuple(_whole(device) for device in devices))
    return _choose_visible(devices, selection.visible, selection.order)


def _choose_asked(devices: Sequence[Device], gpus: Sequence[GpuName]) -> Choice:
    found = {name: _find(devices, name) for name in gpus}
    missing = [str(name) for name, target in found.items() if target is None]
    notes = (_not_found("gpus", ", ".join(missing), devices),) if missing else ()
    return Choice(targets=_unique(target for target in found.values() if target is not None), notes=notes)


def _choose_visible(devices: Sequence[Device], visible: str, order: str | None) -> Choice:
    targets: list[Target] = []
    notes: list[ProbeNote] = []
    names = _visible(visible)
    for name in names:
        target = _find(devices, name)
        if target is None:  # CUDA ignores the first name that it does not know and all after it
            notes.append(_not_found(VISIBLE, str(name), devices))
            break
        targets.append(target)
    chosen = _unique(targets)
    if not chosen:
        text = f"{VISIBLE}={visible[:QUOTED_CHARS]!r} leaves the server no GPU, so GPU memory is not watched"
        notes.append(ProbeNote(code="gpu_none_visible", text=text))
    elif isinstance(names[0], int) and _orders_differ(devices, chosen, order):
        text = (
            f"the GPUs are of different models and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so which ones "
            f"{VISIBLE}={visible[:QUOTED_CHARS]} means cannot be told from outside; all of them are watched"
        )
        notes.append(ProbeNote(code="gpu_order_unknown", text=text))
        chosen = tuple(_whole(device) for device in devices)
    return Choice(targets=chosen, notes=tuple(notes))


def _orders_differ(devices: Sequence[Device], chosen: Sequence[Target], order: str | None) -> bool:
    """Whether CUDA's numbers may mean other GPUs than NVML's; equal models are in PCI order in both."""
    return order != "PCI_BUS_ID" and len(chosen) < len(devices) and len({d.model for d in devices}) > 1


def _visible(visible: str) -> list[GpuName]:
    """Read ``CUDA_VISIBLE_DEVICES`` as CUDA does (after torch 2.9, ``torch.cuda._parse_visible_devices``).

    The first entry decides whether it is a list of UUIDs or of numbers; the first entry of another
    kind, and a negative number, end the list; an entry that comes twice empties it.
    """
    names: list[GpuName] = []
    prefix = visible.strip()[: len("GPU-")]
    for word in visible.split(","):
        name = _uuid(word.strip(), prefix) if prefix in ("GPU-", "MIG-") else _ordinal(word.strip())
        if name is None:
            break
        if name in names:
            return []
        names.append(name)
    return names


def _uuid(word: str, prefix: str) -> str | None:
    return word if word.startswith(prefix) and len(word) > len(prefix) else None


def _ordinal(word: str) -> int | None:
    """Read a number as strtoul does: ``2x`` is 2; None for none, or a negative one."""
    digits = word.removeprefix("+")
    end = next((at for at, char in enumerate(digits) if char not in "0123456789"), len(digits))
    return int(digits[: min(end, ORDINAL_DIGITS)]) if end else None


def _find(devices: Sequence[Device], name: GpuName) -> Target | None:
    """Return what a name means; None where nothing, or more than one, matches it."""
    if isinstance(name, int):
        matches = [_whole(device) for device in devices if device.index == name]
    elif name.startswith("MIG-"):
        slices = [Target(index=device.index, uuid=uuid) for device in devices for uuid in device.slices]
        exact = [target for target in slices if target.uuid == name]
        matches = exact or [target for target in slices if target.uuid.startswith(name)]
    else:
        matches = [_whole(device) for device in devices if device.uuid.startswith(name)]
    return matches[0] if len(matches) == 1 else None


def _whole(device: Device) -> Target:
    return Target(index=device.index, uuid=device.uuid)


def _unique(targets: Iterable[Target]) -> tuple[Target, ...]:
    return tuple({target.uuid: target for target in targets}.values())


def _not_found(source: str, missing: str, devices: Sequence[Device]) -> ProbeNote:
    names = [f"{device.index} ({device.uuid})" for device in devices]
    names += [uuid for device in devices for uuid in device.slices]
    there = ", ".join(names) or "none"
    text = f"{source} names {missing[:QUOTED_CHARS]}, which is no single GPU here; there are: {there}"
    return ProbeNote(code="gpu_not_found", text=text)
