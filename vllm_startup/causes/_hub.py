"""ModelAccess: what the hub answers, by the status of its answer.

The hub is huggingface.co or, with HF_ENDPOINT, any other address. Up to 0.x its library speaks through
requests, from 1.0 on through httpx, each with words of its own.
"""

from __future__ import annotations

from typing import Final

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._model_access import HubUnreachable, ModelAccessDenied, model_not_found, named_model
from vllm_startup.causes._rules import CauseRule, Found

_HOST: Final = r"https?://[^/\s'\"]{1,200}/"
_MODEL: Final = r"(?P<model>(?!(?:api|docs|blog|settings)/)[\w.-]{1,96}/[\w.-]{1,96})"
_REPOSITORY: Final = rf"{_HOST}(?:api/models/)?{_MODEL}"
_NAMED: Final = rf"(?:.{{0,400}}?{_REPOSITORY})?"
# Another service's address may look like a model's; it has no such parts.
_FILE: Final = rf"{_HOST}(?:api/models/{_MODEL}|{_MODEL.replace('model', 'name')}/(?:resolve|raw|tree)/)"

_CLIENTS: Final = (
    "HfHubHTTPError", "HTTPError", "HTTPStatusError", "LocalEntryNotFoundError", "OSError"
)  # fmt: skip


def _denied(found: Found) -> ModelAccessDenied:
    model = named_model(found)
    return ModelAccessDenied(
        message=f"the hub refused access to {model or 'the model'}",
        hint="accept the model's licence on the hub, and pass HF_TOKEN into the process or container",
        model=model,
        retryable=False,
    )


def _unauthorized(found: Found) -> Cause:
    cause = _denied(found)
    if found.word("status") == "403":
        return cause
    return attrs.evolve(
        cause,
        hint="pass a valid HF_TOKEN into the process or container: it is missing, wrong or expired",
    )


def _too_many(_: Found) -> Cause:
    return HubUnreachable(
        message="the hub refuses further requests for now (429 Too Many Requests)",
        hint="wait, and pass HF_TOKEN, with which the hub allows more; or download the model first",
        retryable=True,
    )


def _broken(found: Found) -> Cause:
    return HubUnreachable(
        message=f"the hub answers {found.word('status') or 'with an error of its own'}",
        hint="try again later, or download the model first and pass its local path",
        retryable=True,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="gated repo",
        # A 404 adds "if you are trying to access a private or gated repo, ...".
        pattern=rf"(?<!private or )gated repo(?:sitory)?{_NAMED}",
        build=_denied,
        versions="huggingface_hub 0.16 to 2.x, transformers 4.30 to 5.x",
    ),
    CauseRule(
        literal="Client Error",
        pattern=r"GatedRepoError: 40[13] Client Error(?:\.\s+Access to model "
        rf"(?P<name>[\w.-]{{1,96}}/[\w.-]{{1,96}}) is restricted|{_NAMED})",
        build=_denied,
        versions="huggingface_hub 0.16 to 2.x",
    ),
    CauseRule(
        literal="error downloading or loading vocab file",
        build=lambda _: HubUnreachable(
            message="the vocabulary of gpt-oss models could not be downloaded",
            hint="download o200k_base.tiktoken (and cl100k_base.tiktoken) first, and name their folder in "
            "TIKTOKEN_ENCODINGS_BASE",
            confidence="likely",
            retryable=True,
        ),
        versions="openai-harmony 0.0.x",
    ),
    CauseRule(
        literal="RepositoryNotFoundError",
        pattern=rf"RepositoryNotFoundError: (?P<status>401) Client Error{_NAMED}",
        build=lambda found: attrs.evolve(_denied(found), confidence="likely"),  # or there is none
        versions="huggingface_hub 0.16 to 2.x",
    ),
    CauseRule(
        literal="RepositoryNotFoundError",
        pattern=rf"RepositoryNotFoundError: 404 Client Error{_NAMED}",
        build=lambda found: model_not_found(named_model(found), "likely"),
        versions="huggingface_hub 0.16 to 2.x",
    ),
    *(
        CauseRule(
            literal=literal,
            pattern=pattern,
            where="both",
            explains=("model_not_found",),
            rank="generic",  # where the library knows more, it says so
            build=_unauthorized,
            versions=versions,
        )
        for literal, pattern, versions in (
            (
                "Client Error",
                rf"(?P<status>40[13]) Client Error: (?:Unauthorized|Forbidden) for url: {_REPOSITORY}",
                "huggingface_hub 0.16 to 0.36; requests",
            ),
            (
                "Client error '40",
                rf"Client error '(?P<status>40[13]) (?:Unauthorized|Forbidden)' for url '{_FILE}",
                "huggingface_hub 1.0 to 2.x; httpx",
            ),
            (
                "Forbidden: ",
                rf"(?P<status>403) Forbidden: .{{0,200}}?(?:for url|Cannot access content at): ?{_FILE}",
                "huggingface_hub 0.20 to 2.x",
            ),
        )
    ),
    *(
        CauseRule(literal=literal, exceptions=_CLIENTS, build=_too_many, versions=versions)
        for literal, versions in (
            ("429 Client Error", "huggingface_hub 0.16 to 0.36; requests"),
            ("Client error '429", "huggingface_hub 1.0 to 2.x; httpx"),
            ("429 Too Many Requests", "huggingface_hub 1.0 to 2.x"),
        )
    ),
    *(
        CauseRule(literal=literal, pattern=pattern, exceptions=_CLIENTS, build=_broken, versions=versions)
        for literal, pattern, versions in (
            ("Server Error", r"(?P<status>50[0234]) Server Error", "huggingface_hub 0.16 to 2.x; requests"),
            (
                "Server error '5",
                rf"Server error '(?P<status>50[0234] [\w ]{{1,40}})' for url '{_FILE}",
                "huggingface_hub 1.0 to 2.x; httpx",
            ),
        )
    ),
    CauseRule(
        literal="Request URL is missing an 'http://' or 'https://' protocol",
        build=lambda _: HubUnreachable(
            message="the hub was asked at an address without http:// or https://",
            hint="write HF_ENDPOINT with its scheme, as in https://hub.example.com",
            confidence="likely",
            retryable=False,
        ),
        versions="httpx 0.23 to 0.28",
    ),
)
