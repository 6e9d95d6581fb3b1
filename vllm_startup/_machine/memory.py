"""GPU memory over time: a baseline, a rise, stillness, a fall."""

from __future__ import annotations

import attrs

from vllm_startup._readings import GpuMemory, GpuSample

MIB = 1 << 20
GIB = 1 << 30

# Device contexts and NCCL buffers take up to about 2 GiB a rank before any weight is there.
_RISE_BYTES, _RISE_SHARE = 2 * GIB, 0.05
# What counts as standing still: cuBLAS workspaces and other tenants move by less.
_NOISE_BYTES, _NOISE_SHARE = 64 * MIB, 0.002
# Ranks of one model hold about the same; pipeline stages differ by a layer or two.
_EVEN_SHARE = 0.7
# After a death all of the growth is given back, but for what other tenants took meanwhile.
_FALLEN_SHARE = 0.1
_NEAR_SHARE = 0.05  # "near the earlier footprint"


@attrs.define(kw_only=True)
class Device:
    """What one GPU has shown so far. Times are on the watch's clock."""

    index: int
    uuid: str
    total: int
    baseline: int
    used: int
    peak: int
    anchor: int
    still_since: float
    rise_since: float | None = None
    fallen_at: float | None = None
    own_anchor: int | None = None
    inherited: bool = False  # the rise was over when the watch began

    @property
    def growth(self) -> int:
        """Bytes above the baseline."""
        return self.used - self.baseline

    @property
    def risen(self) -> bool:
        """Whether more than a device context was taken, and not given back."""
        return self.rise_since is not None and self.fallen_at is None

    @property
    def noise(self) -> int:
        """The change, in bytes, below which memory stands still."""
        return max(_NOISE_BYTES, int(self.total * _NOISE_SHARE))


class GpuTrack:
    """Folds `GpuMemory` readings of one attempt."""

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self._looked_at: float | None = None

    def feed(self, at: float, reading: GpuMemory) -> bool:
        """Take a reading. Returns whether the server's memory moved by more than noise on some device.

        Where the driver does not tell which memory is the server's, any that moves may be.
        """
        moved = [self._fold(at, sample) for sample in reading.gpus]
        self._looked_at = at
        return any(moved)

    def _fold(self, at: float, sample: GpuSample) -> bool:
        device = self.devices.get(sample.uuid)
        if device is None:
            self.devices[sample.uuid] = _first(at, sample)
            return False
        before = device.anchor
        device.used = sample.used_bytes
        device.peak = max(device.peak, device.used)
        moved = abs(device.used - before) > device.noise
        if moved:
            device.anchor, device.still_since = device.used, at
        self._judge(at, device)
        return _own_moved(device, sample.tree_bytes, otherwise=moved)

    def _judge(self, at: float, device: Device) -> None:
        threshold = min(_RISE_BYTES, int(device.total * _RISE_SHARE))
        if device.growth > threshold and (device.rise_since is None or device.fallen_at is not None):
            device.rise_since, device.fallen_at = at, None
        grown = device.peak - device.baseline
        fallen = device.growth <= max(device.noise, int(grown * _FALLEN_SHARE))
        if device.risen and fallen and not device.inherited:
            device.fallen_at = at

    @property
    def rise_since(self) -> float | None:
        """When memory began to rise on the first device that rose."""
        return min((d.rise_since for d in self.devices.values() if d.rise_since is not None), default=None)

    @property
    def inherited(self) -> bool:
        """Whether the rise was over when the watch began, so that only its result is seen."""
        return any(d.inherited for d in self.devices.values())

    @property
    def lagging(self) -> Device | None:
        """The device that is least filled where the devices are not even; None where they are."""
        if not any(d.risen for d in self.devices.values()):
            return None
        least = min(self.devices.values(), key=lambda d: d.growth)
        return None if least.growth >= self._most_growth * _EVEN_SHARE else least

    @property
    def _most_growth(self) -> int:
        return max((d.growth for d in self.devices.values()), default=0)

    @property
    def still_since(self) -> float | None:
        """Since when every device has stood still after its rise, evenly; None where one has not."""
        devices = self.devices.values()
        if not devices or not all(d.risen for d in devices) or self.lagging is not None:
            return None
        return max(d.still_since for d in devices)

    @property
    def fallen_at(self) -> float | None:
        """When memory was back at the baseline on every device that had risen; None otherwise."""
        rose = [d for d in self.devices.values() if d.rise_since is not None]
        falls = [d.fallen_at for d in rose if d.fallen_at is not None]
        return max(falls) if rose and len(falls) == len(rose) else None

    def filled(self, utilization: float) -> bool:
        """Whether every device is filled about as far as vLLM was told to fill it."""
        devices = self.devices.values()
        return bool(devices) and all(d.used >= (utilization - 0.07) * d.total for d in devices)

    def describe(self, footprint: dict[str, int] | None = None) -> str:
        """The memory in one line, e.g. ``8 GPUs at 73,731 of 97,887 MiB, evenly``."""
        devices = list(self.devices.values())
        used = sorted(d.used // MIB for d in devices)
        span = f"{used[0]:,}" if used[-1] - used[0] <= used[-1] * 0.01 else f"{used[0]:,} to {used[-1]:,}"
        noun = "GPU" if len(devices) == 1 else f"{len(devices)} GPUs"
        evenly = ", evenly" if len(devices) > 1 and self.lagging is None else ""
        near = ", near its earlier footprint" if footprint and self.near(footprint) else ""
        return f"{noun} at {span} of {max(d.total for d in devices) // MIB:,} MiB{evenly}{near}"

    def near(self, footprint: dict[str, int]) -> bool:
        """Whether every device holds about what an earlier start of the same model held."""
        pairs = [(d.used, footprint[uuid]) for uuid, d in self.devices.items() if uuid in footprint]
        return bool(pairs) and all(abs(used - earlier) <= earlier * _NEAR_SHARE for used, earlier in pairs)


def _own_moved(device: Device, own: int | None, *, otherwise: bool) -> bool:
    """Whether what the server holds on a device moved; ``otherwise`` where that is not known."""
    before = device.own_anchor
    if own is None or before is None:
        device.own_anchor = own
        return otherwise
    moved = abs(own - before) > device.noise
    if moved:
        device.own_anchor = own
    return moved


def _first(at: float, sample: GpuSample) -> Device:
    held = sample.tree_bytes or 0
    device = Device(
        index=sample.index,
        uuid=sample.uuid,
        total=sample.total_bytes,
        baseline=max(0, sample.used_bytes - held),
        used=sample.used_bytes,
        peak=sample.used_bytes,
        anchor=sample.used_bytes,
        still_since=at,
        own_anchor=sample.tree_bytes,
    )
    if device.growth > min(_RISE_BYTES, int(device.total * _RISE_SHARE)):
        device.rise_since, device.inherited = at, True
    return device
