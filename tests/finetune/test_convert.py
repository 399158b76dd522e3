"""Published formats from look-alikes, through the readers of training; and what is refused or left out."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import tracemalloc

import pytest

from dupmae_ir.errors import InputError
from dupmae_ir.finetune import formats
from dupmae_ir.finetune.convert import ConvertConfig, main, run, scores_path
from dupmae_ir.finetune.data import open_passages, read_mined, read_scores, require_scores
from dupmae_ir.finetune.examples import mined_examples
from dupmae_ir.finetune.formats import array_items, st_hard_negatives
from dupmae_ir.finetune.pairs import read_pairs
from dupmae_ir.io.jobs import read_record, record_path


@pytest.fixture
def marco(tmp_path):
    """MS MARCO's files with four passages, of which the last is a copy, and two queries."""
    texts = ("first passage", "second passage", "third passage", "First  passage")
    (tmp_path / "collection.tsv").write_text("".join(f"{i}\t{t}\n" for i, t in enumerate(texts)))
    (tmp_path / "queries.tsv").write_text("10\tone?\n11\ttwo?\n")
    (tmp_path / "qrels.tsv").write_text("10\t0\t0\t1\n11\t0\t1\t1\n11\t0\t2\t0\n")
    return tmp_path


def convert(folder, kind, name, *more, output="out.jsonl"):
    words = [
        "--format",
        kind,
        "--input",
        folder / name,
        "--output",
        folder / output,
        "--quiet",
        *more,
    ]
    return main([str(w) for w in words])


def ids(folder):
    return ("--queries", folder / "queries.tsv", "--collection", folder / "collection.tsv")


def write_lines(path, rows):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def summary(capsys):
    return json.loads(capsys.readouterr().out)


# -- one format after the other


def test_judgements(marco, capsys):
    assert (
        convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), "--json", "--kind", "marco") == 0
    )
    assert summary(capsys) == {
        "output": str(marco / "out.jsonl"),
        "status": "complete",
        "lines": 2,
        "queries": 2,
        "positives": 2,
    }
    pairs = read_pairs(marco / "out.jsonl")
    assert [(p.query, p.positive.docid, p.positive.text, p.kind) for p in pairs] == [
        ("one?", "0", "first passage", "marco"),
        ("two?", "1", "second passage", "marco"),
    ]


def test_judged_documents_have_titles_of_their_own(marco):
    with gzip.open(marco / "msmarco-docs.tsv.gz", "wt") as f:
        f.write("D0\thttp://x\tA title\tits body\nD1\thttp://y\t\tno title\n")
    (marco / "qrels.tsv").write_text("10 0 D0 1\n11 0 D1 1\n")
    flags = ("--queries", marco / "queries.tsv", "--collection", marco / "msmarco-docs.tsv.gz")
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *flags) == 0
    assert [p.positive.joined() for p in read_pairs(marco / "out.jsonl")] == [
        "A title its body",
        "no title",
    ]


def test_titles_for_passages_that_have_none(marco, capsys):
    (marco / "titles.txt").write_text("0\tA title\n2\tAnother\n1\t\n")
    titles = ("--titles", marco / "titles.txt")
    assert (
        convert(marco, "titles", "collection.tsv", *titles, "--json", output="titled.jsonl.gz") == 0
    )
    assert summary(capsys)["with_title"] == 2
    flags = ("--queries", marco / "queries.tsv", "--collection", marco / "titled.jsonl.gz")
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *flags) == 0
    assert (
        convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), *titles, output="at-once.jsonl")
        == 0
    )
    assert read_pairs(marco / "out.jsonl") == read_pairs(marco / "at-once.jsonl")
    assert [p.positive.joined() for p in read_pairs(marco / "out.jsonl")] == [
        "A title first passage",
        "second passage",
    ]


