"""Documents, queries, judgements, runs and training data as programs hold them."""

from __future__ import annotations

import datetime
from collections import namedtuple

import numpy as np
import pytest

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io import in_memory
from dupmae_ir.io.runs import any_run
from dupmae_ir.types import Document, Hit, Query

ROWS = [
    {"id": 1, "title": "Heron", "text": "eats frogs", "year": 2024},
    {"id": 2, "title": "Stork", "text": "nests on roofs", "year": 2025},
]
DOCUMENTS = [
    Document("1", "eats frogs", "Heron", {"year": 2024}),
    Document("2", "nests on roofs", "Stork", {"year": 2025}),
]


class LikePolars:
    """What is used of a DataFrame of polars."""

    def __init__(self, rows):
        self.rows = rows

    def iter_rows(self, named=False):
        assert named
        return iter(self.rows)


class LikeIrDatasets:
    """What is used of a dataset of ir_datasets."""

    Doc = namedtuple("Doc", "doc_id title text year")
    Asked = namedtuple("Asked", "query_id text")
    Judged = namedtuple("Judged", "query_id doc_id relevance iteration")

    def docs_iter(self):
        return iter(self.Doc(row["id"], row["title"], row["text"], row["year"]) for row in ROWS)

    def queries_iter(self):
        return iter([self.Asked("q1", "frogs"), self.Asked("q2", "roofs")])

    def qrels_iter(self):
        return iter([self.Judged("q1", "1", 2, "0"), self.Judged("q2", "2", 1, "0")])


def pandas_frame(rows):
    return pytest.importorskip("pandas").DataFrame(rows)


def arrow_table(rows):
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def dataset(rows):
    return pytest.importorskip("datasets").Dataset.from_list(rows)


def polars_frame(rows):
    return pytest.importorskip("polars").DataFrame(rows)


FORMS = [list, iter, pandas_frame, arrow_table, dataset, LikePolars, polars_frame]


@pytest.mark.parametrize("form", FORMS)
def test_documents_in_every_form(form):
    assert list(in_memory.documents(form(ROWS))) == DOCUMENTS


def test_documents_of_ir_datasets():
    assert list(in_memory.documents(LikeIrDatasets())) == DOCUMENTS


def test_documents_as_tuples_and_objects():
    rows = [("1", "eats frogs"), ["2", "nests", "Stork"], Document("3", "x", "", {"a": 1})]
    assert list(in_memory.documents(rows)) == [
        Document("1", "eats frogs"),
        Document("2", "nests", "Stork"),
        Document("3", "x", "", {"a": 1}),
    ]


def test_documents_by_id_as_beirs_loader_gives_them():
    corpus = {"1": {"title": "Heron", "text": "eats frogs"}, "2": "nests on roofs"}
    assert list(in_memory.documents(corpus)) == [
        Document("1", "eats frogs", "Heron"),
        Document("2", "nests on roofs"),
    ]
    assert in_memory.queries({"q1": "frogs"}) == ([Query("q1", "frogs")], True)


@pytest.mark.parametrize("name", in_memory.DOCUMENT_IDS)
def test_names_of_ids(name):
    (document,) = in_memory.documents([{name: "a", "text": "x"}])
    assert document.docid == "a"


@pytest.mark.parametrize("name", in_memory.DOCUMENT_TEXTS)
def test_names_of_texts(name):
    (document,) = in_memory.documents([{"id": "a", name: "x"}])
    assert document.text == "x"


@pytest.mark.parametrize("form", [pandas_frame, arrow_table, dataset, LikePolars])
def test_rows_of_a_table_without_ids_are_numbered(form):
    rows = [{"text": "a"}, {"text": "b"}]
    assert [d.docid for d in in_memory.documents(form(rows))] == ["0", "1"]


def test_values_of_tables_become_pythons():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "id": np.array([7, 8]),
            "text": ["a", None],
            "share": [0.5, float("nan")],
            "day": [datetime.date(2024, 5, 1), None],
            "tags": [np.array(["x", "y"]), None],
        }
    )
    first, second = in_memory.documents(frame)
    assert first == Document("7", "a", "", {"share": 0.5, "day": "2024-05-01", "tags": ["x", "y"]})
    assert second == Document("8", "")


