"""Mined lists against a search by hand; what must never be a negative; kills, refusals and the passages by id."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from collections import Counter

import numpy as np
import pytest
from support.rerank_samples import kill_when

from dupmae_ir.errors import DupmaeError, IndexMismatch, InputError
from dupmae_ir.finetune.data import (
    Passages,
    hard_negatives,
    open_passages,
    read_mined,
    read_scores,
    require_scores,
    text_key,
)
from dupmae_ir.finetune.mine import main
from dupmae_ir.io.jobs import Job, read_record
from dupmae_ir.io.lines import ResumableJsonl
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Hit

WORDS = [f"word{i}" for i in range(60)]
MODEL = ("--by", "model", "--model", "testing:hashing", "--parts", "dense")


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path):
    """120 passages of random words, 12 judged queries; d5 is a copy of q0's answer, d7 one of d6."""
    rng = random.Random(0)
    passages = [
        {"_id": f"d{i}", "title": "", "text": " ".join(rng.choices(WORDS, k=12))}
        for i in range(120)
    ]
    passages[5]["text"] = "  " + passages[0]["text"].upper() + " "
    passages[7]["text"] = passages[6]["text"].replace(" ", "\u00a0 ", 1)
    lines(tmp_path / "corpus.jsonl", passages)
    queries = [
        {"_id": f"q{i}", "text": " ".join(rng.sample(passages[i]["text"].split(), 5))}
        for i in range(12)
    ]
    lines(tmp_path / "queries.jsonl", queries)
    (tmp_path / "qrels.txt").write_text(
        "".join(f"q{i} 0 d{i} 1\nq{i} 0 d{i + 20} 0\n" for i in range(12))
    )
    return tmp_path


def mine(folder, *more, output="mined.jsonl"):
    return main(
        [
            "--topics",
            str(folder / "queries.jsonl"),
            "--qrels",
            str(folder / "qrels.txt"),
            "--collection",
            str(folder / "corpus.jsonl"),
            "--output",
            str(folder / output),
            "--quiet",
            *map(str, more),
        ]
    )


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ranked(scores):
    return sorted(scores, key=lambda d: (-scores[d], d))


def by_hand(folder, rank, depth, skip=0):
    """qid -> the ids that the definition allows, from the plain files."""
    texts = {r["_id"]: " ".join(r["text"].lower().split()) for r in read(folder / "corpus.jsonl")}
    wanted = {}
    for row in read(folder / "queries.jsonl"):
        answer = f"d{row['_id'][1:]}"
        kept = []
        for place, docid in enumerate(rank(row["text"], texts)[:depth]):
            copies = {texts[d] for d in kept}
            if place >= skip and texts[docid] != texts[answer] and texts[docid] not in copies:
                kept.append(docid)
        wanted[row["_id"]] = kept
    return wanted


def by_vectors(query, texts):
    encoder = HashingEncoder()
    documents = encoder.encode_documents(list(texts.values())).cls
    scores = documents @ encoder.encode_queries([query]).cls[0]
    return ranked({d: round(float(s), 4) for d, s in zip(texts, scores, strict=True)})


def by_bm25(query, texts):
    counts = {d: Counter(re.findall(r"\w+", t)) for d, t in texts.items()}
    scores: Counter[str] = Counter()
    for word in query.lower().split():
        df = sum(word in c for c in counts.values())
        for d, c in counts.items():
            if c[word]:  # all passages have 12 words, so lengths do not matter
                scores[d] += (
                    math.log(1 + (len(counts) - df + 0.5) / (df + 0.5)) * c[word] / (c[word] + 0.9)
                )
    return ranked({d: round(s, 5) for d, s in scores.items()})


@pytest.mark.parametrize(("depth", "skip"), [(120, 0), (15, 3)])
def test_the_lists_are_those_of_a_search_by_hand(folder, depth, skip):
    assert mine(folder, *MODEL, "--depth", depth, "--skip-top", skip) == 0
    found = {m.qid: list(m.negatives) for m in read_mined(folder / "mined.jsonl")}
    assert found == by_hand(folder, by_vectors, depth, skip)


