"""The README's table of causes is the one that the code gives."""

from __future__ import annotations

from pathlib import Path

from vllm_startup import causes
from vllm_startup.causes import Cause
from vllm_startup.causes._table import BEGIN, END, table

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_has_the_table() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count(BEGIN) == 1
    block = text.partition(BEGIN)[2].partition(END)[0]
    assert block.strip() == table(), "put what vllm_startup.causes._table.table() gives there"


def test_every_kind_has_a_row_and_a_sentence() -> None:
    rows = [row.split(" | ") for row in table().splitlines()[2:]]
    assert len(rows) == 83
    assert all(row[3].removesuffix(" |").strip() for row in rows)
    kinds = {
        value.kind
        for value in (getattr(causes, name) for name in causes.__all__)
        if isinstance(value, type) and issubclass(value, Cause) and not value.__subclasses__()
    }
    assert {row[1].strip("`") for row in rows} == kinds


def test_a_field_of_a_kind_stands_in_its_row() -> None:
    assert (
        "| `kv_cache_too_small` | `max_model_len`, `needed_bytes`, `available_bytes`, `fits_len` |" in table()
    )
