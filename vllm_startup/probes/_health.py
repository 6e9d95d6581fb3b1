"""The server's port and its answers: a bare connect often, HTTP once something listens."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from vllm_startup._blocking import BlockingRunner, StillRunningError
from vllm_startup._readings import TIERS, Answer, Connection
from vllm_startup._url import parse_url
from vllm_startup.probes._connect import CONNECT_LIMIT_S, MAX_TARGETS, Attempt, Connector
from vllm_startup.probes._http import Failure, HttpClient, certificates, imported
from vllm_startup.probes._listener import (
    STRANGER,
    UNKNOWN,
    ListenerFinder,
    listening_inodes,
    listening_unix_inodes,
)
from vllm_startup.probes._tiers import (
    MAX_BODY,
    MAX_JSON,
    TASKS,
    Task,
    Verdict,
    http_detail,
    judge_failure,
    judge_health,
    judge_models,
    judge_task,
)
from vllm_startup.probes._tunnel import TunnelConnector

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable

    import httpx

    from vllm_startup._readings import Reading, Tier
    from vllm_startup._url import ServerAddress
    from vllm_startup.probes._connect import State
    from vllm_startup.probes._tunnel import Route

LOCAL_POLL_S: Final = 0.04
"""Ready is to be noticed within 30 ms (median); a refused connect on this machine costs 12 µs."""

REMOTE_POLL_S: Final = 0.5
"""Ready is to be noticed within 1 s; 1,000 servers may cost one core."""

ANSWER_POLL_S: Final = 0.5

REPEAT_S: Final = 10.0
"""How often an unchanged state of the port is told again."""

REQUEST_LIMIT_S: Final = 6.0
"""1 s to connect and 5 s to answer. A slow 200 is a 200: probes that allowed 0.5 s called servers under
load dead for ever."""

INFERENCE_LIMIT_S: Final = 60.0
"""The first request may compile kernels; one that is cut short would begin again each time."""


class HealthProbe:
    """Sees whether anything listens at the server's address, whose it is, and what it answers.

    While connects are refused they are all that happens. Once something listens, that is told, and each
    round asks for ``/health``, then for the further tiers up to ``until``, one sample a request, so that each
    tier is told as soon as it is met. A round ends at the first tier that is not.

    Args:
        url: The server's root: ``http://``, ``https://`` or ``unix:///path``.
        until: The highest tier to ask for. With ``engine`` there are no requests, only connects.
        model: The model that has to be served; None for any.
        api_key: The key for ``/v1``. It goes to nobody who is known to be a stranger, and into no reading.
        verify: Whether to check the server's certificate, or a file or folder of CA certificates. None:
            not on this machine, where certificates are self-signed; everywhere else.
        tree_pids: The watched processes, for telling whose socket listens; None: nobody can tell.
        runs: Whether anything of the server runs; while it does not, whoever listens is a stranger.
            None: it does, as far as is known.
        route: The tunnel that leads to it, where it is not reached directly.
        transport: Answers requests instead of the network; the port then counts as listening.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is not valid. The message names it.
    """

    def __init__(
        self,
        url: str,
        *,
        until: Tier = "health",
        model: str | None = None,
        api_key: str | None = None,
        verify: bool | str | os.PathLike[str] | None = None,
        tree_pids: Callable[[], Collection[int]] | None = None,
        runs: Callable[[], bool] | None = None,
        route: Route | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if until not in TIERS:
            raise ValueError(f"until must be one of {', '.join(TIERS)}, not {until!r}")
        self._address = address = parse_url(url)
        self._tiers = TIERS[1 : TIERS.index(until) + 1]
        self._model = _checked_model(model)
        self._tree_pids = tree_pids
        self._runs = runs
        self._connector = None if transport is not None else _connector(address, route)
        self._http = HttpClient(
            address,
            api_key=_checked_key(api_key),
            verify=_checked_verify(verify, address.loopback),
            tunnel=None if route is None else route.path,
            transport=transport,
        )
        self._finder = ListenerFinder(self._inodes)
        self._runner = BlockingRunner("vllm-startup health")
        self._listening = False
        self._listener = UNKNOWN
        self._due = False  # the port has been told, and /health comes next
        self._round: tuple[Tier, ...] = ()
        self._served = model
        self._task: Task | None = None
        self._told: Connection | None = None
        self._told_at = 0.0

    @property
    def name(self) -> str:
        """``health``."""
        return "health"

    @property
    def interval_s(self) -> float:
        """0 within a round; else by what the port does and where it is."""
        if self._round or self._due:
            return 0.0
        if self._listening:
            return ANSWER_POLL_S
        return LOCAL_POLL_S if self._connector is None or self._connector.local else REMOTE_POLL_S

    @property
    def limit_s(self) -> float:
        """More than the longest request with the connects around it."""
        longest = INFERENCE_LIMIT_S if "inference" in self._tiers else REQUEST_LIMIT_S
        return longest + 2 * MAX_TARGETS * CONNECT_LIMIT_S

    def glance(self, now: float) -> bool:
        """Whether the port may have changed: False while it refuses, and that was told."""
        told = self._told is not None and self._told.state == "refused" and now - self._told_at < REPEAT_S
        waits = told and not self._listening and not self._round and self._http.prepared
        return not waits or self._connector is None or not self._connector.still_refused()

    async def sample(self, now: float) -> Iterable[Reading]:
        """Connect, or ask the round's next request.

        Raises:
            OSError: This process has no file descriptors left.
        """
        if self._round:
            tier, *rest = self._round
            self._round = ()
            verdict = await self._ask_model() if tier == "model" else await self._ask_inference()
            self._round = tuple(rest) if verdict.ok else ()
            return [self._answer(tier, verdict)]
        if self._due:
            self._due = False
            return await self._ask_health(now)
        if not (self._listening and self._tiers):
            attempt = await self._connect(now)
            if attempt.state != "listening":
                news = self._connection(attempt, now)
                await self._prepare(self._connector is not None and self._connector.local)
                return news
        await self._prepare(True)
        await self._find_listener(now)
        if news := self._connection(self._open_port, now):  # told before the answer, which may not come
            self._due = bool(self._tiers)
            return news
        return await self._ask_health(now) if self._tiers else []

    async def aclose(self) -> None:
        """Close connections and let the thread end."""
        self._runner.close()
        if self._connector is not None:
            self._connector.close()
        await self._http.aclose()

    # --- the port ---------------------------------------------------------------------------

    async def _connect(self, now: float) -> Attempt:
        attempt = Attempt("listening") if self._connector is None else await self._connector.connect(now)
        self._listening = attempt.state == "listening"
        if not self._listening:
            self._listener = UNKNOWN
        return attempt

    async def _prepare(self, soon: bool) -> None:
        """Have the client ready before it is needed, since its imports take longer than ready may."""
        if not soon or not self._tiers or self._http.prepared:
            return
        if imported():
            self._http.prepare()
            return
        try:
            await self._runner.run(self._http.prepare)
        except StillRunningError:
            pass  # a sample before was cancelled; the request builds it if the thread has not

    async def _find_listener(self, now: float) -> None:
        if self._runs is not None and not self._runs():
            self._listener = STRANGER
            return
        if self._listener is STRANGER:
            self._listener = UNKNOWN
        if self._tree_pids is None or self._connector is None:
            return
        target = self._connector.target
        if target is None or not target.local:
            return
        tree = frozenset(self._tree_pids())
        try:
            self._listener = await self._runner.run(partial(self._finder.find, tree, now))
        except StillRunningError:
            pass  # a sample before was cancelled; what was known holds until the next round

    def _connection(self, attempt: Attempt, now: float) -> list[Reading]:
        """Tell the port's state where it is new, or has not been told for `REPEAT_S`."""
        state: State = attempt.state
        reading = Connection(
            state=state, owner=self._listener.owner, owner_pid=self._listener.pid, detail=attempt.detail
        )
        if reading == self._told and now - self._told_at < REPEAT_S:
            return []
        self._told, self._told_at = reading, now
        return [reading]

    # --- the tiers --------------------------------------------------------------------------

    async def _ask_health(self, now: float) -> list[Reading]:
        answer = await self._http.request(
            "/health", host=self._host, limit_s=REQUEST_LIMIT_S, max_body=MAX_BODY, with_key=not self._foreign
        )
        if isinstance(answer, Failure):
            return await self._without_answer(answer, now)
        verdict = judge_health(answer)
        if verdict.ok and not self._foreign:
            self._round = self._tiers[1:]
        return [*self._connection(self._open_port, now), self._answer("health", verdict)]

    async def _without_answer(self, failure: Failure, now: float) -> list[Reading]:
        if failure.kind != "connect":  # it listens, and says nothing that is an answer
            return [*self._connection(self._open_port, now), self._answer("health", judge_failure(failure))]
        met = await self._connect(now)
        if met.state == "listening":  # it was let in this time: its backlog comes and goes
            met = Attempt("timed_out", failure.detail)
        return self._connection(met, now)

    async def _ask_model(self) -> Verdict:
        answer = await self._http.request(
            "/v1/models", host=self._host, limit_s=REQUEST_LIMIT_S, max_body=MAX_JSON
        )
        verdict = judge_failure(answer) if isinstance(answer, Failure) else judge_models(answer, self._model)
        self._served = verdict.found
        return verdict

    async def _ask_inference(self) -> Verdict:
        """Ask for the task that worked before, or try them in turn until one is there."""
        try:
            async with asyncio.timeout(INFERENCE_LIMIT_S):
                return await self._try_tasks()
        except TimeoutError:
            return judge_failure(Failure("timeout", f"no task was done within {INFERENCE_LIMIT_S:g} s"))

    async def _try_tasks(self) -> Verdict:
        status: int | None = None
        missing: list[str] = []
        for task in (self._task,) if self._task is not None else TASKS:
            answer = await self._http.request(
                task.path,
                host=self._host,
                limit_s=INFERENCE_LIMIT_S,
                max_body=MAX_JSON,
                json=task.body(self._served or ""),
            )
            if isinstance(answer, Failure):
                return judge_failure(answer)
            verdict = judge_task(task, answer)
            if verdict is not None:
                self._task = task if verdict.ok else None
                return verdict
            status = answer.status
            missing.append(f"{task.name} ({'HTTP 404' if status == 404 else http_detail(answer)})")
        self._task = None
        return Verdict(False, status, detail=f"no task that can be asked for: {', '.join(missing)}")

    def _answer(self, tier: Tier, verdict: Verdict) -> Answer:
        return Answer(
            tier=tier,
            ok=verdict.ok,
            status=verdict.status,
            owner=self._listener.owner,
            owner_pid=self._listener.pid,
            detail=verdict.detail,
        )

    def _inodes(self) -> frozenset[int]:
        if self._address.uds is not None:
            return listening_unix_inodes(self._address.uds)
        return listening_inodes(self._host or "", self._address.port or 0)

    @property
    def _host(self) -> str | None:
        target = None if self._connector is None else self._connector.target
        return None if target is None else target.host

    @property
    def _foreign(self) -> bool:
        return self._listener.owner == "foreign"

    @property
    def _open_port(self) -> Attempt:
        return Attempt("listening", self._listener.detail)


def _checked_model(model: str | None) -> str | None:
    if model is None:
        return None
    if not isinstance(model, str):
        raise TypeError(f"model must be a model's name, not {model!r}")
    if not model.strip():
        raise ValueError("model must not be empty; None is any model")
    return model


def _connector(address: ServerAddress, route: Route | None) -> Connector | TunnelConnector:
    return Connector(address) if route is None else TunnelConnector(route)


def _checked_key(api_key: str | None) -> str | None:
    if api_key is None:
        return None
    if not isinstance(api_key, str):
        raise TypeError(f"api_key must be a string, not {type(api_key).__name__}")
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise ValueError("api_key must be printable ASCII without a newline, and not empty")
    return api_key


def _checked_verify(
    verify: bool | str | os.PathLike[str] | None, loopback: bool
) -> bool | str | os.PathLike[str]:
    if verify is None:
        return not loopback
    if not isinstance(verify, bool):
        try:
            certificates(verify)
        except OSError as error:  # also what `ssl` makes of a file that holds none
            raise ValueError(
                f"verify must be True, False, or the path of CA certificates, not {str(verify)!r}: {error}"
            ) from error
    return verify
