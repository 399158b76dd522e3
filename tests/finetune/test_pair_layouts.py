"""Pairs in the layouts of other libraries, recognised by their contents."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from dupmae_ir import fine_tune
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune.pairs import Pair, read_dev_pairs, read_pairs
from dupmae_ir.types import Document

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "pairs"
QUERY = "what eats frogs"
ANSWER = "The heron eats frogs at the pond."
OTHER = "The stork nests on roofs."
FIRST = Pair(QUERY, Document("", ANSWER), (Document("", OTHER),))
ROWS = [
    (QUERY, ANSWER, OTHER),
    ("when does the mill work", "The mill grinds barley on Fridays.", "The bakery opens at six."),
]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def named(*names):
    return [dict(zip(names, row, strict=False)) for row in ROWS]


LAYOUTS = {
    "ours.jsonl": lines(
        {"query": q, "positive": {"text": a}, "negatives": [n]} for q, a, n in ROWS
    ),
    "flag.jsonl": lines(
        {"query": q, "pos": [a], "neg": [n], "pos_scores": [0.9], "neg_scores": [0.1]}
        for q, a, n in ROWS
    ),
    "triplets.jsonl": lines(named("anchor", "positive", "negative")),
    "numbered.jsonl": lines(named("query", "answer", "negative_1")),
    "array.json": json.dumps(named("question", "passage", "negative"), indent=1),
    "dpr.json": json.dumps(
        [
            {
                "question": q,
                "answers": ["heron"],
                "positive_ctxs": [{"title": "", "text": a, "passage_id": "1"}],
                "hard_negative_ctxs": [{"title": "", "text": n, "psg_id": "2"}],
                "negative_ctxs": [],
            }
            for q, a, n in ROWS
        ]
    ),
    "tevatron.jsonl": lines(
        {
            "query_id": str(i),
            "query": q,
            "positive_passages": [{"docid": f"p{i}", "title": "", "text": a}],
            "negative_passages": [{"docid": f"n{i}", "title": "", "text": n}],
        }
        for i, (q, a, n) in enumerate(ROWS)
    ),
    "triples.tsv": "".join("\t".join(row) + "\n" for row in ROWS),
    "header.tsv": "anchor\tpositive\tnegative\n" + "".join("\t".join(row) + "\n" for row in ROWS),
    "labels.jsonl": lines(
        {"sentence1": q, "sentence2": text, "label": label}
        for q, a, n in ROWS
        for text, label in ((a, 1), (n, 0))
    ),
}


def written(folder, name, content):
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_other_libraries(tmp_path, name):
    pairs = read_pairs(written(tmp_path, name, LAYOUTS[name]))
    assert [pair.query for pair in pairs] == [row[0] for row in ROWS]
    assert pairs[0].positive.text == ANSWER
    assert [document.text for document in pairs[0].negatives] == [OTHER]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_compressed_file_is_the_same(tmp_path, name):
    plain = written(tmp_path, name, LAYOUTS[name])
    zipped = tmp_path / f"{name}.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_pairs(zipped) == read_pairs(plain)


def test_csv_with_quoted_cells(tmp_path):
    path = tmp_path / "pairs.csv"
    with open(path, "w", encoding="utf-8", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["query", "positive", "negative"])
        writer.writerow(['what, "exactly"', "two\nlines", OTHER])
    assert read_pairs(path) == [
        Pair('what, "exactly"', Document("", "two\nlines"), (Document("", OTHER),))
    ]


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(named("anchor", "positive", "negative"))
    frame.to_parquet(tmp_path / "pairs.parquet")
    assert read_pairs(tmp_path / "pairs.parquet")[0] == FIRST
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_pairs(tmp_path / "broken.parquet")


def test_a_saved_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"query": q, "pos": [a], "neg": [n]} for q, a, n in ROWS]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    assert read_pairs(tmp_path / "saved")[0] == FIRST


def beir_folder(folder, split):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        lines([{"_id": "d1", "title": "Birds", "text": ANSWER}, {"_id": "d2", "text": OTHER}])
    )
    (folder / "queries.jsonl").write_text(lines([{"_id": "q1", "text": QUERY}]))
    (folder / "qrels" / f"{split}.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n"
    )
    return folder


def test_a_folder_in_beirs_layout(tmp_path):
    expected = [Pair(QUERY, Document("d1", ANSWER, "Birds"))]
    assert read_pairs(beir_folder(tmp_path / "train", "train")) == expected
    dev = beir_folder(tmp_path / "dev", "dev")
    assert read_dev_pairs(dev) == expected
    with pytest.raises(InputError, match=r"no judgements qrels/train\.tsv; splits here: dev"):
        read_pairs(dev)


def test_several_positives_are_several_pairs(tmp_path):
    path = written(tmp_path, "p.jsonl", lines([{"query": QUERY, "pos": [ANSWER, "Owls, too."]}]))
    assert [pair.positive.text for pair in read_pairs(path)] == [ANSWER, "Owls, too."]


def test_what_was_recognised_is_said_with_the_first_pair(tmp_path, capsys):
    read_pairs(written(tmp_path, "flag.jsonl", LAYOUTS["flag.jsonl"]), quiet=False)
    told = capsys.readouterr().err
    assert "JSON lines with query, pos, neg (not used: pos_scores, neg_scores)" in told
    assert f"first pair: {QUERY!r} -> {ANSWER!r}" in told


MINED = {"qid": "1", "query": "q", "positives": [], "negatives": [], "scores": [], "ranks": []}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.jsonl", lines([{"query": "q", "answer": "a", "context": "c"}]), "'answer' and 'context' could both be"),
        ("p.jsonl", lines([{"left": "q", "right": "a"}]), "which are: left, right"),
        ("p.jsonl", lines([{"query": "q", "right": "a"}]), 'no "positive" (or pos, '),
        ("p.jsonl", lines([MINED]), "give the file as `mined`"),
        ("p.jsonl", lines([{"qid": "1", "pos": ["2"], "neg": {"bm25": ["3"]}}]), "st-hard-negatives"),
        ("p.jsonl", lines([{"query": "q", "passage": "a", "score": 4.5}]), "a number from 0 to 1, got 4.5"),
        ("p.jsonl", lines([{"query": "q", "passage": "a", "label": 0}]), "no pair in it has a passage"),
        ("p.jsonl", lines([{"query": "q", "pos": []}]), 'no "pos"'),
        ("p.csv", "left,right\na,b\n", "the first line must name the columns"),
        ("p.csv", "query,positive\na,b,c\n", "p.csv:2: 3 cells, expected 2"),
        ("p.csv", 'query,positive\na,"b\n', "not CSV"),
        ("p.json", '["text"]', "expected an object"),
        ("p.tsv", "1\t2\t3\n", "these are ids"),
        ("p.tsv", "query\tpositive\na\n", "expected query<TAB>positive, got 1 column(s)"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(tmp_path, name, content, says):
    with pytest.raises(InputError) as e:
        read_pairs(written(tmp_path, name, content))
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="neither a saved dataset nor a folder in BEIR's layout"):
        read_pairs(tmp_path)


# ---- Training with them


TINY = {"group_size": 1, "log_steps": 1, "negatives": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny BERT masked LM."""
    import torch
    from support.tiny_models import tiny_config, tiny_tokenizer
    from transformers import BertForMaskedLM

    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def two_steps(pairs, base, output):
    trained = fine_tune(pairs, base, output, steps=2, batch_size=2, options=TINY)
    assert (trained.path / "model.safetensors").is_file()
    return trained


