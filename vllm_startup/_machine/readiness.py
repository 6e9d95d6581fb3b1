"""Whether the server is ready, as far as the caller asked for."""

from __future__ import annotations

from vllm_startup._readings import TIERS, Answer, Tier

NOT_HERE = (
    "the log says that the server is up, but nothing listens at its address: it has another host or port,"
    " or is in another network namespace"
)


class Readiness:
    """Folds answers of one attempt: which tiers were met when, and whether the last one held."""

    def __init__(self, until: Tier, stable_for: float) -> None:
        self.until: Tier = until
        self.stable_for = stable_for
        self.reached: dict[Tier, float] = {}
        self.held_since: float | None = None
        self.confirmed_at: float | None = None
        self.missed = False  # the chosen tier was met, and then it was not
        self.miss: Answer | None = None  # the last answer that told so
        self.last: Answer | None = None
        self.foreign = False
        self.foreign_pid: int | None = None

    def engine(self, at: float) -> bool:
        """Note that the engines are initialised. Returns whether that is news."""
        if self.until == "engine" and self.held_since is None:
            self.held_since = at
        return self._reach("engine", at)

    def forget_log(self) -> None:
        """Leave out what only the log said: it was another start's."""
        self.reached.pop("engine", None)
        if self.until == "engine":
            self.held_since = self.reached.get("health")

    def answered(self, at: float, answer: Answer) -> bool:
        """Note an answer. Returns whether a tier was met for the first time."""
        self.last = answer
        self.owned(foreign=answer.owner == "foreign", pid=answer.owner_pid)
        if self.foreign:
            return False
        if not answer.ok:
            self._miss(answer.tier)
            if self.missed:
                self.miss = answer
            return False
        if self._asks(answer.tier):
            self.confirmed_at = at
            self.held_since = at if self.held_since is None else self.held_since
        return self._reach(answer.tier, at)

    def lost(self) -> None:
        """Note that nothing answers any more."""
        self.owned(foreign=False, pid=None)
        self._miss("health")

    def owned(self, *, foreign: bool, pid: int | None) -> None:
        """Note whether the port belongs to somebody else, and to whom, where that can be seen."""
        self.foreign, self.foreign_pid = foreign, pid if foreign else None

    @property
    def held(self) -> bool:
        """Whether the chosen tier was met without a miss for as long as asked, and confirmed at the end.

        The engine tier is not asked for: it holds while the engines live, from when `due` says.
        """
        if self.held_since is None or self.confirmed_at is None:
            return False
        return self.confirmed_at - self.held_since >= self.stable_for

    @property
    def unanswered(self) -> bool:
        """Whether the server is asked something, and has never answered."""
        return self.until != "engine" and self.last is None

    @property
    def due(self) -> float | None:
        """When the engine tier will have held, if the engines live on; other tiers are asked again."""
        if self.until != "engine" or self.held_since is None:
            return None
        return self.held_since + self.stable_for

    def _asks(self, tier: Tier) -> bool:
        return tier == self.until or (self.until == "engine" and tier == "health")

    def _miss(self, tier: Tier) -> None:
        if (
            self.until != "engine"
            and self.held_since is not None
            and TIERS.index(tier) <= TIERS.index(self.until)
        ):
            self.held_since, self.missed = None, True

    def _reach(self, tier: Tier, at: float) -> bool:
        news = tier not in self.reached
        if news:
            self.reached[tier] = at
        return news
