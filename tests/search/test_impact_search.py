"""``--impact-search``: byte-identical run files, without Java, and a reported reason for the choice."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.index_samples import first_segment
from support.search_samples import write_index

from dupmae_ir.device import pick_impact_search
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.mine import main as mine
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.lucene.impacts import ImpactSearcher
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.search.searcher import Searcher

pytestmark = pytest.mark.jvm
WORDS = [f"word{i}" for i in range(50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bare/ (no postings), index/ (with postings) of the same 250 passages, many of them copies; queries.jsonl."""
    where = tmp_path_factory.mktemp("engine")
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=8)) for _ in range(200)]
    texts += texts[:50]
    ids = [f"d{i}" for i in range(len(texts))]
    rng.shuffle(ids)
    write_index(where / "bare", ids, texts)
    shutil.copytree(where / "bare", where / "index")
    assert index_main(["postings", "--index", str(where / "index"), "--quiet"]) == 0
    queries = [{"_id": f"q{i}", "text": " ".join(rng.choices(WORDS, k=4))} for i in range(20)]
    queries += [{"_id": "blank", "text": " "}, {"_id": "alien", "text": "zyzzyva"}]
    (where / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    return where


def search(folder: Path, output: Path, *flags: str, index: str = "index") -> bytes:
    topics = ["--topics", str(folder / "queries.jsonl"), "--output", str(output)]
    assert main(["--index", str(folder / index), *topics, *flags]) == 0
    return output.read_bytes()


@pytest.mark.parametrize(
    "mode",
    [["--impact"], ["--hybrid"], ["--impact", "--raw-impacts"], ["--fusion", "interpolation"]],
)
@pytest.mark.parametrize("hits", ["3", "20", "1000"])
def test_the_run_file_is_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: list[str], hits: str
) -> None:
    lucene = search(
        folder, tmp_path / "lucene", *mode, "--hits", hits, "--quiet", "--impact-search", "lucene"
    )

    def java(*_: Any) -> None:
        raise AssertionError("Lucene was used")

    monkeypatch.setattr(ImpactSearcher, "__init__", java)
    for more in (["--impact-search", "postings"], ["--batch-size", "7", "--threads", "2"]):
        assert (
            search(folder, tmp_path / "postings", *mode, "--hits", hits, "--quiet", *more) == lucene
        )
    assert len(lucene.splitlines()) > 20