def test_triples_of_ids_become_a_mined_file(marco, capsys):
    # A positive, its copy, and a line twice.
    (marco / "triples.tsv").write_text(
        "10\t0\t1\n10\t0\t0\n10\t0\t2\n10\t0\t3\n10\t0\t2\n11\t1\t0\n11\t1\t3\n"
    )
    assert convert(marco, "msmarco-triples", "triples.tsv", *ids(marco), "--json") == 0
    counts = summary(capsys)
    assert (counts["queries"], counts["negatives"]) == (2, 3)
    assert (counts["positives_as_negatives"], counts["duplicates"]) == (2, 1)
    mined = read_mined(marco / "out.jsonl")
    assert [(m.qid, m.query, m.negatives) for m in mined] == [
        ("10", "one?", ("1", "2")),
        ("11", "two?", ("0",)),
    ]
    assert [m.positives[0].text for m in mined] == ["first passage", "second passage"]
    assert open_passages(marco / "out.jsonl", mined)["2"].text == "third passage"
    assert read_record(marco / "out.jsonl")["result"]["lines"] == 2


def test_the_record_holds_on_to_the_collection(marco):
    (marco / "triples.tsv").write_text("10\t0\t1\n")
    assert convert(marco, "msmarco-triples", "triples.tsv", *ids(marco)) == 0
    (marco / "collection.tsv").write_text("0\tother\n1\ttexts\n")
    with pytest.raises(Exception, match="is not the collection"):
        open_passages(marco / "out.jsonl", read_mined(marco / "out.jsonl"))


@pytest.fixture
def hard(marco):
    """sentence-transformers' negatives, the second query without one of the systems."""
    write_lines(
        marco / "hard.jsonl.gz",
        [
            {"qid": 10, "pos": [0], "neg": {"bm25": [1, 2], "dense": [2, 3]}},
            {"qid": 11, "pos": [1], "neg": {"bm25": [0]}},
        ],
    )
    return marco


def test_sentence_transformers_negatives(hard):
    # The systems are interleaved; 3 is a copy of the positive.
    for number, (flags, expected) in enumerate(
        (
            ((), [("1", "2"), ("0",)]),
            (("--systems", "dense"), [("2",), ()]),
            (("--systems", "dense", "bm25"), [("2", "1"), ("0",)]),
            (("--negatives", "1"), [("1",), ("0",)]),
        )
    ):
        output = f"{number}.jsonl"
        assert (
            convert(hard, "st-hard-negatives", "hard.jsonl.gz", *ids(hard), *flags, output=output)
            == 0
        )
        assert [m.negatives for m in read_mined(hard / output)] == expected


def scored(*pairs):
    return [{"pid": pid, "ce-score": score} for pid, score in pairs]


def test_negatives_near_a_positive_are_left_out(tmp_path):
    """BEIR's filter: at most 5 - 3 = 2 points, two new ones of each system, in the order of the systems."""
    systems = {
        "a": scored((10, 2.5), (11, 2), (12, 1), (13, 0)),
        "b": scored((11, 2), (14, 1.9), (15, 9), (16, -1), (17, 0)),
    }
    row = {"qid": 1, "pos": scored((1, 5), (2, 8)), "neg": systems}
    path = tmp_path / "hard.jsonl"
    write_lines(path, [row, {**row, "pos": []}])
    first, second = st_hard_negatives(path, {"1": "q"}, margin=3.0, per_system=2)
    assert first.positives == ("1", "2")
    assert first.negatives == ("11", "14", "12", "16")
    assert second.positives == ()
    assert next(st_hard_negatives(path, {"1": "q"})).negatives[:4] == ("10", "11", "14", "12")
    write_lines(path, [{**row, "neg": {"a": [10]}}])
    with pytest.raises(InputError, match="ce-score"):
        list(st_hard_negatives(path, {}, margin=3.0))


def test_run_again_gives_the_same_result_and_other_settings_are_refused(hard, capsys):
    words = ("st-hard-negatives", "hard.jsonl.gz", *ids(hard), "--json")
    assert convert(hard, *words) == 0
    first = summary(capsys)
    assert convert(hard, *words) == 0
    assert summary(capsys) == {**first, "status": "already complete"}
    assert convert(hard, *words, "--negatives", "1") == 2
    assert "--negatives 0 (requested 1)" in capsys.readouterr().err
    assert not list(hard.glob(".out*"))


SCORES = {"10": {"0": 9.5, "1": 1.25, "2": -3.0, "3": 9.0}, "11": {"1": 8.0, "0": 0.5, "2": 7.0}}


