"""Families of models behind an index: encoded, searched, explained, changed, served, loaded into a server."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.bge_models import write_bge_m3
from support.model_families import gemma3, model2vec, qwen3, router
from support.serving import serving

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import DupmaeError
from dupmae_ir.export import ExportConfig
from dupmae_ir.export import run as export
from dupmae_ir.index.config import PostingsConfig
from dupmae_ir.index.run import run_postings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import LoadConfig
from dupmae_ir.servers.load import run as load

pytestmark = pytest.mark.jvm

WORDS = [
    "the",
    "cat",
    "dog",
    "fox",
    "heap",
    "queue",
    "sorts",
    "list",
    "tree",
    "graph",
    "quick",
    "brown",
]
QUERIES = ["quick brown fox", "heap sorts", "the dog"]


class Family(NamedTuple):
    """How a family is made and encoded, and the part that ``export`` writes (None: it is refused)."""

    write: Any
    flags: dict[str, Any]
    modes: tuple[str, ...]
    exported: str | None = None


LEXICAL = {"head": "lexical"}
ALL = ("dense", "impact", "hybrid")
FAMILIES = {
    "inference-free": Family(router, {"parts": "ot"}, ("impact",)),
    "static": Family(model2vec, {"parts": "cls"}, ("dense",)),
    "static, words": Family(model2vec, LEXICAL, ALL),
    "Qwen3": Family(qwen3, {"parts": "cls"}, ("dense",), "cls"),
    "Qwen3, words": Family(qwen3, LEXICAL, ALL, "cls"),
    "Gemma3, words, fewer dimensions": Family(gemma3, {**LEXICAL, "dimensions": 9}, ALL, "cls"),
    "BGE-M3": Family(write_bge_m3, {}, ALL, "cls"),
}

BY_NIGHT = ("Qwen3", "Gemma3, words, fewer dimensions")
"""Of which "Qwen3, words" has every step."""


def lines(path: Path, first: int, count: int) -> str:
    rng = np.random.default_rng(first)
    texts = {
        f"d{n}": " ".join(rng.choice(WORDS, rng.integers(2, 9)))
        for n in range(first, first + count)
    }
    path.write_text(
        "".join(json.dumps({"_id": d, "text": text}) + "\n" for d, text in texts.items())
    )
    return str(path)


def found(searcher: Searcher, mode: str) -> list[list[tuple[str, float]]]:
    return [
        [(hit.docid, hit.score) for hit in searcher.search(query, 6, mode)] for query in QUERIES
    ]


def servers(folder: Path) -> list[str]:
    """The servers that run in this process and are installed. PostgreSQL has tests/servers/test_bge_m3.py."""
    packages = {"qdrant": "qdrant_client", "milvus": "milvus_lite"}
    return [
        f"{name}://{folder / name}.db" for name, package in packages.items() if find_spec(package)
    ]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in BY_NIGHT else name
        for name in FAMILIES
    ],
)
def test_a_family_is_served_changed_and_loaded(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    index = tmp_path / "I"
    model = str(family.write(tmp_path / "m"))
    corpus = lines(tmp_path / "c.jsonl", 0, 30)
    encode(EncodeConfig(corpus=corpus, index=str(index), model=model, quiet=True, **family.flags))
    if "impact" in family.modes:
        run_postings(PostingsConfig(index=str(index), quiet=True))
    with serving(index, writable=True) as client:
        written = {
            "documents": [
                {"docid": "new", "text": "zzz quick brown fox fox"},
                {"docid": "d3", "text": "heap"},
            ]
        }
        assert client.post("/api/indexes/I/documents", written).json["documents"] == 31
        searcher = Searcher.open(index)
        for mode in family.modes:
            wanted = found(searcher, mode)
            assert all(wanted), mode
            reply = client.post(
                "/api/search", {"query": QUERIES, "mode": mode, "hits": 6, "explain": True}
            )
            served = [
                [(h["docid"], h["score"]) for h in one["hits"]] for one in reply.json["results"]
            ]
            assert [[d for d, _ in one] for one in served] == [
                [d for d, _ in one] for one in wanted
            ], mode
            for one, other in zip(served, wanted, strict=True):
                np.testing.assert_allclose([s for _, s in one], [s for _, s in other], atol=1e-5)
        why = client.post("/api/explain", {"query": QUERIES[0], "docids": ["new"]}).json
        assert searcher.explain(QUERIES[0], "new").score == pytest.approx(
            why["documents"][0]["score"], abs=1e-5
        )
    for url in servers(tmp_path):
        assert (
            load(LoadConfig(index=str(index), to=url, table="mine", quiet=True))["written_now"]
            == 31
        )
        through = Searcher.open(index, server=url, table="mine")
        for mode in family.modes:
            assert found(through, mode) == found(searcher, mode), (url, mode)


@pytest.mark.parametrize(
    "name", [name for name in FAMILIES if FAMILIES[name].flags.get("head") is None]
)
def test_export_writes_it_or_says_why_not(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = str(family.write(tmp_path / "m"))
    output = tmp_path / "o"
    for part in ("cls", "ot"):
        config = ExportConfig(model=model, output=str(output / part), part=part, quiet=True)
        if part == family.exported:
            export(config)
            assert (output / part / "modules.json").is_file()
        else:
            with pytest.raises(DupmaeError):
                export(config)
