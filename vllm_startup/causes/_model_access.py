"""ModelAccess: the model's files could not be had."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause, Confidence
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelAccess(Cause):
    """The model's files could not be had."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelNotFound(ModelAccess):
    """There is no such model, on the hub or on disk.

    Attributes:
        model: Its name or path.
    """

    model: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelAccessDenied(ModelAccess):
    """The hub refused access: gated, private, or without a valid token.

    Attributes:
        model: Its name.
    """

    model: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HubUnreachable(ModelAccess):
    """The hub could not be reached, and the files are not in the cache."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelNotCached(ModelAccess):
    """The hub is switched off, and the files are not in the cache.

    Attributes:
        model: Its name.
    """

    model: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RemoteCodeNotTrusted(ModelAccess):
    """The model brings code of its own, which was not allowed to run.

    Attributes:
        model: Its name or path.
    """

    model: str | None = None


# --- how they are told -------------------------------------------------------------------


def named_model(found: Found) -> str | None:
    """The model that the group ``model`` or ``name`` holds, without quotes and a sentence's end."""
    said = found.word("model") or found.word("name")
    return None if said is None else said.strip("'\"`").rstrip(".,:")


def _not_found(found: Found, confidence: Confidence = "certain") -> Cause | None:
    if found.error is not None and "get_tokenizer" in found.error.functions:
        return None  # the model itself was found
    return model_not_found(named_model(found), confidence)


def model_not_found(model: str | None, confidence: Confidence = "certain") -> ModelNotFound:
    """There is no such model, on the hub or on disk."""
    local = model is not None and model.startswith(("/", "./", "../", "~"))
    return ModelNotFound(
        message=f"there is no model {model}" if model else "the model's configuration was not found",
        hint="correct the path: a folder with config.json, in a container as it is mounted there"
        if local
        else None,
        confidence=confidence if local or model is None else "likely",  # gated models are told so too
        model=model,
        retryable=False,
    )


def _unreachable(_: Found) -> Cause:
    return HubUnreachable(
        message="the hub could not be reached, and the files are not in the cache",
        hint="check DNS, proxy and firewall, or download the model first and pass its local path",
        retryable=True,
    )


def _not_cached(_: Found) -> Cause:
    return model_not_cached()


def model_not_cached(model: str | None = None) -> ModelNotCached:
    """The hub is switched off, and the model is not in the cache."""
    return ModelNotCached(
        message="the hub is switched off (offline mode), and the model is not in the cache",
        hint="download the model while online, or pass the path of a local copy",
        model=model,
        retryable=False,
    )


