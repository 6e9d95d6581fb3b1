"""Distributed: processes did not find each other, or lost each other."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found, place_rule


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Distributed(Cause):
    """Processes did not find each other, or lost each other."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NcclFailed(Distributed):
    """NCCL could not set up communication between GPUs."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GlooFailed(Distributed):
    """Gloo could not connect the processes."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RendezvousTimedOut(Distributed):
    """Some ranks never joined."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PlacementGroupPending(Distributed):
    """Ray cannot place the workers."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HandshakeTimedOut(Distributed):
    """An engine heard nothing from the front end, or the other way round."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EngineReadyTimeout(Distributed):
    """vLLM's own limit for the engines expired."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FrontendDied(Distributed):
    """An API server process ended while the engines were starting."""


# --- how they are told -------------------------------------------------------------------


_LOST = ("ncclRemoteError", "remote process exited", "Connection closed", "Broken pipe")


def _nccl(found: Found) -> Cause | None:
    said = found.error.text if found.error is not None else found.text
    if any(word in said for word in _LOST):
        return None
    vague = "unhandled system error" in said or "unhandled cuda error" in said
    return NcclFailed(
        message=f"NCCL could not set up communication: {said}",
        hint="start once with NCCL_DEBUG=INFO: its WARN lines name the reason" if vague else None,
        confidence="likely" if vague else "certain",
        retryable=None,
    )


def _gloo(message: str) -> Cause:
    return GlooFailed(
        message=message,
        hint="set GLOO_SOCKET_IFNAME to the interface that joins the nodes, on every node (Ray: for its "
        "daemon too)",
        retryable=None,
    )


