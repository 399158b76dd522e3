"""The search command on the command line: runs, single queries, reports and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.search_samples import write_index

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.rotated import build_rotated
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import build_bm25
from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.fusion import rrf
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Hit, Query

pytestmark = pytest.mark.jvm

COLLECTION = [
    Document("threading.Thread.join", "Wait until the thread terminates.", "join"),
    Document("threading.Lock", "A lock that one thread acquires and releases.", "Lock"),
    Document("os.fork", "Fork a child process."),
    Document("queue.Queue", "A queue for threads: put, get, wait.", "Queue"),
    Document("q2", "A document with the id of a topic about a lock and a thread."),
    Document("empty", ""),
]
TOPICS = [
    Query("q1", "wait for the thread"),
    Query("q2", "a lock and a thread"),
    Query("10", "fork"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """index/ (both parts), bm25/, corpus.jsonl, queries.jsonl, qrels.txt."""
    where = tmp_path_factory.mktemp("search")
    write_index(where / "index", [d.docid for d in COLLECTION], [d.joined() for d in COLLECTION])
    build_bm25(COLLECTION, where / "bm25")
    rows = [{"_id": d.docid, "title": d.title, "text": d.text} for d in COLLECTION]
    (where / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (where / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": q.qid, "text": q.text}) + "\n" for q in TOPICS)
    )
    (where / "qrels.txt").write_text("q2 0 threading.Lock 1\n10 0 os.fork 1\n77 0 os.fork 1\n")
    return where


@pytest.fixture(scope="module")
def searcher(folder: Path) -> Searcher:
    return Searcher.open(folder / "index")


def search(folder: Path, *flags: str) -> int:
    return main(["--index", str(folder / "index"), *flags])


def run_file(folder: Path, tmp_path: Path, *flags: str) -> dict[str, list[Hit]]:
    output = str(tmp_path / "run.trec")
    topics = () if "--topics" in flags else ("--topics", str(folder / "queries.jsonl"))
    assert search(folder, *topics, "--output", output, *flags) == 0
    return read_run(output)


def close(ours: dict[str, list[Hit]], theirs: dict[str, list[Hit]]) -> None:
    assert {q: [h.docid for h in hits] for q, hits in ours.items()} == {
        q: [h.docid for h in hits] for q, hits in theirs.items() if hits
    }
    for qid, hits in ours.items():
        assert [h.score for h in hits] == pytest.approx(
            [h.score for h in theirs[qid]], rel=1e-6, abs=1e-6
        )


@pytest.mark.parametrize("mode", ["dense", "impact", "hybrid"])
def test_a_run_is_what_the_searcher_finds(
    folder: Path, searcher: Searcher, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    run = run_file(folder, tmp_path, f"--{mode}", "--hits", "3")
    close(run, searcher.search(TOPICS, 3, mode))
    assert f"3 topics, {mode}, " in (err := capsys.readouterr().err)
    assert "certified exact: 3 of 3" in err
    first = (tmp_path / "run.trec").read_text().splitlines()[0].split()
    assert (first[0], first[1], first[3], first[5]) == ("q1", "Q0", "1", f"dupmae-ir-{mode}")


def test_hybrid_is_the_default_and_defaults_to_a_thousand(
    folder: Path, searcher: Searcher, tmp_path: Path
) -> None:
    close(run_file(folder, tmp_path), searcher.search(TOPICS, 1000, "hybrid"))


def test_options_that_change_a_run(folder: Path, searcher: Searcher, tmp_path: Path) -> None:
    close(
        run_file(folder, tmp_path, "--remove-query"),
        searcher.search(TOPICS, 1000, remove_query=True),
    )
    raw = run_file(folder, tmp_path, "--impact", "--raw-impacts")
    close(raw, searcher.search(TOPICS, 1000, "impact", raw_impacts=True))
    assert set(run_file(folder, tmp_path, "--qrels", str(folder / "qrels.txt"))) == {"q2", "10"}
    weighted = searcher.with_settings(dense_weight=0.5, impact_weight=2.0).search(TOPICS, 1000)
    close(run_file(folder, tmp_path, "--dense-weight", "0.5", "--impact-weight", "2"), weighted)
    close(
        run_file(folder, tmp_path, "--batch-size", "1", "--threads", "2"),
        searcher.search(TOPICS, 1000),
    )
    few = run_file(folder, tmp_path, "--impact", "--query-terms", "1")
    close(few, searcher.with_settings(query_terms=1).search(TOPICS, 1000, "impact"))


def test_formats_and_tags(folder: Path, tmp_path: Path) -> None:
    run_file(folder, tmp_path, "--format", "msmarco", "--hits", "1")
    assert [len(line.split("\t")) for line in (tmp_path / "run.trec").read_text().splitlines()] == [
        3,
        3,
        3,
    ]
    run_file(folder, tmp_path, "--tag", "mine")
    assert (tmp_path / "run.trec").read_text().splitlines()[0].endswith(" mine")


def test_report_and_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.jsonl"
    run_file(folder, tmp_path, "--report", str(report), "--json")
    summary = json.loads(capsys.readouterr().out)
    assert (summary["topics"], summary["certified"], summary["uncertified"]) == (3, 3, [])
    assert summary["depth_dense"] == {"median": 6, "max": 6}
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["qid"] for line in lines] == ["q1", "q2", "10"]
    assert all(
        line["exact"] and line["candidates"] == 6 and line["bound"] is None for line in lines
    )


def test_fusion_of_runs_is_fusion_in_search(
    folder: Path, searcher: Searcher, tmp_path: Path
) -> None:
    fused = run_file(folder, tmp_path, "--fusion", "rrf")
    dense, impact = (searcher.search(TOPICS, 1000, mode) for mode in ("dense", "impact"))
    close(fused, {q.qid: rrf([dense[q.qid], impact[q.qid]]) for q in TOPICS})


@pytest.fixture(scope="module")
def many(folder: Path) -> Path:
    """An index large enough that no search looks at all of it, with codes."""
    words = [f"w{i}" for i in range(60)]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 6)) for _ in range(400)]
    where = write_index(folder / "many", [f"d{i}" for i in range(400)], texts)
    build_rotated(Index.open(where).only_segment)
    (folder / "many.tsv").write_text(
        "".join(f"{i}\t{' '.join(rng.choice(words, 3))}\n" for i in range(20))
    )
    return where


def test_another_dense_index(
    folder: Path, many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Codes give a byte-identical run, certified; they are used where they are."""
    for flags in (["--dense"], ["--hybrid"], ["--fusion", "rrf"]):
        runs = {}
        for kind, used in (("flat", "flat"), ("rotated", "rotated"), ("auto", "rotated")):
            output = tmp_path / f"{kind}.trec"
            where = [
                "--index",
                str(many),
                "--topics",
                str(folder / "many.tsv"),
                "--output",
                str(output),
                "--hits",
                "5",
            ]
            where += ["--batch-size", "1"]
            assert main([*where, *flags, "--dense-index", kind, "--json", "--tag", "same"]) == 0
            runs[kind], summary = output.read_bytes(), json.loads(capsys.readouterr().out)
            assert summary["dense_index"]["kind"] == used
            assert "--fusion" in flags or summary["certified"] == 20
            assert runs[kind].count(b"\n") == 100
        assert runs["rotated"] == runs["flat"] == runs["auto"]
    assert main(["--index", str(many), "--query", "w1 w2", "--hits", "5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["report"]["exact"], answer["dense_index"]) == (True, {"kind": "rotated"})
    assert main(["--index", str(many), "--query", "w1", "--impact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dense_index"] is None


def test_another_dense_index_in_python(many: Path, folder: Path) -> None:
    topics = [Query(str(i), f"w{i} w{i + 1}") for i in range(20)]
    codes = Searcher.open(many, dense_index="rotated", batch_size=1)
    whole = codes.with_settings(dense_index="flat")
    assert [type(s.dense.segments[0]).__name__ for s in (codes, whole)] == [
        "RotatedIndex",
        "DenseIndex",
    ]
    assert codes.search(topics, 5) == whole.search(topics, 5)
    assert codes.with_settings(threads=1).dense is codes.dense
    assert Searcher.open(folder / "index").dense.kind == "flat"
    with pytest.raises(IndexMismatch, match="does not list its files"):
        Searcher.open(folder / "index", dense_index="rotated")


def test_bm25(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "bm25.trec")
    flags = [
        "--index",
        str(folder / "bm25"),
        "--bm25",
        "--topics",
        str(folder / "queries.jsonl"),
        "--output",
        output,
    ]
    assert main(flags) == 0
    run = read_run(output)
    assert run["10"][0].docid == "os.fork"
    assert main([*flags, "--remove-query", "--hits", "2", "--json"]) == 0
    assert "q2" in [h.docid for h in run["q2"]]
    assert read_run(output)["q2"] == [h for h in run["q2"] if h.docid != "q2"][:2]
    capsys.readouterr()
    assert main(["--index", str(folder / "bm25"), "--bm25", "--query", "fork"]) == 0
    assert capsys.readouterr().out.startswith("1  os.fork  ")


def test_blank_topics_are_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = tmp_path / "t.tsv"
    topics.write_text("1\tlock\n2\t \n3\tzyzzyva\n")
    run = run_file(folder, tmp_path, "--topics", str(topics), "--impact")
    assert set(run) == {"1"}
    err = capsys.readouterr().err
    assert "1 topics are blank and have no hits" in err
    assert "1 topics match nothing" in err


def test_query_model(folder: Path, searcher: Searcher, capsys: pytest.CaptureFixture[str]) -> None:
    text = "wait for the thread"
    assert (
        search(
            folder,
            "--query",
            text,
            "--hits",
            "2",
            "--corpus",
            str(folder / "corpus.jsonl"),
            "--terms",
            "1",
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert err.startswith("meaning and words, nothing missed: 6 of 6 documents scored")
    best = searcher.search(text, 1)[0]
    why = searcher.explain(text, best.docid)
    lines = out.splitlines()
    assert (
        lines[0]
        == f"1  {best.docid}  {best.score:.3g} = meaning {why.dense:.3g} + words {why.impact:.3g}"
    )
    assert lines[1:3] == [
        f"   {line}"
        for d in COLLECTION
        if d.docid == best.docid
        for line in (d.title, d.text)
        if line
    ]
    assert lines[3] == f"   words: for {why.terms[0].share:.3g} and {len(why.terms) - 1} more"
    assert sum(line.startswith(("1 ", "2 ")) for line in lines) == 2


def test_query_model_as_json(
    folder: Path, searcher: Searcher, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(folder / "corpus.jsonl")
    assert (
        search(folder, "--query", "a lock", "--json", "--corpus", corpus, "--impact", "--hits", "3")
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert [(h["docid"], h["score"]) for h in answer["hits"]] == searcher.search(
        "a lock", 3, "impact"
    )
    assert answer["report"]["exact"] is True
    by_id = {d.docid: d for d in COLLECTION}
    for hit in answer["hits"]:
        assert hit["text"] == by_id[hit["docid"]].text
        assert sum(t["share"] for t in hit["terms"]) == pytest.approx(hit["impact"])


def test_explain_one_document(
    folder: Path, searcher: Searcher, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(folder, "--query", "a lock and a thread", "--explain", "threading.Lock") == 0
    lines = capsys.readouterr().out.splitlines()
    why = searcher.explain("a lock and a thread", "threading.Lock")
    assert (
        lines[0]
        == f"threading.Lock  {why.score:.3g} = meaning {why.dense:.3g} + words {why.impact:.3g}"
    )
    assert lines[2].split() == ["word", "in", "the", "text", "from", "share"]
    assert len(lines) == 4 + len(why.terms)
    assert {"lock", "thread"} & {line.split()[0] for line in lines[4:]}
    assert sum(float(line.split()[-1]) for line in lines[4:]) == pytest.approx(why.impact, rel=1e-2)
    assert search(folder, "--query", "a lock", "--explain", "threading.lock") == 2
    assert "has no document 'threading.lock'" in capsys.readouterr().err


def test_quiet_and_other_modes_of_one_query(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(folder, "--query", "zyzzyva", "--impact", "--quiet") == 0
    assert capsys.readouterr() == ("no document matches\n", "")
    assert (
        search(folder, "--query", "lock", "--fusion", "interpolation", "--quiet", "--hits", "1")
        == 0
    )
    assert "  (meaning " in capsys.readouterr().out
    assert search(folder, "--query", "lock", "--dense-weight", "2", "--quiet", "--hits", "1") == 0
    assert " = 2 x meaning " in capsys.readouterr().out
    assert search(folder, "--query", "lock", "--dense", "--quiet", "--hits", "1") == 0
    assert " = " not in capsys.readouterr().out


REFUSED: list[tuple[list[str], str]] = [
    ([], "give one of --topics, --query, --interactive"),
    (
        ["--query", "a", "--topics", "t"],
        "give only one of --topics, --query, --interactive; got --topics and --query",
    ),
    (["--query", " "], "--query is blank"),
    (
        ["--query", "a", "--dense", "--impact"],
        "give only one of --dense, --impact, --hybrid, --bm25, --fusion; got --dense and --impact",
    ),
    (["--query", "a", "--dense", "--fusion", "rrf"], "got --dense and --fusion"),
    (["--topics", "Q"], "--topics requires --output"),
    (["--topics", "Q", "--output", "."], ". is a folder; name a file to write"),
    (["--topics", "Q", "--output", "same", "--report", "same"], "name the same file"),
    (["--query", "a", "--output", "x"], "--output applies only with --topics"),
    (["--query", "a", "--remove-query"], "--remove-query applies only with --topics"),
    (["--topics", "Q", "--output", "x", "--corpus", "c"], "--corpus applies only with --query"),
    (["--query", "a", "--rrf-k", "5"], "--rrf-k applies only with --fusion rrf"),
    (["--query", "a", "--k1", "1.2"], "--k1 applies only with --bm25"),
    (["--query", "a", "--raw-impacts"], "--raw-impacts applies only with --impact"),
    (
        ["--query", "a", "--dense", "--impact-weight", "2"],
        "--impact-weight applies only without --dense",
    ),
    (
        ["--query", "a", "--bm25", "--query-length", "5"],
        "--query-length applies only without --bm25",
    ),
    (
        ["--topics", "Q", "--output", "x", "--fusion", "rrf", "--report", "r"],
        "--report applies only with --topics and without --bm25 and",
    ),
    (["--query", "a", "--hits", "0"], "--hits must be at least 1, got 0"),
    (["--query", "a", "--terms", "-1"], "--terms must be at least 0"),
    (["--query", "a", "--query-terms", "2000"], "--query-terms must be at most 1024"),
    (["--query", "a", "--dense-weight", "-1"], "--dense-weight must be greater than 0"),
    (["--query", "a", "--max-depth", "3"], "--max-depth 3 is less than the 10 requested hits"),
    (["--query", "a", "--fusion", "interpolation", "--alpha", "2"], "--alpha must be at most 1"),
    (["--query", "a", "--bm25"], "is not a BM25 index"),
    (["--query", "a", "--model", "/no/such/model"], "/no/such/model"),
    (["--query", "a", "--corpus", "/no/such/corpus"], "/no/such/corpus"),
    (["--topics", "/no/topics.tsv", "--output", "x"], "/no/topics.tsv: no such file"),
    (
        ["--topics", "no-such-topics", "--output", "x"],
        "'no-such-topics' is neither a file nor topics",
    ),
    (
        ["--topics", "Q", "--output", "x", "--qrels", "QRELS"],
        "has judgements for none of the 3 topics",
    ),
    (["--topics", "Q", "--output", "x", "--tag", "two words"], "run tag 'two words'"),
    (["--query", "a", "--dense-index", "rotate"], "Did you mean 'rotated'?"),
    (
        ["--query", "a", "--dense-index", "rotated"],
        "does not list its files; make them with dupmae-ir index dense",
    ),
    (
        ["--query", "a", "--dense-index", "rotated", "--impact"],
        "--dense-index applies only without --impact",
    ),
]


@pytest.mark.parametrize(("flags", "says"), REFUSED, ids=[says[:40] for _, says in REFUSED])
def test_refusals_are_one_line_and_leave_nothing(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.qrels").write_text("x 0 y 1\n")
    named = {"Q": str(folder / "queries.jsonl"), "QRELS": "other.qrels"}
    assert search(folder, *(named.get(flag, flag) for flag in flags)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.startswith("dupmae-ir search: ")
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["other.qrels"]


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("nothing", "no such index"),
        ("bm25", "is a Lucene index; search it with --bm25"),
        (".", "is not a finished index"),
    ],
)
def test_folders_that_are_not_an_index(
    folder: Path, capsys: pytest.CaptureFixture[str], index: str, says: str
) -> None:
    assert main(["--index", str(folder / index), "--query", "a"]) == 2
    assert says in capsys.readouterr().err


def test_an_old_run_survives_a_failed_search(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "run.trec"
    write_run(output, {"q1": [Hit("a", 1.0)]}, "old", "trec")
    before = output.read_bytes()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device", str(output))

    monkeypatch.setattr("dupmae_ir.search.exact.ranking.exact_top", broken)
    assert search(folder, "--topics", str(folder / "queries.jsonl"), "--output", str(output)) == 1
    assert output.read_bytes() == before
    assert list(tmp_path.iterdir()) == [output]


def test_a_recipe(folder: Path, tmp_path: Path, searcher: Searcher) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'topics = "{folder}/queries.jsonl"\nimpact = true\nhits = 2\n')
    output = str(tmp_path / "run.trec")
    assert search(folder, "--recipe", str(recipe), "--output", output) == 0
    close(read_run(output), searcher.search(TOPICS, 2, "impact"))


def test_another_query_length_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(folder, "--query", "lock", "--query-length", "16") == 0
    assert (
        "note: queries are encoded with query length 16, the index with 32"
        in capsys.readouterr().err
    )


def test_temporary_files_of_a_killed_search_are_removed(folder: Path, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in ("run.trec", "report.jsonl"):
        (tmp_path / f".{name}.{dead.pid}.tmp").write_text("unfinished")
    run_file(folder, tmp_path, "--report", str(tmp_path / "report.jsonl"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.jsonl", "run.trec"]


# ---------------------------------------------------------------- --within


def run_of(folder: Path, name: str, *flags: str) -> dict[str, list[Hit]]:
    output = folder / f"{name}.trec"
    assert (
        search(folder, "--topics", str(folder / "queries.jsonl"), "--output", str(output), *flags)
        == 0
    )
    return read_run(output)


def test_within_a_file_of_ids(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = folder / "ids.txt"
    ids.write_text("threading.Lock\n\nos.fork\nnothing\nos.fork\n")
    everything = run_of(folder, "all")
    capsys.readouterr()
    found = run_of(folder, "within", "--within", str(ids))
    assert "2 documents searched" in (error := capsys.readouterr().err)
    assert "1 of its ids are not in the index: nothing" in error
    assert found == {
        qid: [hit for hit in hits if hit.docid in ("threading.Lock", "os.fork")]
        for qid, hits in everything.items()
    }
    assert search(folder, "--query", "wait for the thread", "--within", str(ids), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {hit["docid"] for hit in shown["hits"]} == {"threading.Lock", "os.fork"}
    assert shown["within"] == {
        "file": str(ids),
        "documents": 2,
        "unknown": 1,
        "unknown_ids": ["nothing"],
    }


def test_within_of_a_bm25_index(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = folder / "ids.txt"
    ids.write_text("q2\nempty\n")
    flags = ["--index", str(folder / "bm25"), "--bm25", "--query", "a lock and a thread", "--json"]
    assert main([*flags]) == 0
    everything = json.loads(capsys.readouterr().out)["hits"]
    assert len(everything) > 1
    assert main([*flags, "--within", str(ids)]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert hit["score"] == next(h["score"] for h in everything if h["docid"] == "q2")


def test_within_that_selects_nothing_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = folder / "ids.txt"
    for content, expected in (
        ("x\ny\n", "none of these 2 documents; the first id is 'x'"),
        ("\n", "is empty"),
    ):
        ids.write_text(content)
        assert search(folder, "--query", "thread", "--within", str(ids)) != 0
        assert expected in capsys.readouterr().err
    assert search(folder, "--query", "thread", "--explain", "os.fork", "--within", str(ids)) == 2
    assert "--within" in capsys.readouterr().err
