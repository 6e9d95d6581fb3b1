"""ModelAccess: how a download from the hub fails below the hub's own library.

HTTP clients, the accelerated transfers, and what the hub's library says of answers that are not the
hub's; what it says of models and tokens stands in `_model_access`.
"""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._model_access import (
    HubUnreachable,
    ModelAccessDenied,
    model_not_cached,
    model_not_found,
)
from vllm_startup.causes._rules import CauseRule, Found


def _broke_off(found: Found) -> Cause:
    return HubUnreachable(
        message=f"the download from the hub broke off: {found.said}", confidence="likely", retryable=True
    )


def _unreachable(found: Found) -> Cause:
    return HubUnreachable(
        message=f"the hub could not be reached: {found.said}",
        hint="check DNS, proxy and firewall, or download the model first and pass its local path",
        confidence="likely",
        retryable=True,
    )


def _no_hub(_: Found) -> Cause:
    return HubUnreachable(
        message="what answers for the hub is not one: a mirror or a proxy in between",
        hint="check HF_ENDPOINT and the proxy's settings",
        retryable=None,
    )


# httpx's and requests' classes; the server's own connections are never made with them at a start.
_CLIENTS = (
    "ConnectTimeout",
    "ReadTimeout",
    "ConnectError",
    "RemoteProtocolError",
    "ProxyError",
    "ReadError",
)

RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Connection broken",
        pattern=r"(?:ChunkedEncodingError|ProtocolError|IncompleteRead)\b",
        rank="generic",
        build=_broke_off,
        versions="requests 2, urllib3 1 and 2",
    ),
    CauseRule(
        literal="Read timed out",
        pattern=r"host=\\{0,3}'[\w.-]{0,80}(?:huggingface|hf|xethub)\.co",
        rank="generic",
        build=_broke_off,
        versions="requests 2, urllib3 1 and 2",
    ),
    *(
        CauseRule(
            literal=f"{client}.",
            pattern=rf"^{client}\.\w{{1,40}}(?:: |$)",
            exceptions=_CLIENTS,
            rank="generic",
            build=lambda found: (_broke_off if "peer closed connection" in found.text else _unreachable)(
                found
            ),
            versions=versions,
        )
        for client, versions in (
            ("httpx", "httpx 0.23 to 0.28; huggingface_hub 1.x"),
            ("httpx2", "httpx2; huggingface_hub 2.x"),
        )
    ),
    CauseRule(
        literal="Data processing error: ",
        pattern=r"CAS service error|[Rr]e[qw]west",
        rank="generic",
        build=_broke_off,
        versions="hf_xet 1.x",
    ),
    CauseRule(
        literal="An error occurred while downloading using `hf_transfer`",
        rank="generic",
        build=_broke_off,
        versions="huggingface_hub 0.16 to 0.36",
    ),
    CauseRule(
        literal="FileMetadataError: ",
        build=_no_hub,
        versions="huggingface_hub 0.17 to 2.x",
    ),
    CauseRule(
        literal="The cached snapshot for ",
        pattern=r"snapshot for '(?P<model>[^'\n]{1,200})'[^\n]{0,300} is incomplete",
        build=lambda found: attrs.evolve(model_not_cached(found.word("model")), confidence="likely"),
        versions="huggingface_hub 2.x",
    ),
    CauseRule(
        literal="Incorrect path_or_model_id: ",
        pattern=r"path_or_model_id: '(?P<model>[^'\n]{1,400})'",
        build=lambda found: model_not_found(found.word("model"), "likely"),
        versions="transformers 4.40 to 5.x",
    ),
    CauseRule(
        literal="is not a local folder or a valid repository name",
        pattern=r"OSError: (?P<model>\S{1,400}) is not a local folder",
        build=lambda found: model_not_found(found.word("model"), "likely"),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="Token is required (`token=True`), but no token found",
        build=lambda _: ModelAccessDenied(
            message="the hub's token is asked for, and there is none",
            hint="pass HF_TOKEN into the process or container",
            retryable=False,
        ),
        versions="huggingface_hub 0.14 to 1.x",
    ),
)