def test_a_generator_is_read_one_document_at_a_time():
    read = []

    def rows():
        for number in range(3):
            read.append(number)
            yield (number, "text")

    documents = in_memory.documents(rows())
    next(documents)
    assert read == [0]


def test_half_of_a_surrogate_pair_becomes_a_question_mark():
    (document,) = in_memory.documents([("a", "x\ud800y")])
    assert document.text == "x?y"
    assert in_memory.queries(["x\ud800"]).topics == [Query("0", "x?")]


NOTHING = object()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "`corpus`: expected a file, a folder, or rows of documents"),
        (3, "got 3"),
        (b"x", "got b'x' (a bytes)"),
        (["a text"], "`corpus`, row 0 is a text without an id: 'a text'; give texts as `texts`"),
        ([("a", None)], "`corpus`, row 0: the text is None; expected a string"),
        ([Document("a", None)], "`corpus`, row 0: the text is None; expected a string"),
        ([Document("a", "x", None)], "`corpus`, row 0: the title is None; expected a string"),
        ([(1.5, "x")], "the id is 1.5; expected a string or an integer"),
        ([(True, "x")], "the id is True; expected a string or an integer"),
        ([("a b", "x")], "contains white space"),
        ([("a", "x"), 3], "`corpus`, row 1: expected a Document, a dictionary"),
        ([{"text": "x"}], "`corpus`, row 0: no id: expected 'id' or '_id'"),
        ([{"id": "a", "words": "x"}], "no text: expected 'text' or 'contents'"),
        ({"id": "a", "text": "x"}, "one dictionary with an id; put it in a list"),
        (np.array(3), "expected a file"),
    ],
)
def test_what_is_no_document_is_one_line(data, says):
    with pytest.raises(UsageError) as e:
        list(in_memory.documents(data))
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_several_splits_of_a_dataset_must_be_chosen_from():
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list(ROWS)
    with pytest.raises(UsageError, match="has the splits train, dev; give one of them"):
        list(in_memory.documents(datasets.DatasetDict({"train": one, "dev": one})))


# ---- Queries


TOPICS = [{"qid": "q1", "query": "frogs"}, {"qid": "q2", "query": "roofs"}]


@pytest.mark.parametrize("form", FORMS)
def test_topics_in_every_form(form):
    assert in_memory.queries(form(TOPICS)) == ([Query("q1", "frogs"), Query("q2", "roofs")], True)


def test_topics_of_ir_datasets():
    assert in_memory.queries(LikeIrDatasets()).topics == [
        Query("q1", "frogs"),
        Query("q2", "roofs"),
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ["frogs", "roofs"],
        ("frogs", "roofs"),
        np.array(["frogs", "roofs"]),
        (text for text in ("frogs", "roofs")),
        LikePolars([{"query": "frogs"}, {"query": "roofs"}]),
    ],
)
def test_texts_without_ids(texts):
    assert in_memory.queries(texts) == ([Query("0", "frogs"), Query("1", "roofs")], False)


def test_a_column_of_texts():
    assert not in_memory.queries(pandas_frame(TOPICS)["query"]).with_ids


def test_no_queries():
    assert in_memory.queries([]) == ([], False)
    assert in_memory.queries({}) == ([], True)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "`queries`: expected a text, or rows of texts or topics"),
        ([None], "`queries`, row 0: expected a text, a Query"),
        ([Query("1", None)], "`queries`, row 0: the text is None; expected a string"),
        ([{"qid": "1"}], "`queries`, row 0: no text; expected one of text, query"),
        (["a", ("1", "b")], "`queries`: give texts or topics with ids, not both"),
        ([("1", "a"), ("1", "b")], "two topics have the id '1'"),
    ],
)
def test_what_is_no_query_is_one_line(data, says):
    with pytest.raises(UsageError) as e:
        in_memory.queries(data)
    assert says in str(e.value)


# ---- Judgements and runs


JUDGED = [
    {"query_id": "q1", "doc_id": "1", "relevance": 2},
    {"query_id": "q2", "doc_id": "2", "relevance": 0},
]
QRELS = {"q1": {"1": 2}, "q2": {"2": 0}}