def _never_joined(_: Found) -> Cause:
    return RendezvousTimedOut(
        message="some ranks did not join in time: one of them failed or started late, or cannot reach "
        "the others",
        confidence="likely",
        retryable=None,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="NCCL error",
        pattern=r"NCCL error.{0,400}?(?:ncclRemoteError|remote process exited|Connection closed|Broken pipe)",
        rank="weak",
        build=lambda _: NcclFailed(
            message="NCCL lost a peer: another rank ended first", confidence="likely", retryable=None
        ),
        versions="NCCL 2.18 to 2.27",
    ),
    CauseRule(literal="NCCL error", rank="generic", build=_nccl, versions="0.2 to 0.33, NCCL 2.18 to 2.27"),
    CauseRule(literal="NCCL Error", rank="generic", build=_nccl, versions="torch"),
    CauseRule(
        literal="HCCL function error",
        pattern=r"HCCL function error: (?P<call>\w{1,80})\(?.{0,200}?error code is (?P<code>\d{1,9})",
        rank="generic",
        build=lambda found: NcclFailed(
            message=f"HCCL, Ascend's NCCL, could not set up communication: {found.word('call')} failed with "
            f"error {found.word('code')}",
            hint="the lines with a code such as EI0006 or EE9999 name the reason",
            confidence="likely",
            retryable=None,
        ),
        versions="torch_npu 2.1 to 2.7",
    ),
    CauseRule(
        literal="is setting up NCCL communicator and retrieving ncclUniqueId",
        rank="weak",
        build=lambda _: NcclFailed(
            message="a rank could not get NCCL's id from rank 0, which ended, is late or cannot be reached",
            confidence="likely",
            retryable=None,
        ),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="Watchdog caught collective operation timeout",
        where="both",
        rank="weak",
        build=lambda _: NcclFailed(
            message="a collective operation of NCCL's did not end in time: a rank is late, stuck or gone",
            confidence="likely",
            retryable=None,
        ),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="NCCL WARN Cuda failure",
        rank="generic",
        build=lambda found: NcclFailed(
            message=f"a CUDA call of NCCL's failed: {found.said}", confidence="likely", retryable=None
        ),
        versions="NCCL 2.18 to 2.27",
    ),
    CauseRule(
        literal="Gloo connectFullMesh failed",
        build=lambda _: _gloo("gloo could not connect all processes"),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="Unable to find ",
        pattern=r"Unable to find (?:address|interface) for: \[?(?P<what>[^\]\n]{1,100})",
        build=lambda found: _gloo(f"gloo finds no interface or address {found.word('what')}"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="gloo/transport/tcp",
        pattern=r"Connection (?:closed|reset) by peer",
        rank="weak",
        build=lambda _: GlooFailed(message="gloo lost a peer: another rank ended first", confidence="likely"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="gloo/transport/tcp",
        pattern=r"Timed out waiting|connect timeout|unable to connect|Unable to find address"
        r"|No route to host|Connection refused|Network is unreachable|Host is unreachable",
        rank="generic",
        build=lambda _: GlooFailed(message="gloo could not reach a peer", retryable=None),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="Application timeout caused pair closure",
        rank="generic",
        build=lambda _: GlooFailed(
            message="gloo waited in vain for a peer", confidence="likely", retryable=None
        ),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="The client socket has timed out after",
        rank="weak",
        build=_never_joined,
        versions="torch 2.x",
    ),
    CauseRule(
        literal="Timed out initializing process group in store based barrier",
        rank="weak",
        build=_never_joined,
        versions="torch 1.x to 2.2",
    ),
    CauseRule(
        literal="RendezvousTimeoutError", rank="weak", build=_never_joined, versions="torch 1.9 to 2.x"
    ),
    CauseRule(literal="wait timeout after", rank="weak", build=_never_joined, versions="torch 2.x"),
    CauseRule(
        literal="waiting for clients",
        pattern=r"Timed out after \d+ seconds waiting for clients",
        rank="weak",
        build=_never_joined,
        versions="torch 2.x",
    ),
    CauseRule(
        literal="The client socket has failed to connect",
        rank="weak",
        build=_never_joined,
        versions="torch 2.x",
    ),
    CauseRule(
        literal="Cannot provide a placement group",
        build=lambda found: PlacementGroupPending(
            message=f"Ray could not place the workers: {found.error.text if found.error else found.text}",
            hint="look at `ray status`: the nodes must have joined, with as many GPUs as the parallel "
            "sizes ask for",
            retryable=None,
        ),
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="Did not receive response from front-end",
        rank="generic",
        build=lambda _: HandshakeTimedOut(
            message="an engine heard nothing from the front end within five minutes", retryable=None
        ),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="failed to report ZMQ addresses",
        rank="generic",
        build=lambda _: HandshakeTimedOut(
            message="the data parallel coordinator did not report its addresses in time", retryable=None
        ),
        versions="0.19 to 0.33",
    ),
    CauseRule(
        literal="Timed out waiting for engine",
        pattern=r"Timed out waiting for (?:engines to send|engine core processes to start)",
        rank="generic",
        build=lambda _: EngineReadyTimeout(
            message="vLLM's own limit for the engines to get ready expired, which need not mean that "
            "they hang",
            hint="raise VLLM_ENGINE_READY_TIMEOUT_S, and end engine processes that are left over",
            retryable=None,
        ),
        versions="0.9.1 to 0.33",
    ),
    CauseRule(
        literal="Frontend process failed during engine core initialization",
        rank="weak",
        build=lambda _: FrontendDied(
            message="an API server process ended while the engines were starting",
            confidence="likely",
            retryable=None,
        ),
        versions="0.28 to 0.33",
    ),
    CauseRule(
        literal="API server ",
        pattern=r"API server \S{0,60}.{0,40}(?:closed its address pipe|exited [^\n]{1,40} before) ",
        rank="weak",
        build=lambda _: FrontendDied(
            message="an API server process ended while the engines were starting",
            confidence="likely",
            retryable=None,
        ),
        versions="0.25 to 0.29",
    ),
    CauseRule(
        literal="to report bound ZMQ addresses",
        rank="generic",
        build=lambda _: HandshakeTimedOut(
            message="the API servers did not report their addresses in time", retryable=None
        ),
        versions="0.25 to 0.29",
    ),
    CauseRule(
        literal="didn't reply within ",
        pattern=r"TimeoutError: (?:RPCServer|MQLLMEngine) didn't reply within",
        rank="generic",
        build=lambda _: HandshakeTimedOut(
            message="the engine's process did not answer the API server in time",
            confidence="likely",
            retryable=None,
        ),
        versions="0.5 to 0.10, V0",
    ),
    CauseRule(
        literal="timed out after",
        pattern=r"RuntimeError: Barrier (?:departure )?timed out after",
        rank="weak",
        build=_never_joined,
        versions="0.10 to 0.33",
    ),
    place_rule(
        literal="/vllm/v1/engine/utils.py",
        pattern=r":(?:create_dp_placement_groups|add_dp_placement_groups|_dp_nodes_master_first)$",
        exceptions=("AssertionError", "ValueError", "RuntimeError"),
        build=lambda found: PlacementGroupPending(
            message=f"Ray could not place the data parallel ranks: {found.said}",
            retryable=None,
        ),
        versions="0.9 to 0.33",
    ),
)
