"""``vllm-startup markers``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from vllm_startup._cli._output import clean, say, say_json
from vllm_startup._cli._status import Exit, UsageError

if TYPE_CHECKING:
    from vllm_startup._drift import Check, Drifted, Text

DESCRIPTION: Final = """\
Compare the texts by which phases and causes are told with a vLLM's sources, and
list those that are no longer there: what to look at when a new vLLM comes out.
Without --check, list the texts.
"""
EPILOG: Final = """\
examples:
  vllm-startup markers --check
  vllm-startup markers --check /opt/vllm/bin/python
  vllm-startup markers --check ~/src/vllm

exit status:
  0    every text is where it was
  1    some have drifted
  2    wrong usage, or no vLLM there
"""

_HERE: Final = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--check",
        nargs="?",
        const=_HERE,
        metavar="PATH_OR_PYTHON",
        help="vLLM's sources, an environment, or a Python that can import it; else this one",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(options: argparse.Namespace) -> int:
    """List the texts, or compare them."""
    from vllm_startup import _drift

    if options.check is None:
        _list(_drift.texts(), as_json=options.json)
        return Exit.READY
    try:
        found = _drift.check(_drift.find(options.check or None))
    except _drift.NotVllmError as error:
        raise UsageError(f"--check: {error}; give vLLM's directory, or the Python that runs it") from error
    if options.json:
        _say_json(found)
    else:
        _say(found)
    return Exit.FAILED if found.drifted else Exit.READY


def _list(texts: tuple[Text, ...], *, as_json: bool) -> None:
    if as_json:
        import json

        say_json(json.dumps([{"name": text.name, "text": text.literal} for text in texts], indent=2))
        return
    for text in texts:
        say(f"{text.name:28} {_range(text):16} {clean(text.literal, 160)}")


def _range(text: Text) -> str:
    since = ".".join(map(str, text.since or ())) or "ever"
    return f"{since} to {'.'.join(map(str, text.until)) if text.until else 'now'}"


def _say(found: Check) -> None:
    where = f"vLLM {found.version or 'of an unknown version'} ({found.files} files in {found.package})"
    say(f"{found.checked} texts compared with {where}: {len(found.drifted) or 'none'} drifted")
    for place, group in _by_file(found.drifted).items():
        say("")
        say(place)
        for each in group:
            say(f"  {each.text.name}: {clean(each.text.literal, 160)!r}")
            if each.nearest is not None:
                say(f"    nearest, line {(each.place or '').rpartition(':')[2]}: {each.nearest!r}")


def _by_file(drifted: tuple[Drifted, ...]) -> dict[str, list[Drifted]]:
    groups: dict[str, list[Drifted]] = {}
    for each in sorted(drifted, key=lambda one: (one.place is None, one.place or "")):
        place = (each.place or "").rpartition(":")[0] or "nowhere, nor anything like it"
        groups.setdefault(place, []).append(each)
    return groups


def _say_json(found: Check) -> None:
    import json

    drifted = [
        {"name": each.text.name, "text": each.text.literal, "nearest": each.nearest, "place": each.place}
        for each in found.drifted
    ]
    result = {
        "vllm": found.package,
        "version": found.version,
        "files": found.files,
        "checked": found.checked,
        "drifted": drifted,
    }
    say_json(json.dumps(result, indent=2))
