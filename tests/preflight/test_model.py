"""A model in a folder, and one in the hub's cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from installs import facts
from users import as_nobody

from vllm_startup._preflight import check_model
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes import Cause, ModelNotCached, ModelNotFound, PathNotReadable, WeightsMissing


def check(*words: str | Path, cwd: Path | str = "/", **environ: str) -> list[Cause]:
    return list(check_model.model(facts(["vllm", "serve", *words], environ, cwd=cwd)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make(tmp_path / "model")


def make(folder: Path, *shards: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    if shards:
        index = {"weight_map": {f"layer.{n}": shard for n, shard in enumerate(shards)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for shard in shards:
            (folder / shard).touch()
    return folder


def test_a_folder_with_a_configuration_is_a_model(model: Path) -> None:
    assert check(model) == []
    assert check("model", cwd=model.parent) == []
    assert check("--model", "./model/", cwd=model.parent) == []
    (model / "config.json").rename(model / "params.json")
    assert check(model) == []


@pytest.mark.parametrize("name", ["/models/llama", "./llama", "../llama", "~/llama"])
def test_a_path_that_is_not_there(tmp_path: Path, name: str) -> None:
    [found] = check(name, cwd=tmp_path)
    assert isinstance(found, ModelNotFound)
    assert (found.model, found.confidence) == (name, "certain")
    assert found.hint == "correct the path: a folder with config.json, in a container as it is mounted there"


def test_how_far_a_path_goes_is_told(tmp_path: Path) -> None:
    [found] = check(tmp_path / "models" / "llama" / "8b")
    assert found.evidence[0].text == f"{tmp_path}/models/llama/8b does not exist; {tmp_path} does"


def test_a_folder_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    [found] = check(tmp_path)
    assert isinstance(found, ModelNotFound)
    assert found.evidence[0].text == f"{tmp_path} is empty"
    (tmp_path / "snapshots").mkdir()
    [found] = check(tmp_path)
    assert found.evidence[0].text == f"{tmp_path} holds 1 entries, none of them config.json or params.json"


def test_a_configuration_whose_file_is_gone_cannot_be_read(model: Path) -> None:
    """A cache that was moved without what its links point to."""
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("/gone/blobs/1234")
    [found] = check(model)
    assert isinstance(found, PathNotReadable)
    assert (found.path, found.errno) == (str(model / "config.json"), 2)


def test_a_folder_of_a_download_that_was_cut(tmp_path: Path) -> None:
    shards = [f"model-{n:05}-of-00008.safetensors" for n in range(1, 9)]
    model = make(tmp_path / "model", *shards)
    assert check(model) == []
    for shard in shards[2:]:
        (model / shard).unlink()
    (model / shards[2]).symlink_to("/gone/blob")
    [found] = check(model)
    assert isinstance(found, WeightsMissing)
    assert found.files == tuple(shards[2:])
    assert (found.message, found.confidence) == ("6 of 8 files of weights are missing", "likely")
    assert check(model, "--load-format", "dummy") == []


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": []}', "\x00"])
def test_an_index_that_is_garbage_claims_nothing(model: Path, index: str) -> None:
    (model / "model.safetensors.index.json").write_text(index)
    assert check(model) == []


def test_a_folder_that_may_not_be_read(open_path: Path) -> None:
    model = make(open_path / "model")
    model.chmod(0o700)
    [found] = as_nobody(lambda: check(model))
    [inside] = as_nobody(lambda: check(model / "inside"))
    assert isinstance(found, PathNotReadable)
    assert (found.path, found.errno) == (str(model), 13)
    assert isinstance(inside, PathNotReadable)


def test_a_configuration_that_may_not_be_read(open_path: Path) -> None:
    model = make(open_path / "model")
    (model / "config.json").chmod(0o600)
    [found] = as_nobody(lambda: check(model))
    assert isinstance(found, PathNotReadable)
    assert (found.path, found.errno) == (str(model / "config.json"), 13)


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "cd {} && exec vllm serve ./model"],
        ["sh", "-c", "cd {}; cd model; exec vllm serve ../model"],
        ["env", "--chdir={}", "vllm", "serve", "./model"],
        ["uv", "run", "--directory", "{}", "vllm", "serve", "./model"],
    ],
)
def test_a_path_is_looked_for_from_where_the_server_runs(model: Path, command: list[str]) -> None:
    words = [word.format(model.parent) for word in command]
    assert list(check_model.model(facts(words))) == []


@pytest.mark.parametrize("folder", ['"$(dirname "$0")"', "-", "`pwd`"])
def test_a_folder_that_only_a_shell_knows_is_not_guessed(folder: str) -> None:
    with pytest.raises(NotCheckedError, match="a folder that only a shell knows"):
        list(check_model.model(facts(["sh", "-c", f"cd {folder}; exec vllm serve ./model"])))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "names no model"),
        (["s3://bucket/model"], "left to vLLM"),
        (["org/name-GGUF/file.gguf"], "left to vLLM"),
        (["m", "--hf-config-path", "x"], "left to vLLM"),
        (["org/name:Q4_K_M"], "left to vLLM"),
        (["org/name"], "not in the cache, and the hub is not asked"),
    ],
)
def test_what_vllm_alone_can_know_is_not_claimed(words: list[str], reason: str) -> None:
    with pytest.raises(NotCheckedError, match=reason):
        check(*words, HOME="/gone")


def test_a_model_that_is_one_file_is_left_to_vllm(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(NotCheckedError, match="the model is one file"):
        check(tmp_path / "model.bin")


def test_models_in_files_of_their_own_format(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(NotCheckedError, match="GGUF"):
        check(tmp_path)


def test_a_name_with_two_slashes_that_is_no_folder_is_no_name_either() -> None:
    [found] = check("models/meta/llama")
    assert isinstance(found, ModelNotFound)
    assert found.confidence == "certain"


# --- the hub's cache, while the hub is switched off ------------------------------------------------


def cached(hub: Path, name: str = "Qwen/Qwen3-8B", *shards: str) -> Path:
    return make(hub / f"models--{name.replace('/', '--')}" / "snapshots" / "0123abc", *shards)


@pytest.mark.parametrize(
    ("variable", "value", "offline"),
    [
        ("HF_HUB_OFFLINE", "1", True),
        ("HF_HUB_OFFLINE", "yes", True),
        ("TRANSFORMERS_OFFLINE", "true", True),
        ("HF_HUB_OFFLINE", "0", False),
        ("HF_HUB_OFFLINE", "", False),
    ],
)
def test_offline_the_model_must_be_in_the_cache(variable: str, value: str, offline: bool) -> None:
    environ = {variable: value, "HOME": "/gone"}
    if not offline:
        with pytest.raises(NotCheckedError):
            check("Qwen/Qwen3-8B", **environ)
        return
    [found] = check("Qwen/Qwen3-8B", **environ)
    assert isinstance(found, ModelNotCached)
    assert (found.model, found.confidence) == ("Qwen/Qwen3-8B", "certain")
    assert [item.text for item in found.evidence] == [
        f"{variable}={value}",
        "/gone/.cache/huggingface/hub does not hold Qwen/Qwen3-8B",
    ]


def test_the_first_of_the_two_variables_that_is_set_counts() -> None:
    with pytest.raises(NotCheckedError):
        check("Qwen/Qwen3-8B", HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="1", HOME="/gone")


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HOME", ".cache/huggingface/hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HF_HOME", "hub"),
        ("HF_HUB_CACHE", ""),
    ],
)
def test_the_cache_is_where_the_environment_puts_it(tmp_path: Path, variable: str, below: str) -> None:
    cached(tmp_path / below)
    environ = {"HOME": "/gone", variable: str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert check("Qwen/Qwen3-8B", **environ) == []
    assert len(check("Qwen/Qwen3-32B", **environ)) == 1


def test_a_download_dir_may_hold_it_too(tmp_path: Path) -> None:
    cached(tmp_path)
    words = ["Qwen/Qwen3-8B", "--download-dir", str(tmp_path)]
    assert check(*words, HF_HUB_OFFLINE="1", HOME="/gone") == []


def test_a_cache_that_was_copied_in_part(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "Qwen/Qwen3-8B", "a.safetensors", "b.safetensors")
    (snapshot / "b.safetensors").unlink()
    [found] = check("Qwen/Qwen3-8B", HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="1")
    assert isinstance(found, WeightsMissing)
    assert found.files == ("b.safetensors",)
    assert check("Qwen/Qwen3-8B", HF_HUB_CACHE=str(tmp_path)) == []  # online it is fetched


def test_online_a_model_in_the_cache_is_there(tmp_path: Path) -> None:
    cached(tmp_path)
    assert check("Qwen/Qwen3-8B", HF_HUB_CACHE=str(tmp_path)) == []


def test_models_from_elsewhere_are_not_looked_for_in_the_hubs_cache() -> None:
    with pytest.raises(NotCheckedError, match="left to vLLM"):
        check("Qwen/Qwen3-8B", VLLM_USE_MODELSCOPE="True", HF_HUB_OFFLINE="1")