@pytest.mark.parametrize("form", ["columns", "rows", "objects"])
def test_teacher_scores_go_along(hard, form):
    flat = [(qid, pid, score) for qid, scores in SCORES.items() for pid, score in scores.items()]
    path = hard / "scores.gz"
    if form == "columns":
        with gzip.open(path, "wt") as f:
            f.writelines(f"{qid}\t{pid}\t{score}\n" for qid, pid, score in flat)
    elif form == "rows":
        write_lines(
            path, [{"qid": int(qid), "pid": int(pid), "score": score} for qid, pid, score in flat]
        )
    else:
        write_lines(path, [{"qid": qid, "scores": scores} for qid, scores in SCORES.items()])
    assert convert(hard, "st-hard-negatives", "hard.jsonl.gz", *ids(hard), "--scores", path) == 0
    mined = read_mined(hard / "out.jsonl")
    taught = read_scores(scores_path(hard / "out.jsonl"))
    require_scores(mined, taught, "scores")
    # Nothing but what the mined file names.
    assert taught == {"10": {"0": 9.5, "1": 1.25, "2": -3.0}, "11": {"1": 8.0, "0": 0.5}}
    examples = mined_examples(hard / "out.jsonl", 2, 200, 0, scores_path(hard / "out.jsonl"))
    assert len(examples) == 2


def test_passages_without_a_score(hard, capsys):
    (hard / "scores.tsv").write_text("10 0 9\n10 2 1\n11 0 2\n")
    flags = (*ids(hard), "--scores", hard / "scores.tsv")
    assert convert(hard, "st-hard-negatives", "hard.jsonl.gz", *flags) == 2
    assert "2 without score (1 of query 10, 1 of query 11)" in capsys.readouterr().err
    assert not list(hard.glob("*out.jsonl*"))
    assert convert(hard, "st-hard-negatives", "hard.jsonl.gz", *flags, "--unknown", "skip") == 0
    assert [(m.qid, m.negatives) for m in read_mined(hard / "out.jsonl")] == [("10", ("2",))]
    assert read_scores(scores_path(hard / "out.jsonl")) == {"10": {"0": 9.0, "2": 1.0}}