def some(names, often):
    """Names as parameters: all are read in every run, and those not in ``often`` are trained by night."""
    for name in names:
        yield pytest.param(name, marks=() if name in often else pytest.mark.nightly)


@pytest.mark.parametrize("name", list(some(LAYOUTS, ("ours.jsonl", "dpr.json"))))
def test_each_layout_trains(tmp_path, base, name):
    two_steps(written(tmp_path, name, LAYOUTS[name]), base, tmp_path / "model")


@pytest.mark.nightly
def test_folders_and_parquet_train(tmp_path, base):
    datasets = pytest.importorskip("datasets")
    rows = [{"query": q, "pos": [a], "neg": [n]} for q, a, n in ROWS]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "pairs.parquet"))
    dev = beir_folder(tmp_path / "beir", "dev")
    beir = beir_folder(tmp_path / "train", "train")
    (beir / "qrels" / "train.tsv").write_text("q1\td1\t1\nq1\td2\t1\n")
    for number, pairs in enumerate((tmp_path / "saved", tmp_path / "pairs.parquet", beir)):
        trained = fine_tune(
            pairs, base, tmp_path / f"m{number}", dev=dev, steps=2, batch_size=2, options=TINY
        )
        assert any(name.startswith("eval_") for row in trained.log for name in row)


@pytest.mark.skipif(not CASES.is_dir(), reason="shared/cases is not there")
@pytest.mark.parametrize(
    "name", ["anchor_positive_negative.jsonl", "flagembedding.jsonl", "pairs.csv", "tevatron.jsonl"]
)
def test_the_files_of_public_questions_train(tmp_path, base, name):
    two_steps(CASES / name, base, tmp_path / "model")


def test_pairs_in_memory_train(tmp_path, base):
    pandas = pytest.importorskip("pandas")
    rows = named("anchor", "positive", "negative")
    two_steps(pandas.DataFrame(rows), base, tmp_path / "frame")
    two_steps((row for row in ROWS), base, tmp_path / "generator")
    two_steps(rows, base, tmp_path / "dictionaries")


def test_too_few_pairs_say_what_to_change(tmp_path, base):
    pairs = [row[:2] for row in ROWS]
    with pytest.raises(
        UsageError, match="2 pairs do not fill a batch; give `batch_size` 2 or less"
    ):
        fine_tune(pairs, base, tmp_path / "m", steps=1, batch_size=8)
    with pytest.raises(UsageError, match="`group_size` 8 is larger than `batch_size` 2"):
        fine_tune(pairs, base, tmp_path / "m", steps=1, batch_size=2)
