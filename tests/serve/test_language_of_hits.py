"""The language of a hit in the terminal, on the page, in the API and for assistants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra: pip install 'dupmae-ir[mcp]'")

from mcp import Client as Assistant
from support.lexical_models import make_lexical
from support.serving import serving

from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.index.format.joined import JoinedTexts
from dupmae_ir.search.__main__ import main as search
from dupmae_ir.serve.mcp import make_tools

TEXTS = {
    "boiler": "The boiler shows an error if there is no water in the pipe.",
    "bees": "Bees find their way home by the position of the sun, even if clouds hide it.",
    "pipe": "A pipe connects the output of one program to the input of another one.",
    "vertrag": "Wer den Vertrag nicht mehr will, kann ihn mit einer Frist von drei Monaten kündigen.",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    corpus = folder / "c.jsonl"
    lines = [json.dumps({"id": docid, "text": text}) + "\n" for docid, text in TEXTS.items()]
    corpus.write_text("".join(lines), encoding="utf-8")
    (folder / "m").mkdir()
    model = make_lexical(folder / "m", buckets=1 << 17, top_k=99)
    encode(EncodeConfig(corpus=str(corpus), index=str(folder / "I"), model=str(model), quiet=True))
    return folder / "I"


def test_each_hit_says_its_language(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(index) as client:
        found = client.post("/api/search", {"query": "Vertrag", "hits": 4}).json
        hits = {hit["docid"]: hit["language"] for hit in found["results"][0]["hits"]}
        assert hits["vertrag"] == "German"
        assert hits["bees"] == "English"
        page = client.get("/?q=Vertrag&hits=4").text
        assert '<span class="chip language">German</span>' in page
        assert "By meaning: no word of the query is in it." in page

        async def ask() -> list[dict[str, object]]:
            async with Assistant(make_tools(client.service)) as assistant:
                answer = await assistant.call_tool("search", {"query": "Vertrag"})
                return answer.structured_content["hits"]

        for hit in client.loop.run_until_complete(ask()):
            assert hit["language"] == hits[hit["docid"]]
            assert bool(hit["matched"]) == (hit["docid"] == "vertrag")

    assert search(["--index", str(index), "--query", "Vertrag", "--hits", "4"]) == 0
    said = capsys.readouterr().out
    assert "vertrag (German)" in said
    assert said.count("by meaning: no word of the query is in it") == 3
    assert search(["--index", str(index), "--query", "Vertrag", "--filter", 'lang = "de"']) == 0
    assert "bees" not in capsys.readouterr().out


def test_hits_are_named_without_joining_columns(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining one reads the values of all documents: 7 ms a hit with 4,000 files."""
    with serving(index) as client:
        client.post("/api/search", {"query": "Vertrag"})  # counts files and languages, once
        monkeypatch.setattr(JoinedTexts, "column", None)
        found = client.post("/api/search", {"query": "Bees", "hits": 4}).json
        assert {hit["language"] for hit in found["results"][0]["hits"]} == {"German", "English"}


def test_an_index_of_one_language_does_not_say_it(tmp_path: Path, index: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps({"id": "bees", "text": TEXTS["bees"]}))
    model = index.parent / "m" / "model"
    encode(
        EncodeConfig(corpus=str(corpus), index=str(tmp_path / "I"), model=str(model), quiet=True)
    )
    with serving(tmp_path / "I") as client:
        found = client.post("/api/search", {"query": "bees"}).json
        assert found["results"][0]["hits"][0]["language"] is None
        assert "chip language" not in client.get("/?q=bees").text
