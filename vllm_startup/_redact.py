"""Take secrets out of command lines, URLs and log lines, before anybody keeps them.

It runs on every line that is recorded, so that a line without a trigger word costs one look for
each word, and every repetition in the patterns is bounded or consumes what it has seen: the time is
linear in the line's length.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HIDDEN: Final = "***"
"""What stands where a secret stood."""

_TRIGGERS: Final = (
    "key", "token", "secret", "passw", "credential", "authorization", "bearer ", "hf_", "sk-", "://",
    "passphrase", "x-amz-", "x-goog-", "signature=", "sig=", "policy=",
)  # fmt: skip

# A secret's place: quoted (also inside JSON inside JSON, ``b'a'``, ``SecretStr('a')``), a list
# (``api_key=['a', 'b']``), or a word.
_VALUE: Final = (
    r"""(?:(?:[A-Za-z]{1,20}\(|[bru]{1,2})?(?:\\?"[^"]*"?|'[^']*'?)|\[[^\]]*\]?|[^\s,;&'"()\[\]{}]+)"""
)

# ``api_key=...``, ``"hf_token": ...``, ``HF_TOKEN=...``. Not ``max_num_batched_tokens=8192``, not
# ``tokenizer=...``, not ``KeyError: ...``.
_NAMED: Final = (
    r"""(?P<name>(?:[Aa][Pp][Ii]|[Aa]ccess|[Ss]ecret|[Pp]rivate|[Aa]uth|[Mm]aster|[Ss]igning)[-_ ]?[Kk]ey"""
    r"""|[Tt]oken|[Ss]ecret|[Pp]ass(?:word|wd)|[Cc]redentials?"""
    r"""|(?:KEY|TOKEN(?!S|IZER)|SECRET|PASSW(?:OR)?D|CREDENTIAL)[A-Z0-9_]{0,40})"""
    r"""(?P<sep>\\?["']?[ \t]{0,4}[:=][ \t]{0,4})(?P<value>""" + _VALUE + ")"
)  # fmt: skip

_FLAG_ALONE: Final = r"(?i:(?<![\w-])--(?!-)[\w.-]{0,40}(?:key|token|secret|password|passwd|passphrase))"
# ``--api-key a b`` (vLLM takes several), ``--hf-token x``, ``--ssl-keyfile-password x``; in the repr of a
# list: ``'--api-key', 'a', 'b'``.
_FLAG: Final = (
    r"(?P<name>" + _FLAG_ALONE + r")(?P<values>=" + _VALUE + r"|(?:[ \t]{1,4}(?!-)" + _VALUE + ")+"
    r"""|(?P<quote>\\?["'])(?:,[ \t]{0,4}\\?["'](?!-)[^"']*["']?)+)"""
)
_BEARER: Final = r"(?P<name>\b[Bb]earer[ \t]{1,4})[A-Za-z0-9._~+/=-]{6,}"
_AUTHORIZATION: Final = (
    r"""(?P<name>[Aa]uthorization\\?["']?[ \t]{0,4}[:=][ \t]{0,4}\\?["']?[ \t]{0,4}"""
    r"""(?:[Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest)[ \t]{1,4})[^\s,;&'"()\[\]{}]+"""
)
# A Hugging Face token has 34 letters and digits; ``hf_overrides`` has neither digits nor capitals.
_HUB_TOKEN: Final = r"(?<![A-Za-z0-9])hf_(?:(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{8,}|[A-Za-z0-9]{24,})"
_API_KEY: Final = r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{6,}"
# What signs an address for object stores: S3, CloudFront, Google's, Azure's.
_SIGNED: Final = (
    r"(?P<name>(?i:[?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|policy|key-pair-id)=))"
    r"[^&\s'\"]+"
)
_USER: Final = r"://[^\s/'\"]*@"

# What stands where a secret could and is none: ``api_key=None``, ``'token': True``, ``--api-key: expected
# at least one argument``, ``user credentials: No such process``.
_HARMLESS: Final = frozenset({"", "none", "null", "true", "false", "[]", "expected", "no", "not", HIDDEN})
# ``eos_token: 2`` is one of the vocabulary's.
_TOKEN_ID_DIGITS: Final = 7


def redact(text: str) -> str:
    """Return the text with ``***`` in place of each secret; the same text when it holds none."""
    lowered = text.lower()
    for trigger in _TRIGGERS:
        if trigger in lowered:
            break
    else:
        return text
    for pattern, replacement in _substitutions():
        text = pattern.sub(replacement, text)
    return text


def redact_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command's arguments with ``***`` in place of each secret.

    Args:
        command: The program and its arguments, as the system keeps them.
    """
    flag = _compiled(_FLAG_ALONE)
    kept: list[str] = []
    secret = False
    for argument in command:
        if argument.startswith("-"):
            secret = flag.fullmatch(argument) is not None
            kept.append(redact(argument))
        else:
            kept.append(HIDDEN if secret else redact(argument))
    return tuple(kept)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@cache
def _substitutions() -> tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]:
    return (
        (_compiled(_FLAG), _hide_values),
        (_compiled(_AUTHORIZATION), rf"\g<name>{HIDDEN}"),
        (_compiled(_BEARER), rf"\g<name>{HIDDEN}"),
        (_compiled(_NAMED), _hide_value),
        (_compiled(_SIGNED), rf"\g<name>{HIDDEN}"),
        (_compiled(_USER), f"://{HIDDEN}@"),
        (_compiled(_HUB_TOKEN), f"hf_{HIDDEN}"),
        (_compiled(_API_KEY), f"sk-{HIDDEN}"),
    )


def _hide_values(match: re.Match[str]) -> str:
    if quote := match["quote"]:
        return f"{match['name']}{quote}, {quote}{HIDDEN}{quote}"
    between = match["values"][0]
    return f"{match['name']}{between}{HIDDEN}"


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    bare = value.strip("\\\"'")
    is_id = match["name"].lower().startswith("token") and bare.isdigit() and len(bare) <= _TOKEN_ID_DIGITS
    if is_id or bare.lower() in _HARMLESS:
        return match[0]
    quote = value[: len(value) - len(value.lstrip("\\\"'"))]
    return f"{match['name']}{match['sep']}{quote}{HIDDEN}{quote}"
