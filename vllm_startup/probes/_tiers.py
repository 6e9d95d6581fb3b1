"""What an answer says about a readiness tier.

Requests and answers as vLLM 0.8 to 0.33 have them (``vllm/entrypoints``: ``openai/completion``,
``pooling/embed``, ``pooling/scoring``, ``pooling/classify``). A server has the routes of its model's tasks
alone: the others answer 404 (0.11 and newer) or "The model does not support … API" (older).
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from vllm_startup.probes._http import Failure, Response, snippet

MAX_BODY: Final = 64 * 1024
"""Enough for any answer whose text is only quoted."""

MAX_JSON: Final = 4 * 1024 * 1024
"""An embedding of 16,384 numbers is 0.4 MB, a list of 1,000 adapters 0.6 MB."""


@attrs.frozen
class Verdict:
    """Whether a tier is met, and if not, why.

    Attributes:
        found: What the next tier builds on: the model's id.
    """

    ok: bool
    status: int | None = None
    detail: str | None = attrs.field(default=None, kw_only=True)
    found: str | None = attrs.field(default=None, kw_only=True)


@attrs.frozen(kw_only=True)
class Task:
    """One kind of inference.

    Attributes:
        name: For people.
        path: Where it is asked for.
        payload: The smallest request, without the model.
        results: The list in the answer that must not be empty.
    """

    name: str
    path: str
    payload: dict[str, object]
    results: str

    def body(self, model: str) -> dict[str, object]:
        """The request."""
        return {"model": model, **self.payload}


TASKS: Final[tuple[Task, ...]] = (
    Task(
        name="completion",
        path="/v1/completions",
        payload={"prompt": "a", "max_tokens": 1, "temperature": 0},
        results="choices",
    ),
    Task(name="embedding", path="/v1/embeddings", payload={"input": "a"}, results="data"),
    Task(name="score", path="/score", payload={"text_1": "a", "text_2": "a"}, results="data"),
    Task(name="rerank", path="/rerank", payload={"query": "a", "documents": ["a"]}, results="results"),
    Task(name="classify", path="/classify", payload={"input": "a"}, results="data"),
    Task(name="pooling", path="/pooling", payload={"input": "a"}, results="data"),
)
"""In the order in which they are tried; ``pooling`` is all that a reward model has."""

_NOT_HERE: Final = frozenset({400, 404, 405, 422, 501})
"""Statuses by which a server says that it has no such task."""


def judge_health(answer: Response) -> Verdict:
    """``/health``: the status alone counts; its body is empty in vLLM."""
    if answer.status == 200:
        return Verdict(True, 200)
    return Verdict(False, answer.status, detail=http_detail(answer))


def judge_models(answer: Response, wanted: str | None) -> Verdict:
    """``/v1/models``: the wanted model, or any."""
    if answer.status != 200:
        return Verdict(False, answer.status, detail=http_detail(answer))
    served = _served(answer)
    if served is None:
        return Verdict(False, 200, detail=f"/v1/models is no list of models: {snippet(answer)}")
    if wanted is None and served:
        return Verdict(True, 200, found=served[0])
    if wanted in served:
        return Verdict(True, 200, found=wanted)
    if wanted is None:
        return Verdict(False, 200, detail="no model is served")
    names = ", ".join(repr(name[:100]) for name in served[:5]) or "none"
    return Verdict(False, 200, detail=f"model {wanted!r} is not served; served: {names}")


def judge_task(task: Task, answer: Response) -> Verdict | None:
    """One inference request; None when the server has no such task."""
    if answer.status == 200:
        if _results(answer, task.results):
            return Verdict(True, 200)
        return Verdict(False, 200, detail=f"{task.name} gave no {task.results}: {snippet(answer)}")
    if answer.status in _NOT_HERE or b"does not support" in answer.body:
        return None
    return Verdict(False, answer.status, detail=f"{task.name}: {http_detail(answer)}")


def judge_failure(failure: Failure) -> Verdict:
    """No answer, or none that is HTTP."""
    return Verdict(False, None, detail=failure.detail)


def _served(answer: Response) -> list[str] | None:
    document = _document(answer)
    models = document.get("data") if isinstance(document, dict) else None
    if not isinstance(models, list):
        return None
    ids = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in ids if isinstance(name, str)]


def _results(answer: Response, key: str) -> bool:
    document = _document(answer)
    return isinstance(document, dict) and isinstance(document.get(key), list) and bool(document[key])


def _document(answer: Response) -> object:
    if not answer.whole:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def http_detail(answer: Response) -> str:
    """A status that does not meet the tier, for people."""
    if answer.location is not None and 300 <= answer.status < 400:
        return f"HTTP {answer.status}, a redirect to {answer.location[:200]!r}"
    body = snippet(answer)
    text = f"HTTP {answer.status}: {body}" if body else f"HTTP {answer.status}"
    if answer.status in (401, 403):
        return f"{text}; its key goes into api_key (--api-key-file)"
    return text