def test_no_java_is_started(folder: Path, tmp_path: Path) -> None:
    code = """
import sys
sys.modules["jnius"] = None  # an import of it fails
from dupmae_ir.search.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
    flags = [
        "--index",
        str(folder / "index"),
        "--topics",
        str(folder / "queries.jsonl"),
        "--impact",
        "--hits",
        "5",
        "--output",
        str(tmp_path / "run"),
    ]
    for engine, status in (("postings", 0), ("lucene", 1)):
        command = [sys.executable, "-c", code, *flags, "--impact-search", engine]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stderr
    assert "import of jnius halted" in result.stderr


def test_the_summary_names_the_engine_and_the_reason(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def chosen(*flags: str, index: str = "index") -> tuple[Any, Any]:
        capsys.readouterr()
        search(folder, tmp_path / "run", "--json", "--quiet", *flags, index=index)
        summary = json.loads(capsys.readouterr().out)
        return summary.get("impact_search"), summary.get("impact_search_reason")

    assert chosen() == ("postings", "postings and numba found")
    assert chosen("--impact-search", "lucene") == ("lucene", "asked for")
    assert chosen("--impact-search", "postings", "--impact") == ("postings", "asked for")
    assert chosen("--impact-search", "auto") == ("postings", "postings and numba found")
    assert chosen("--impact-search", "auto", index="bare") == (
        "lucene",
        f"no postings in {first_segment(folder / 'bare')}",
    )
    assert chosen("--dense") == (None, None)
    assert (
        main(
            [
                "--index",
                str(folder / "index"),
                "--query",
                "word1",
                "--json",
                "--impact-search",
                "auto",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["impact_search"] == "postings"
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "numba" else find(name, *a)
    )
    assert chosen("--impact-search", "auto") == ("lucene", "numba is not installed")


def damage_id(postings: Path) -> None:
    meta = json.loads((postings / "meta.json").read_text())
    (postings / "meta.json").write_text(json.dumps({**meta, "digest": "other"}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (damage_id, "was made from another index (digest differ)"),
        (lambda postings: (postings / "rows.npy").write_bytes(b""), "rows.npy"),
        (lambda postings: (postings / "meta.json").write_text("{"), "build them with"),
    ],
)
def test_unusable_postings_leave_the_search_to_lucene(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], says: str
) -> None:
    shutil.copytree(folder / "index", tmp_path / "index")
    expected = Searcher.open(tmp_path / "index").search("word1 word2", 20)
    change(first_segment(tmp_path / "index") / "postings")
    searcher = Searcher.open(tmp_path / "index")
    engine, reason = searcher.impact_search
    assert engine == "lucene"
    assert reason.startswith("the postings cannot be used: ")
    assert says in reason
    assert searcher.search("word1 word2", 20) == expected


def test_postings_that_the_manifest_does_not_list_are_not_used(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "bare", tmp_path / "index")
    shutil.copytree(
        first_segment(folder / "index") / "postings", first_segment(tmp_path / "index") / "postings"
    )
    engine, reason = Searcher.open(tmp_path / "index").impact_search
    assert (engine, "does not list its postings" in reason) == ("lucene", True)


def test_invalid_engines_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--topics", str(folder / "queries.jsonl"), "--output", str(tmp_path / "run")]
    for index, flags, says in (
        (
            "bare",
            ["--impact-search", "postings"],
            "has no postings; build them with: dupmae-ir index postings",
        ),
        (
            "index",
            ["--impact-search", "lucene", "--dense"],
            "--impact-search applies only without --bm25 and without --dense",
        ),
    ):
        assert main(["--index", str(folder / index), *out, *flags]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="use one of lucene, postings, auto"):
        pick_impact_search("tantivy", folder)
    with pytest.raises(UsageError, match="choose from lucene, postings, auto"):
        SearchSettings(impact_search="tantivy")


def test_one_searcher_changes_its_engine(folder: Path) -> None:
    lucene = Searcher.open(folder / "index", impact_search="lucene")
    postings = lucene.with_settings(impact_search="postings")
    assert lucene.search("word1 word2", 20, "impact") == postings.search(
        "word1 word2", 20, "impact"
    )
    assert postings.with_settings(threads=2).impact is postings.impact
    assert type(lucene.impact.segments[0].postings) is not type(
        postings.impact.segments[0].postings
    )


@pytest.mark.parametrize("parts", ["impact", "hybrid"])
def test_mining_finds_the_same_negatives(folder: Path, tmp_path: Path, parts: str) -> None:
    rng = random.Random(1)
    pairs = [
        {"query": " ".join(rng.choices(WORDS, k=4)), "positive": " ".join(rng.choices(WORDS, k=9))}
        for _ in range(60)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    mined = []
    for engine in ("lucene", "postings", "auto"):
        output = tmp_path / f"{engine}.jsonl"
        flags = [
            "--pairs",
            str(tmp_path / "pairs.jsonl"),
            "--by",
            "model",
            "--model",
            "testing:hashing",
            "--parts",
            parts,
            "--depth",
            "10",
            "--output",
            str(output),
            "--impact-search",
            engine,
            "--quiet",
        ]
        assert mine(flags) == 0
        mined.append(output.read_bytes())
    assert mined[0] == mined[1] == mined[2]
    assert (
        mine(
            [
                *flags[:2],
                "--by",
                "bm25",
                "--output",
                str(tmp_path / "o"),
                "--impact-search",
                "lucene",
            ]
        )
        == 2
    )


def test_the_index_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "bare", tmp_path / "I")
    assert index_main(["postings", "--index", str(tmp_path / "I"), "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    meta = json.loads((tmp_path / "I" / "meta.json").read_text())
    assert (summary["documents"], summary["postings"]) == (250, meta["postings"])
    assert summary["bytes"] == sum(
        p.stat().st_size for p in (first_segment(tmp_path / "I") / "postings").iterdir()
    )
    assert "postings of 250 documents" in err
    assert index_main(["verify", str(tmp_path / "I"), "--quiet"]) == 0  # nothing else was touched
    assert index_main(["postings", "--index", str(tmp_path / "none")]) == 2
    assert "no such index" in capsys.readouterr().err