@pytest.mark.jvm
def test_the_lists_of_bm25_are_those_of_the_formula(folder):
    assert mine(folder, "--by", "bm25", "--depth", 20) == 0
    found = {m.qid: list(m.negatives) for m in read_mined(folder / "mined.jsonl")}
    assert found == by_hand(folder, by_bm25, 20)


def by_both(query, texts):
    """The first 30 of each list, joined by reciprocal ranks with k = 60."""
    scores: Counter[str] = Counter()
    for rank in (by_vectors, by_bm25):
        for place, docid in enumerate(rank(query, texts)[:30], 1):
            scores[docid] += 1 / (60 + place)
    return ranked({d: round(s, 12) for d, s in scores.items()})


@pytest.mark.jvm
def test_both_searches_are_joined_by_reciprocal_ranks(folder):
    assert mine(folder, *MODEL, "--by", "both", "--depth", 30) == 0
    found = {m.qid: list(m.negatives) for m in read_mined(folder / "mined.jsonl")}
    wanted = by_hand(folder, by_both, 30)
    assert found == wanted
    for alone in (by_vectors, by_bm25):
        lists = by_hand(folder, alone, 30)
        assert all(
            set(lists[q][:10]) <= set(found[q]) for q in found
        )  # the best of each list are in
        assert lists != wanted
    settings = read_record(folder / "mined.jsonl")["settings"]
    assert (settings["by"], settings["k1"], settings["parts"]) == ("both", 0.9, "dense")
    assert (
        mine(folder, *MODEL, "--by", "both", "--depth", 30, "--b", 0.5) == 2
    )  # BM25's settings decide


@pytest.mark.jvm
def test_both_parts_search_by_their_sum(folder):
    assert mine(folder, "--by", "model", "--model", "testing:hashing", "--depth", 10) == 0
    assert mine(folder, *MODEL, "--depth", 10, output="dense.jsonl") == 0
    both, dense = (read_mined(folder / n) for n in ("mined.jsonl", "dense.jsonl"))
    assert any(a.negatives != b.negatives for a, b in zip(both, dense, strict=True))
    texts = {r["_id"]: r["text"] for r in read(folder / "corpus.jsonl")}
    encoder = HashingEncoder()
    for m in both:
        q = encoder.encode_queries([m.query])
        d = encoder.encode_documents([texts[n] for n in m.negatives])
        # The index keeps impacts in 8 bits: half a step of 1/S on either side of every product.
        assert m.scores == pytest.approx(
            d.cls @ q.cls[0] + (d.ot @ q.ot.T).toarray()[:, 0], abs=0.1
        )
        assert np.all(np.diff(m.scores) <= 0)
        assert np.all(np.diff(m.ranks) > 0)


