"""Whether the model is where the arguments say, as far as that is a folder or the server is offline."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.launch import Asked
from vllm_startup._preflight.paths import exists, hidden, is_file, is_folder
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes._base import Cause, Evidence
from vllm_startup.causes._checkpoint import WeightsMissing
from vllm_startup.causes._host import path_not_readable
from vllm_startup.causes._model_access import model_not_cached, model_not_found
from vllm_startup.probes._cache import hub_folders

_CONFIGS: Final = ("config.json", "params.json")
_OFFLINE: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # the first that is set counts
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})
_INDEX: Final = "model.safetensors.index.json"
_MOST_INDEX_BYTES: Final = 64 * 1024 * 1024
_LOADED_BY_INDEX: Final = frozenset({None, "auto", "safetensors", "hf"})
_MOST_NAMED: Final = 5


def model(facts: Facts) -> Iterator[Cause]:
    """Whether a folder holds a model, or the cache the model that an offline server asks for."""
    asked, environ = facts.asked(), facts.server().environ
    name = asked.arguments.model
    if name is None:
        raise NotCheckedError("the command names no model")
    if "://" in name or name.endswith(".gguf") or asked.has("--hf-config-path", "--config-format", "--omni"):
        raise NotCheckedError("where the model's configuration lies is left to vLLM")
    path = Path(facts.server().own_cwd, name)
    local = name.startswith(("/", "./", "../", "~")) or name in (".", "..")
    if is_folder(path):
        yield from _folder(name, path, asked)
    elif is_file(path):
        raise NotCheckedError("the model is one file")
    elif (code := hidden(path)) is not None:
        yield path_not_readable(str(path), code)
    elif local:
        yield attrs.evolve(model_not_found(name), evidence=(Evidence(text=_nearest(path)),))
    else:
        yield from _of_hub(name, asked, environ)


def _folder(name: str, path: Path, asked: Asked) -> Iterator[Cause]:
    try:
        held = set(os.listdir(path))  # noqa: PTH208 - names are enough
    except OSError as error:
        yield path_not_readable(str(path), error.errno)
        return
    if any(file.endswith(".gguf") for file in held):
        raise NotCheckedError("the model is in GGUF files")
    if held.isdisjoint(_CONFIGS):
        what = "is empty" if not held else f"holds {len(held)} entries, none of them {' or '.join(_CONFIGS)}"
        yield attrs.evolve(model_not_found(name), evidence=(Evidence(text=f"{path} {what}"),))
        return
    for config in sorted(held.intersection(_CONFIGS)):
        if not os.access(path / config, os.R_OK):
            broken = not exists(path / config)
            yield path_not_readable(str(path / config), errno.ENOENT if broken else errno.EACCES)
            return
    if asked.word("--load-format") in _LOADED_BY_INDEX:
        yield from _shards(name, path, held)


def _shards(name: str, path: Path, held: set[str]) -> Iterator[Cause]:
    """Whether the files are there that the index of the weights names: a download may have been cut."""
    if _INDEX not in held:
        return
    try:
        with (path / _INDEX).open("rb") as file:
            index = json.loads(file.read(_MOST_INDEX_BYTES))
        named = sorted({str(file) for file in index["weight_map"].values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    missing = tuple(file for file in named if not exists(path / file))
    if missing:
        shown = ", ".join(missing[:_MOST_NAMED]) + (", …" if len(missing) > _MOST_NAMED else "")
        yield WeightsMissing(
            message=f"{len(missing)} of {len(named)} files of weights are missing",
            hint="download or copy the model again: the files that are there are kept",
            evidence=(Evidence(text=f"{path / _INDEX} names {shown}"),),
            confidence="likely",
            model=name,
            files=missing,
            retryable=False,
        )


def _of_hub(name: str, asked: Asked, environ: Mapping[str, str]) -> Iterator[Cause]:
    if name.count("/") > 1:
        seen = Evidence(text=f"{name} is no folder here, and no name that the hub could know")
        yield attrs.evolve(model_not_found(name), evidence=(seen,), confidence="certain")
        return
    if ":" in name or environ.get("VLLM_USE_MODELSCOPE") or environ.get("VLLM_MODEL_REDIRECT_PATH"):
        raise NotCheckedError("where the model comes from is left to vLLM")
    variable = next((variable for variable in _OFFLINE if environ.get(variable)), None)
    offline = variable is not None and environ[variable].upper() in _TRUE
    places = hub_places(asked, environ)
    snapshots = [Path(place, f"models--{name.replace('/', '--')}", "snapshots") for place in places]
    kept = [each for place in snapshots for each in _subfolders(place)]
    if not any(exists(each / config) for each in kept for config in _CONFIGS):
        if not offline:
            raise NotCheckedError("it is not in the cache, and the hub is not asked")
        texts = [
            f"{variable}={environ[str(variable)]}",
            *(f"{place} does not hold {name}" for place in places),
        ]
        yield attrs.evolve(model_not_cached(name), evidence=tuple(Evidence(text=text) for text in texts))
    elif offline and len(kept) == 1:
        yield from _folder(name, kept[0], asked)


def hub_places(asked: Asked, environ: Mapping[str, str]) -> list[str]:
    """Where the hub's files are kept: its cache, and what ``--download-dir`` names."""
    home = environ.get("HOME", "/")
    told = asked.word("--download-dir")
    cache, *_ = hub_folders(environ, home=home)
    return [cache, told] if told else [cache]


def is_cached(name: str, places: list[str]) -> bool:
    """Whether some revision of a model is in one of the caches."""
    folder = f"models--{name.replace('/', '--')}"
    return any(_subfolders(Path(place, folder, "snapshots")) for place in places)


def _subfolders(place: Path) -> list[Path]:
    try:
        return sorted(each for each in place.iterdir() if is_folder(each))
    except OSError:
        return []


def _nearest(path: Path) -> str:
    """How far a path goes."""
    there = next((each for each in path.parents if is_folder(each)), Path("/"))
    return f"{path} does not exist; {there} does"