def test_a_beir_folder(tmp_path):
    home = tmp_path / "set"
    (home / "qrels").mkdir(parents=True)
    (home / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "T", "text": "x"}\n{"_id": "d2", "text": "y"}\n'
    )
    write_lines(home / "queries.jsonl.gz", [{"_id": "q1", "text": "what?"}])
    (home / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n")
    assert convert(tmp_path, "beir", "set") == 0
    assert [p.positive.joined() for p in read_pairs(tmp_path / "out.jsonl")] == ["T x"]
    assert convert(tmp_path, "beir", "set", "--split", "dev") == 2


def dpr_item(n=0, text="yes"):
    passage = {"title": "T", "text": f"{text} {n}", "passage_id": f"p{n}"}
    other = {"title": "", "text": f"no {n}", "psg_id": f"n{n}"}
    return {
        "question": f"q{n}",
        "answers": ["a"],
        "positive_ctxs": [passage],
        "negative_ctxs": [other],
        "hard_negative_ctxs": [{**other, "text": f"hard {n}"}, passage],
    }


def test_dpr(tmp_path, capsys):
    several = dpr_item(2)
    several["positive_ctxs"] += [
        {"title": "", "text": "also", "passage_id": 7},
        several["positive_ctxs"][0],
    ]
    items = [dpr_item(0), {**dpr_item(1), "positive_ctxs": []}, several]
    (tmp_path / "nq.json").write_text(json.dumps(items, indent=4))
    assert convert(tmp_path, "dpr", "nq.json", "--json", output="out.jsonl.gz") == 0
    counts = summary(capsys)
    assert (counts["queries"], counts["positives"], counts["queries_without_positive"]) == (2, 3, 1)
    assert (counts["positives_as_negatives"], counts["duplicates"]) == (2, 1)
    pairs = read_pairs(tmp_path / "out.jsonl.gz")
    assert [(p.query, p.positive.docid) for p in pairs] == [("q0", "p0"), ("q2", "p2"), ("q2", "7")]
    # Hard ones first, with every positive; what is the positive itself is gone.
    assert [[d.text for d in p.negatives] for p in pairs] == [
        ["hard 0", "no 0"],
        *[["hard 2", "no 2"]] * 2,
    ]
    assert convert(tmp_path, "dpr", "nq.json", "--positives", "1", "--negatives", "1") == 0
    assert [(p.positive.docid, len(p.negatives)) for p in read_pairs(tmp_path / "out.jsonl")] == [
        ("p0", 1),
        ("p2", 1),
    ]


def test_tevatron(tmp_path):
    row = {
        "query_id": "7",
        "query": "q",
        "positive_passages": [{"docid": "a", "title": "T", "text": "x"}],
        "negative_passages": [
            {"docid": "b", "title": None, "text": "y"},
            {"docid": "a", "text": "x, cut"},
        ],
    }
    write_lines(tmp_path / "t.jsonl.gz", [row])
    assert convert(tmp_path, "tevatron", "t.jsonl.gz") == 0
    pair = read_pairs(tmp_path / "out.jsonl")[0]
    assert (pair.positive.title, [d.docid for d in pair.negatives]) == ("T", ["b"])


def test_triples_of_texts_and_pairs(tmp_path, capsys):
    (tmp_path / "t.tsv").write_text("q1\tyes\tno\nq1\tyes\tnot this\nq1\tyes\tno\nq1\tyes\tYES\n")
    assert convert(tmp_path, "msmarco-triples", "t.tsv", "--json") == 0
    counts = summary(capsys)
    assert (counts["lines"], counts["duplicates"], counts["positives_as_negatives"]) == (3, 1, 1)
    assert [[d.text for d in p.negatives] for p in read_pairs(tmp_path / "out.jsonl")] == [
        ["no"],
        ["not this"],
        [],
    ]
    (tmp_path / "p.tsv").write_text("q1\tyes\nq2\tyes too\n")
    assert convert(tmp_path, "tsv", "p.tsv", output="pairs.jsonl") == 0
    assert read_pairs(tmp_path / "pairs.jsonl") == read_pairs(tmp_path / "p.tsv")


# -- large arrays


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A DPR file of more than 20 MB."""
    path = tmp_path_factory.mktemp("dpr") / "large.json"
    with open(path, "w") as f:
        f.write("[")
        f.writelines(
            (", " if n else "") + json.dumps(dpr_item(n, "word " * 400)) for n in range(5_000)
        )
        f.write("]")
    assert path.stat().st_size > 20e6
    return path


@pytest.mark.nightly
def test_a_large_array_is_never_whole_in_memory(large, tmp_path):
    tracemalloc.start()
    summary = run(
        ConvertConfig(format="dpr", input=str(large), output=str(tmp_path / "o.jsonl"), quiet=True)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary["lines"] == 5_000
    assert peak < 4e6


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_items_are_the_same_wherever_the_pieces_end(tmp_path, monkeypatch, at_once):
    items = [{"a": [1, 2.5]}, 123456, "te,]xt", None, [], -9e3]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(items, indent=1), encoding="utf-8-sig")
    monkeypatch.setattr(formats, "BLOCK", at_once)
    assert [item for _, item in array_items(path)] == items
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    assert all(
        str(item)[:1] in lines[line - 1]
        for line, item in array_items(path)
        if isinstance(item, int)
    )


def test_what_never_ends_is_not_read_to_the_end(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text('[{"question": "' + "x" * 300_000)
    monkeypatch.setattr(formats, "MAX_ITEM", 100_000)
    with pytest.raises(InputError, match=r"a.json:1: invalid or truncated JSON"):
        list(array_items(tmp_path / "a.json"))


# -- what is wrong


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("dpr", '{"question": 1}', "not a JSON array"),
        (
            "dpr",
            '[\n{"question": "q", "positive_ctxs": [{"title": "t"}]}]',
            'in:2: item 1: "positive_ctxs" must',
        ),
        (
            "dpr",
            '[{"question": "q", "positive_ctxs": []},\n{"question": "q"',
            "in:2: invalid or truncated JSON",
        ),
        ("dpr", "[1", "in:1: invalid or truncated JSON: no end of the array"),
        ("dpr", "[]", "nothing in it can be trained on (it is empty)"),
        ("dpr", '[{"question": "q", "positive_ctxs": []}]', "(1 queries without positive (1 at"),
        ("tevatron", '{"query": [1, 2]}', ":1: contains token ids"),
        (
            "tevatron",
            '{"query": "q", "positives": [[1, 2]], "negatives": []}',
            ":1: contains token ids",
        ),
        ("tevatron", '{"query": "q"}', ':1: expected "query" and "positive_passages"'),
        (
            "tevatron",
            '{"query": "q", "positive_passages": ["text"]}',
            'in:1: "positive_passages" must be a list',
        ),
        ("msmarco-triples", "q\tp\tn\nonly one\n", "in:2: expected query, positive and negative"),
        ("msmarco-triples", "1\t2\t3\n", "in:1: these are ids; give --queries and --collection"),
        ("tsv", "q\tp\textra\n", "in:1: expected query and passage"),
    ],
)
def test_wrong_content_is_one_line(tmp_path, capsys, kind, content, message):
    (tmp_path / "in").write_text(content)
    assert convert(tmp_path, kind, "in") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("msmarco-triples", "10\t0\t1\n10\t0\n", "in:2: expected query, positive and negative"),
        (
            "msmarco-triples",
            "10\t0\t1\n11\t1\t0\n10\t0\t2\n",
            "in:3: query 10 occurs twice; sort the lines",
        ),
        (
            "st-hard-negatives",
            '{"qid": 10, "pos": [0], "neg": [1]}',
            'in:1: expected "qid", "pos": [ids]',
        ),
        (
            "st-hard-negatives",
            '{"qid": 10, "pos": [0], "neg": {"a": [{"id": 1}]}}',
            'in:1: "a": an id must be',
        ),
        ("st-hard-negatives", '{"qid": 10, "neg": {}}', 'in:1: "pos" is not a list'),
        ("msmarco-qrels", "10 0 0 1\n10 0\n", "in:2: expected 4 columns"),
    ],
)
def test_wrong_content_with_ids_is_one_line(marco, capsys, kind, content, message):
    (marco / "in").write_text(content)
    assert convert(marco, kind, "in", *ids(marco)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(marco.glob("*out*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("10 0 9\n10 1\n", "scores:2: expected the columns qid, pid and score"),
        ("10 0 high\n", "scores:1: the score 'high' is not a number"),
        ("10 0 nan\n", "scores:1: the score 'nan' is not a number"),
        ("10 0 9\n11 1 9\n10 1 2\n", "scores:3: query 10 occurs twice"),
        ('{"qid": 10, "pid": 0}', "scores:1: the score None is not a number"),
        ('{"qid": 10}', 'scores:1: "pid": an id must be'),
        ('{"qid": 10, "scores": [1]}', 'scores:1: "scores" must be an object'),
    ],
)
def test_wrong_scores_are_one_line(hard, capsys, content, message):
    (hard / "scores").write_text(content)
    assert (
        convert(hard, "st-hard-negatives", "hard.jsonl.gz", *ids(hard), "--scores", hard / "scores")
        == 2
    )
    assert message in capsys.readouterr().err


def test_a_system_that_no_query_has(hard, capsys):
    assert convert(hard, "st-hard-negatives", "hard.jsonl.gz", *ids(hard), "--systems", "bm52") == 2
    assert "no system 'bm52'; choose from bm25, dense" in capsys.readouterr().err


def test_unknown_ids_are_named_and_counted(marco, capsys):
    (marco / "qrels.tsv").write_text("10\t0\t0\t1\n11\t0\t99\t1\n12\t0\t1\t1\n")
    assert convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco)) == 2
    said = capsys.readouterr().err
    assert "1 unknown queries (12), 1 unknown positives (99 of query 11); give the files" in said
    assert not list(marco.glob("*out*"))
    assert (
        convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), "--unknown", "skip", "--json")
        == 0
    )
    report = summary(capsys)
    assert (report["lines"], report["unknown_positives"], report["unknown_queries"]) == (1, 1, 1)


def test_unknown_negatives(marco, capsys):
    (marco / "t.tsv").write_text("10\t0\t1\n" + "".join(f"10\t0\t{n}\n" for n in range(90, 95)))
    assert convert(marco, "msmarco-triples", "t.tsv", *ids(marco)) == 2
    named = "90 of query 10, 91 of query 10, 92 of query 10, ..."
    assert f"5 unknown negatives ({named})" in capsys.readouterr().err
    assert convert(marco, "msmarco-triples", "t.tsv", *ids(marco), "--unknown", "skip") == 0
    assert read_mined(marco / "out.jsonl")[0].negatives == ("1",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--format msmarco-qrels --input x", "requires --queries"),
        ("--format titles --input x", "requires --titles"),
        ("--format dpr --input absent.json", "no such file"),
        ("--format dpr --input .", "expected a file"),
        ("--format beir --input pyproject.toml", "expected a BEIR folder"),
        ("--format dpr --input x --titles t", "--titles applies only with --format msmarco-qrels"),
        (
            "--format dpr --input x --systems bm25",
            "--systems applies only with --format st-hard-negatives",
        ),
        (
            "--format st-hard-negatives --input pyproject.toml --queries q --collection c --scores s.pkl.gz",
            "a pickle",
        ),
        (
            "--format st-hard-negatives --input x --queries q --collection c --titles t",
            "--titles applies only with",
        ),
        ("--format msmarco-triples --input x --queries q", "require --queries and --collection"),
        ("--format msmarco-triples --input x --scores s", "triples of texts have none"),
        ("--format tsv --input x --negatives -1", "must be at least 0"),
    ],
)
def test_misuse(tmp_path, capsys, words, message):
    assert main([*words.split(), "--output", str(tmp_path / "o.jsonl")]) == 2
    assert message in capsys.readouterr().err


def test_the_output_is_named_as_what_it_is(tmp_path, capsys):
    assert main(["--format", "tsv", "--input", "x", "--output", str(tmp_path / "pairs.tsv")]) == 2
    assert "ends in .jsonl or .jsonl.gz" in capsys.readouterr().err


# -- whole or not at all


def test_the_same_bytes_every_time(marco):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        assert convert(marco, "msmarco-qrels", "qrels.tsv", *ids(marco), output=name) == 0
    assert (marco / "a.jsonl.gz").read_bytes() == (marco / "b.jsonl.gz").read_bytes()


def test_an_error_leaves_what_was_there(tmp_path):
    (tmp_path / "p.tsv").write_text("q1\tyes\n")
    assert convert(tmp_path, "tsv", "p.tsv") == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "p.tsv").write_text("q2\tother\n" * 3 + "broken\n")
    assert convert(tmp_path, "tsv", "p.tsv") == 2
    assert (tmp_path / "out.jsonl").read_bytes() == before


KILLED = """
import os, signal, sys
from dupmae_ir.finetune.convert import main
from dupmae_ir.io import lines
plain = lines._encoded
count = 0
def encoded(row):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(row)
lines._encoded = encoded
sys.exit(main(sys.argv[1:]))
"""


def test_killed_it_leaves_nothing_and_goes_again(hard):
    scores = hard / "scores.tsv"
    scores.write_text(
        "".join(f"{q} {p} {s}\n" for q, row in SCORES.items() for p, s in row.items())
    )
    words = [
        "--format",
        "st-hard-negatives",
        "--input",
        hard / "hard.jsonl.gz",
        "--output",
        hard / "out.jsonl",
        *ids(hard),
        "--scores",
        scores,
        "--quiet",
    ]
    words = list(map(str, words))
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], check=False)
    assert killed.returncode == -signal.SIGKILL
    published = [
        hard / "out.jsonl",
        scores_path(hard / "out.jsonl"),
        record_path(hard / "out.jsonl"),
    ]
    assert not any(p.exists() for p in published)
    assert main(words) == 0
    assert all(p.exists() for p in published)
    assert len(read_mined(hard / "out.jsonl")) == 2