def _untrusted(found: Found) -> Cause:
    model = named_model(found)
    return RemoteCodeNotTrusted(
        message=f"{model or 'the model'} brings code of its own, which is not allowed to run",
        hint="read that code, then start with --trust-remote-code",
        model=model,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Repo id must be in the form",
        pattern=r"Repo id must be in the form [^:]{1,80}: '(?P<model>[^']{1,400})'",
        build=_not_found,
        versions="huggingface_hub 0.14 to 1.x",
    ),
    CauseRule(
        literal="Repo id must use alphanumeric chars",
        pattern=r"Repo id must use alphanumeric chars.{1,200}?: '(?P<model>[^']{1,400})'",
        build=_not_found,
        versions="huggingface_hub 0.14 to 1.x",
    ),
    CauseRule(
        literal="Invalid repository ID or local directory specified",
        pattern=r"directory specified: '(?P<model>[^']{1,400})'",
        build=_not_found,
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="is not a local folder and is not a valid model identifier",
        pattern=r"(?<!\S)(?P<model>\S{1,400}) is not a local folder",
        build=lambda found: _not_found(found, confidence="likely"),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="No supported config format found in",
        pattern=r"No supported config format found in (?P<model>\S{1,400})",
        build=_not_found,
        versions="0.6 to 0.8",
    ),
    CauseRule(
        literal="config format for no config file found",
        build=_not_found,
        versions="0.8 to 0.9",
    ),
    CauseRule(
        literal="does not appear to have a file named config.json",
        pattern=r"(?<!\S)(?P<model>\S{1,400}) does not appear to have a file named config\.json",
        build=_not_found,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="Unrecognised GGUF reference: ",
        pattern=r"Unrecognised GGUF reference: (?P<model>\S{1,400})",
        build=lambda found: _not_found(found, confidence="likely"),
        versions="0.10 to 0.18",
    ),
    CauseRule(
        literal="is not a valid git identifier",
        pattern=r"that exists for this model name\. Check the model page at\s+'https://huggingface\.co/"
        r"(?P<model>[^']{1,200})'",
        build=_not_found,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="modelscope.hub.errors.NotExistError",
        pattern=r"NotExistError: (?:The model: (?P<model>\S{1,200}))?",
        build=lambda found: _not_found(found, confidence="likely"),
        versions="modelscope 1.9 to 1.3x",
    ),
    CauseRule(literal="RevisionNotFoundError", build=_not_found, versions="huggingface_hub 0.16 to 1.x"),
    CauseRule(
        literal="outgoing traffic has been disabled",
        build=_not_cached,
        versions="huggingface_hub 0.14 to 1.x",
    ),
    CauseRule(literal="offline mode is enabled", build=_not_cached, versions="huggingface_hub 0.14 to 1.x"),
    CauseRule(
        literal="We couldn't connect to 'https://",
        rank="generic",
        build=_unreachable,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(literal="Failed to resolve 'huggingface.co'", build=_unreachable, versions="urllib3 2"),
    CauseRule(
        literal="huggingface.co",
        pattern=r"(?:host=\\{0,3}'(?:[\w-]{1,60}\.){0,4}huggingface\.co\\{0,3}', port=443\)?.{0,200}"
        r"(?:Max retries exceeded|timed out)|Connection to huggingface\.co timed out)",
        build=_unreachable,
        versions="requests 2, urllib3 1 and 2",
    ),
    CauseRule(
        literal="Max retries exceeded with url: /",
        pattern=r"Max retries exceeded with url: /(?:api/models/|[\w.-]{1,96}/[\w.-]{1,96}/resolve/)",
        build=_unreachable,
        versions="requests 2, urllib3 1 and 2; HF_ENDPOINT",
    ),
    CauseRule(
        literal="An error happened while trying to locate the file",
        rank="generic",
        build=_unreachable,
        versions="huggingface_hub 0.14 to 1.x",
    ),
    CauseRule(
        literal="CERTIFICATE_VERIFY_FAILED",
        rank="generic",
        build=lambda _: HubUnreachable(
            message="the hub's certificate is not trusted here: a proxy in between shows one of its own",
            confidence="likely",
            hint="give the proxy's root certificate: SSL_CERT_FILE and REQUESTS_CA_BUNDLE",
            retryable=False,
        ),
        versions="OpenSSL; httpx, requests, urllib3",
    ),
    CauseRule(
        literal="Can't load the configuration of",
        pattern=r"Can't load the configuration of '(?P<model>[^']{1,400})'",
        rank="generic",
        build=lambda found: _not_found(found, confidence="likely"),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="name resolution",
        pattern=r"(?:ConnectError|ConnectionError|gaierror): .{0,300}Temporary failure in name resolution",
        build=_unreachable,
        versions="glibc; httpx, requests, urllib3",
    ),
    CauseRule(
        literal="Name or service not known",
        pattern=r"ConnectError: ",
        rank="generic",
        build=_unreachable,
        versions="glibc; httpx",
    ),
    CauseRule(
        literal="requires you to execute",
        pattern=r"Loading (?P<model>\S{1,400}) requires you to execute",
        build=_untrusted,
        versions="transformers 4.20 to 4.5x",
    ),
    CauseRule(
        literal="contains custom code which must be executed",
        pattern=r"The repository (?:for )?(?P<model>\S{1,400}) contains custom code",
        build=_untrusted,
        versions="transformers 4.40 to 5.x",
    ),
    CauseRule(
        literal="is not from a trusted publisher",
        pattern=r"repository '(?P<model>[^'\n]{1,200})' is not from a trusted publisher",
        build=_untrusted,
        versions="kernels 0.10 to 0.1x",
    ),
    CauseRule(
        literal="--trust-remote-code",
        pattern=r"the `?--trust-remote-code`? flag",
        rank="generic",
        build=_untrusted,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal=" to allow custom code",
        pattern=r"trust_remote_code=True`? to allow custom code",
        rank="generic",
        build=_untrusted,
        versions="transformers 4.20 to 5.x",
    ),
)
