"""Makes the models that the real servers load: random Llamas, written with nothing but the standard library.

Usage: python models.py DIRECTORY
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 1  # of what is written below; a directory of another version is made anew
SPECIAL = ("<s>", "</s>", "<unk>")
_BLOCK_VALUES = 2**16  # random weights are drawn once and repeated: 300 MB in a second
_ONE = struct.pack("<H", 0x3F80)  # 1.0 as bfloat16


@dataclass(frozen=True, kw_only=True)
class Llama:
    """The sizes of a Llama. ``shards`` is the number of checkpoint files."""

    hidden: int = 64
    intermediate: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    positions: int = 2048
    vocabulary: int = 512
    shards: int = 1


MODELS: Mapping[str, Llama] = {
    "tiny": Llama(),
    # 0.6 GB: loading takes 2 to 3 seconds, long enough for something to happen meanwhile.
    "big": Llama(hidden=2048, intermediate=8192, layers=4, heads=16, kv_heads=4, head_dim=128, shards=4),
    # 32 layers x 2 heads x 32 wide, keys and values, 2 bytes each: 8 KiB a token, 2 GiB for one request.
    "long": Llama(layers=32, positions=262_144),
    "corrupt": Llama(),
}


def make(directory: Path) -> None:
    """Write every model that is not there yet."""
    for name, llama in MODELS.items():
        path = directory / name
        stamp = path / "made"
        if stamp.exists() and stamp.read_text() == str(VERSION):
            continue
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        _write_config(path, llama)
        _write_tokenizer(path)
        _write_weights(path, llama)
        if name == "corrupt":
            _damage(path / "model.safetensors")
        stamp.write_text(str(VERSION))


def _write_config(path: Path, llama: Llama) -> None:
    _dump(
        path / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "head_dim": llama.head_dim,
            "hidden_act": "silu",
            "hidden_size": llama.hidden,
            "intermediate_size": llama.intermediate,
            "max_position_embeddings": llama.positions,
            "num_attention_heads": llama.heads,
            "num_hidden_layers": llama.layers,
            "num_key_value_heads": llama.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "vocab_size": llama.vocabulary,
        },
    )


def _write_tokenizer(path: Path) -> None:
    """A byte-level tokenizer without merges: every byte is a token of its own."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *_byte_letters()))}
    added = [
        {"id": vocabulary[token], "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in SPECIAL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    _dump(
        path / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        },
    )
    names = dict(zip(("bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    _dump(
        path / "tokenizer_config.json",
        {**names, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template},
    )


def _byte_letters() -> Iterator[str]:
    """GPT-2's letters for the 256 bytes: printable ones as they are, the others from U+0100 on."""
    shifted = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            yield chr(byte)
        else:
            yield chr(256 + shifted)
            shifted += 1


def _write_weights(path: Path, llama: Llama) -> None:
    tensors = list(_tensors(llama))
    if llama.shards == 1:
        _write_shard(path / "model.safetensors", tensors)
        return
    index: dict[str, str] = {}
    for shard in range(llama.shards):
        name = f"model-{shard + 1:05}-of-{llama.shards:05}.safetensors"
        part = tensors[shard :: llama.shards]
        _write_shard(path / name, part)
        index |= dict.fromkeys((tensor for tensor, _ in part), name)
    total = sum(_bytes(shape) for _, shape in tensors)
    _dump(path / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def _tensors(llama: Llama) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = llama.heads * llama.head_dim, llama.kv_heads * llama.head_dim
    yield "model.embed_tokens.weight", (llama.vocabulary, llama.hidden)
    for number in range(llama.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (llama.hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, llama.hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, llama.hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, llama.hidden)
        yield f"{layer}.self_attn.o_proj.weight", (llama.hidden, queries)
        yield f"{layer}.post_attention_layernorm.weight", (llama.hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (llama.intermediate, llama.hidden)
        yield f"{layer}.mlp.up_proj.weight", (llama.intermediate, llama.hidden)
        yield f"{layer}.mlp.down_proj.weight", (llama.hidden, llama.intermediate)
    yield "model.norm.weight", (llama.hidden,)
    yield "lm_head.weight", (llama.vocabulary, llama.hidden)


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors:
        begin, end = end, end + _bytes(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    block = _random_block()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors:
            size = _bytes(shape)
            source = block if len(shape) == 2 else _ONE * (size // 2)
            for start in range(0, size, len(source)):
                file.write(source[: size - start])


def _random_block() -> bytes:
    """Bfloat16 numbers around zero, as Llama's own initialisation would draw them."""
    draw = random.Random(0)
    return b"".join(struct.pack("<f", draw.gauss(0, 0.02))[2:] for _ in range(_BLOCK_VALUES))


def _bytes(shape: tuple[int, ...]) -> int:
    size = 2
    for side in shape:
        size *= side
    return size


def _damage(path: Path) -> None:
    """Cut a checkpoint in half, as an interrupted download leaves it."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