def test_positives_and_copies_never_appear_and_are_counted(folder, capsys):
    assert mine(folder, *MODEL, "--depth", 120, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    for m in read_mined(folder / "mined.jsonl"):
        assert m.positives[0].docid not in m.negatives
        assert not {"d0", "d5"} & set(m.negatives) if m.qid == "q0" else True
        assert len({"d6", "d7"} & set(m.negatives)) <= (m.qid not in ("q6", "q7"))
        assert f"d{int(m.qid[1:]) + 20}" in m.negatives  # judged, and not relevant
    # q0 meets d5, q5 meets d0, q6 and q7 meet each other's; the rest drop one of d0/d5 and one of d6/d7.
    assert report["dropped_positive_id"] == 12
    assert report["dropped_positive_text"] == 4
    assert report["dropped_duplicate"] == 2 * 8 + 4
    assert report["negatives"] == 12 * 120 - 12 - 4 - 20


def test_the_filter_alone():
    hits = [Hit(d, 9.0 - i) for i, d in enumerate("abcdef")]
    keys = {"a": 1, "b": 2, "c": 3, "d": 3, "e": 5, "f": 1}
    kept, dropped = hard_negatives(hits, {"b"}, {2, 5}, keys.get)
    assert [(c.docid, c.rank) for c in kept] == [("a", 1), ("c", 3)]
    assert dropped == {"positive_id": 1, "positive_text": 1, "duplicate": 2}
    assert [c.docid for c in hard_negatives(hits, {"b"}, {2, 5}, keys.get, 2)[0]] == ["c", "f"]


def test_a_draw_is_a_subset_in_order_and_depends_on_the_seed(folder):
    assert mine(folder, *MODEL, output="all.jsonl") == 0
    whole = {m.qid: m for m in read_mined(folder / "all.jsonl")}
    draws = []
    for seed in (0, 0, 1):
        assert (
            mine(folder, *MODEL, "--negatives", 7, "--seed", seed, output=f"{len(draws)}.jsonl")
            == 0
        )
        draws.append(read_mined(folder / f"{len(draws)}.jsonl"))
    for m in draws[0]:
        assert len(m.negatives) == 7
        assert set(m.negatives) < set(whole[m.qid].negatives)
        assert list(m.ranks) == sorted(m.ranks)
    assert [m.negatives for m in draws[0]] == [m.negatives for m in draws[1]]
    assert [m.negatives for m in draws[0]] != [m.negatives for m in draws[2]]


def test_pairs_are_their_own_pool(folder):
    rows = [
        {
            "query": "word1 word2",
            "positive": {"id": "a", "title": "T", "text": "word1 word2 word3"},
        },
        {
            "query": "word1 word2",
            "positive": "word1 word9",
            "negatives": ["word4 word5", {"id": "n", "text": "word6"}],
        },
        {"query": "word4", "positive": {"id": "b", "text": "word4 WORD5"}},
    ]
    pairs = lines(folder / "pairs.jsonl", rows)
    assert (
        main(["--pairs", str(pairs), "--output", str(folder / "own.jsonl"), *MODEL, "--quiet"]) == 0
    )
    mined = read_mined(folder / "own.jsonl")
    assert [(m.query, [p.text for p in m.positives]) for m in mined] == [
        ("word1 word2", ["word1 word2 word3", "word1 word9"]),
        ("word4", ["word4 WORD5"]),
    ]
    passages = open_passages(folder / "own.jsonl", mined)
    found = [sorted(passages[d].text.lower() for d in m.negatives) for m in mined]
    # "word4 word5" is a copy of "word4 WORD5": once among the first one's, never among the second's.
    assert found == [["word4 word5", "word6"], ["word1 word2 word3", "word1 word9", "word6"]]
    moved = folder / "elsewhere"
    moved.mkdir()
    for path in folder.glob("own.jsonl*"):
        path.rename(moved / path.name)
    assert open_passages(moved / "own.jsonl", mined)[mined[0].negatives[0]]


def test_one_id_for_two_passages_is_refused(folder, capsys):
    rows = [{"query": q, "positive": {"id": "a", "text": q}} for q in ("x", "y")]
    pairs = lines(folder / "pairs.jsonl", rows)
    assert main(["--pairs", str(pairs), "--output", str(folder / "own.jsonl"), *MODEL]) == 2
    assert "id 'a' names two different passages" in capsys.readouterr().err


def test_pairs_against_a_collection(folder, capsys):
    answer = read(folder / "corpus.jsonl")[3]["text"]
    rows = [
        {"query": "word1", "positive": {"id": "d3", "text": "other words for it"}},
        {"query": "word2", "positive": answer},
    ]
    pairs = lines(folder / "pairs.jsonl", rows)
    corpus = str(folder / "corpus.jsonl")
    flags = [
        "--pairs",
        str(pairs),
        "--collection",
        corpus,
        "--output",
        str(folder / "o.jsonl"),
        *MODEL,
        "--json",
    ]
    assert main(flags) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["unknown_positives"] == 1
    assert "corpus.jsonl (p-" in said.err
    assert [("d3" in m.negatives, len(m.positives)) for m in read_mined(folder / "o.jsonl")] == [
        (False, 1)
    ] * 2


def test_unknown_ids_are_refused_in_one_line_or_skipped(folder, capsys):
    with open(folder / "qrels.txt", "a") as f:
        f.write("q0 0 nowhere 1\nq1 0 lost 2\nghost 0 d1 1\nq2 0 gone 0\n")
    assert mine(folder, *MODEL) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "2 positives are not in" in said
    assert "corpus.jsonl (nowhere of query q0, lost of query q1)" in said
    assert mine(folder, *MODEL, "--unknown", "skip", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["unknown_positives"], report["judged_without_topic"], report["queries"]) == (
        2,
        1,
        12,
    )


def test_queries_without_a_positive_are_counted_and_left_out(folder, capsys):
    (folder / "qrels.txt").write_text("q0 0 d0 1\nq1 0 d1 0\nq2 0 d2 0\n")
    flags = [
        "--topics",
        folder / "queries.jsonl",
        "--qrels",
        folder / "qrels.txt",
        "--output",
        folder / "m",
        *MODEL,
    ]
    assert main([*map(str, flags), "--collection", str(folder / "corpus.jsonl")]) == 0
    assert "note: 2 queries have no positive and are left out (q1, q2)" in capsys.readouterr().err
    assert [m.qid for m in read_mined(folder / "m")] == ["q0"]
    (folder / "qrels.txt").write_text("q0 0 d0 0\n")
    assert mine(folder, *MODEL, output="none.jsonl") == 2
    assert "no query has a positive" in capsys.readouterr().err
    assert not (folder / "none.jsonl").exists()


def test_queries_without_a_negative_are_counted(folder, capsys):
    lines(folder / "corpus.jsonl", read(folder / "corpus.jsonl")[:1])
    (folder / "qrels.txt").write_text("q0 0 d0 1\n")
    assert mine(folder, *MODEL, "--json") == 0
    assert json.loads(capsys.readouterr().out)["queries_without_negative"] == 1
    assert read_mined(folder / "mined.jsonl")[0].negatives == ()


def test_the_topics_own_document_can_be_left_out(folder):
    rows = [
        {"_id": f"d{i + 30}", "text": r["text"]}
        for i, r in enumerate(read(folder / "queries.jsonl"))
    ]
    lines(folder / "queries.jsonl", rows)
    (folder / "qrels.txt").write_text("".join(f"d{i + 30} 0 d{i} 1\n" for i in range(12)))
    assert mine(folder, *MODEL, "--depth", 120, output="with.jsonl") == 0
    assert mine(folder, *MODEL, "--depth", 120, "--remove-query", output="without.jsonl") == 0
    assert all(m.qid in m.negatives for m in read_mined(folder / "with.jsonl"))
    assert not any(m.qid in m.negatives for m in read_mined(folder / "without.jsonl"))


def test_a_finished_output_is_reused_and_other_settings_are_refused(folder, capsys):
    assert mine(folder, *MODEL) == 0
    before = (folder / "mined.jsonl").stat()
    assert mine(folder, *MODEL, "--json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "already complete"
    assert (folder / "mined.jsonl").stat() == before
    assert mine(folder, *MODEL, "--depth", 10) == 2
    assert "--depth 200 (requested 10)" in capsys.readouterr().err
    lines(folder / "corpus.jsonl", [*read(folder / "corpus.jsonl"), {"_id": "new", "text": "x"}])
    assert mine(folder, *MODEL) == 2
    assert "the contents of --collection" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "give one of --pairs, --topics"),
        (("--topics", "t"), "--topics requires --qrels"),
        (("--pairs", "p", "--qrels", "q"), "--qrels applies only with --topics"),
        (("--pairs", "nowhere.jsonl"), "no such file"),
        (("--pairs", "p", "--skip-top", "200"), "--skip-top 200"),
        (("--pairs", "p", "--collection", "-"), "only once"),
        (("--pairs", "p", "--collection", "nowhere"), "no such file or folder"),
        (("--pairs", "p", "--negatives", "-1"), "at least 0"),
        (("--pairs", "p", "--model", "m"), "--by model"),
    ],
)
def test_misuse_is_one_line(tmp_path, monkeypatch, capsys, flags, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").write_text('{"query": "q", "positive": "p"}\n')
    assert main([*flags, "--by", "bm25", "--output", "o"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_model_that_is_not_there(tmp_path, capsys):
    (tmp_path / "p").write_text('{"query": "q", "positive": "p"}\n')
    flags = [
        "--pairs",
        str(tmp_path / "p"),
        "--output",
        str(tmp_path / "o"),
        "--by",
        "model",
        "--model",
        "/nowhere",
    ]
    assert main(flags) == 2
    assert "no such model folder" in capsys.readouterr().err


SLOW = """
import sys, time
from dupmae_ir.io import lines
from dupmae_ir.finetune import mining as mine
from dupmae_ir.finetune.mine import main
mine.WINDOW = 2
plain = lines.ResumableJsonl.append
def slowly(self, rows):
    plain(self, rows)
    time.sleep(0.2)
lines.ResumableJsonl.append = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_killed_and_run_again_it_is_the_same_file(folder, monkeypatch):
    monkeypatch.setattr("dupmae_ir.finetune.mining.WINDOW", 2)
    assert mine(folder, *MODEL, output="whole.jsonl") == 0
    flags = [
        "--topics",
        folder / "queries.jsonl",
        "--qrels",
        folder / "qrels.txt",
        "--collection",
        folder / "corpus.jsonl",
        "--output",
        folder / "mined.jsonl",
        "--quiet",
        *MODEL,
    ]
    grown = folder / ".mined.jsonl.work" / "lines.jsonl"
    for least in (2, 6):
        kill_when(
            SLOW, flags, lambda n=least: grown.exists() and grown.read_bytes().count(b"\n") >= n
        )
        assert grown.exists()
        assert not (folder / "mined.jsonl").exists()
    with open(grown, "a") as f:
        f.write('{"qid": "torn')
    assert mine(folder, *MODEL) == 0
    for name in ("{}.jsonl", "{}.jsonl.meta.json"):
        assert (folder / name.format("mined")).read_bytes() == (
            folder / name.format("whole")
        ).read_bytes()
    assert not [p.name for p in folder.glob(".mined*")]


def test_unfinished_work_with_other_settings_is_refused(tmp_path):
    with Job(tmp_path / "o", "mine", {"depth": 3}) as job:
        ResumableJsonl(job.begin() / "lines.jsonl", 9, 2).append([{"a": 1}])
    with (
        pytest.raises(IndexMismatch, match=r"`depth` 3 \(requested 4\)"),
        Job(tmp_path / "o", "mine", {"depth": 4}) as job,
    ):
        job.begin()


def test_a_resumed_file_continues_at_a_window(tmp_path):
    with Job(tmp_path / "o", "mine", {}) as job:
        path = job.begin() / "lines.jsonl"
        work = ResumableJsonl(path, 5, 2)
        work.append([{"n": 0}, {"n": 1}])
        with open(work.path, "ab") as f:
            f.write(b'{"n": 2}\n{"n"')
    with Job(tmp_path / "o", "mine", {}) as job:
        assert job.begin() / "lines.jsonl" == path
        again = ResumableJsonl(path, 5, 2)
        assert (again.done, list(again.rows())) == (2, [{"n": 0}, {"n": 1}])
        again.append([{"n": 2}, {"n": 3}])
        again.append([{"n": 4}])
        assert ResumableJsonl(path, 5, 2).done == 5  # the last window may be short
        job.publish(path, {"lines": 5})
    assert read(tmp_path / "o") == [{"n": n} for n in range(5)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o", "o.meta.json"]
    with Job(tmp_path / "o", "mine", {}) as job:
        assert job.finished() == {
            "output": str(tmp_path / "o"),
            "lines": 5,
            "status": "already complete",
        }


def test_passages_by_id_from_every_kind_of_file(tmp_path):
    documents = [Document(f"d{i}", f"text {i} é\u2028x", "T" if i % 2 else "") for i in range(50)]
    rows = [{"_id": d.docid, "title": d.title, "text": d.text} for d in documents]
    lines(tmp_path / "a.jsonl", rows)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    for name in ("a.jsonl", "b.jsonl.gz"):
        passages = Passages(tmp_path / name)
        assert [passages[d.docid] for d in reversed(documents)] == documents[::-1]
        assert "d50" not in passages
        with pytest.raises(InputError, match="has no passage 'd50'"):
            passages["d50"]
    some = Passages(tmp_path / "a.jsonl", {"d3", "d9", "d99"})
    assert [d.docid for d in documents if d.docid in some] == ["d3", "d9"]
    assert "d99" not in some
    assert some["d9"] == documents[9]


def test_another_collection_is_refused(folder):
    assert mine(folder, *MODEL) == 0
    mined = read_mined(folder / "mined.jsonl")
    assert open_passages(folder / "mined.jsonl", mined)["d9"].docid == "d9"
    other = lines(folder / "other.jsonl", read(folder / "corpus.jsonl")[:20])
    with pytest.raises(IndexMismatch, match="not the collection"):
        open_passages(folder / "mined.jsonl", mined, other)
    with pytest.raises(InputError, match=r"negatives are not in .*other.jsonl \("):
        Passages(other).require(mined, "mined.jsonl")
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match="does not exist; restore it"):
        open_passages(folder / "mined.jsonl", mined)


GOOD = {
    "qid": "q",
    "query": "x",
    "positives": [{"id": "a", "title": "", "text": "t"}],
    "negatives": ["b"],
    "scores": [1.5],
    "ranks": [2],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"negatives": ["a"]}, r"1 negative is a positive \(a of query q, line 1\)"),
        ({"positives": []}, "no positive"),
        ({"scores": []}, "must be equal"),
        ({"negatives": "b"}, "not a list"),
        ({"qid": 3}, "expected an object"),
        ({"positives": [{"text": "t"}]}, "a positive must be"),
    ],
)
def test_a_bad_mined_file_is_named(tmp_path, change, says):
    with pytest.raises(InputError, match=says):
        read_mined(lines(tmp_path / "m.jsonl", [{**GOOD, **change}]))
    with pytest.raises(InputError, match="occurs twice"):
        read_mined(lines(tmp_path / "m.jsonl", [GOOD, GOOD]))


def test_scores_must_be_there_for_positives_and_negatives(tmp_path):
    mined = read_mined(lines(tmp_path / "m.jsonl", [GOOD]))
    path = lines(tmp_path / "s.jsonl", [{"qid": "q", "scores": {"a": 1, "b": -2.5}}])
    scores = read_scores(path)
    assert scores == {"q": {"a": 1.0, "b": -2.5}}
    require_scores(mined, scores, path)
    for partial in ({"q": {"a": 1.0}}, {"q": {"b": 1.0}}, {}):
        with pytest.raises(InputError, match=r"passages? ha(s|ve) no score"):
            require_scores(mined, partial, path)
    for bad in (
        {"qid": "q"},
        {"qid": "q", "scores": {"a": None}},
        {"qid": "q", "scores": {"a": math.nan}},
    ):
        with pytest.raises(InputError):
            read_scores(lines(tmp_path / "bad.jsonl", [bad]))


def test_text_keys_forgive_case_blanks_and_unicode_forms():
    assert text_key(Document("1", "Caf\u00e9  au\nlait", "T")) == text_key(
        Document("2", "cafe\u0301 AU lait")
    )
    assert text_key(Document("1", "", "Title")) == text_key(Document("2", "title"))
    assert text_key(Document("1", "a b")) != text_key(Document("2", "ab"))


def test_every_error_is_one_of_ours(tmp_path):
    with pytest.raises(DupmaeError, match="exists without its record"):
        read_record(tmp_path / "none")