@pytest.mark.parametrize("form", FORMS)
def test_judgements_in_every_form(form):
    assert in_memory.judgements(form(JUDGED)) == QRELS


def test_judgements_as_tuples_dictionaries_and_files(tmp_path):
    assert in_memory.judgements([("q1", "1", 2), ("q2", "0", "2", 0)]) == QRELS
    assert in_memory.judgements({"q1": {"1": 2.0}, "q2": {2: np.int64(0)}}) == QRELS
    (tmp_path / "qrels.txt").write_text("q1 0 1 2\nq2 0 2 0\n")
    assert in_memory.judgements(tmp_path / "qrels.txt") == QRELS
    assert in_memory.judgements(LikeIrDatasets()) == {"q1": {"1": 2}, "q2": {"2": 1}}


@pytest.mark.parametrize("form", FORMS)
def test_runs_in_every_form(form):
    rows = [{"qid": "q1", "docno": "1", "score": 2.5, "rank": 0}]
    assert in_memory.run_of(form(rows)) == {"q1": {"1": 2.5}}


def test_runs_as_tuples_hits_and_files(tmp_path):
    expected = {"q1": {"1": 2.5, "2": 1.0}}
    assert in_memory.run_of([("q1", "1", 2.5), ("q1", "2", np.float32(1))]) == expected
    assert in_memory.run_of({"q1": [Hit("1", 2.5), ("2", 1)]}) == expected
    assert in_memory.run_of({"q1": {"1": 2.5, "2": 1}}) == expected
    (tmp_path / "run.trec").write_text("q1 Q0 1 1 2.5 t\nq1 Q0 2 2 1 t\n")
    assert any_run(tmp_path / "run.trec") == expected


@pytest.mark.parametrize(
    ("read", "data", "says"),
    [
        (in_memory.judgements, None, "`qrels`: expected a file"),
        (in_memory.judgements, {"q": 3}, "`qrels`, query 'q': expected {document id: grade}"),
        (in_memory.judgements, {"q": {"d": "x"}}, "the grade is 'x'; expected an integer"),
        (in_memory.judgements, {"q": {"d": 0.5}}, "the grade is 0.5; expected an integer"),
        (in_memory.judgements, [("q", "d")], "`qrels`, row 0: expected (query id, document id"),
        (in_memory.judgements, [("q", "d", 1), ("q", "d", 2)], "has grade 2 here and 1 before"),
        (in_memory.judgements, [{"qid": "q", "score": 1}], "no document id; expected one of"),
        (any_run, None, "`run`: expected a file"),
        (in_memory.run_of, {"q": 3}, "`run`, query 'q': expected hits"),
        (in_memory.run_of, {"q": ["d"]}, "expected a Hit or (docid, score)"),
        (in_memory.run_of, {"q": {"d": "1"}}, "the score is '1'; expected a number"),
        (in_memory.run_of, [("q", "d", 1), ("q", "d", 1)], "document 'd' is listed twice"),
    ],
)
def test_what_is_no_judgement_or_hit_is_one_line(read, data, says):
    with pytest.raises(UsageError) as e:
        read(data)
    assert says in str(e.value)


# ---- Training data


class InputExample:
    """sentence-transformers' own."""

    def __init__(self, texts, label=0):
        self.texts = texts
        self.label = label


def test_training_rows():
    rows = [
        ("q", "a"),
        ("q", "a", "n1", "n2"),
        {"anchor": "q", "scores": np.array([0.5])},
        InputExample(["q", "a"], label=1.0),
    ]
    assert list(in_memory.training_rows(rows, "pairs", "pairs")) == [
        {"query": "q", "positive": "a"},
        {"query": "q", "positive": "a", "negatives": ["n1", "n2"]},
        {"anchor": "q", "scores": [0.5]},
        {"query": "q", "positive": "a", "label": 1.0},
    ]
    with pytest.raises(InputError, match="`pairs`, row 0: expected a dictionary or a tuple"):
        list(in_memory.training_rows(["q"], "pairs", "pairs"))
