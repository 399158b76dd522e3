"""The study of sentences and titles: its scores against sums by hand, its choice and its rule."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sentences_tables
from scipy import sparse
from sentences_and_titles import COVERED, SHARES, Collection, covered, measure, windows_of

from dupmae_ir.models import load_encoder
from dupmae_ir.models.word_pieces import read_word_pieces
from dupmae_ir.types import Document

FILLER = "The river is wide and the boats are old. "
SENTENCES = [
    "A fox sleeps under the bridge. ",
    "The baker sells bread with seeds. ",
    "Nobody repairs the clock of the tower. ",
]


@pytest.fixture
def folder(tmp_path):
    """Three passages of the same title, each with a sentence of its own in the middle, and a short one."""
    documents = [
        Document(f"d{i}", FILLER * 12 + text + FILLER * 12, "Town")
        for i, text in enumerate(SENTENCES)
    ]
    documents.append(Document("d3", "A short text.", "Other"))
    with (tmp_path / "corpus.jsonl").open("w") as f:
        for docid, text, title, _ in documents:
            f.write(json.dumps({"_id": docid, "title": title, "text": text}) + "\n")
    questions = ["What sleeps under the bridge?", "Who sells bread?", "What does nobody repair?"]
    with (tmp_path / "queries.jsonl").open("w") as f:
        for i, question in enumerate(questions):
            f.write(json.dumps({"_id": f"q{i}", "text": question}) + "\n")
    (tmp_path / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(3))]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_windows_are_whole_sentences_of_the_passage():
    pieces = read_word_pieces(None)
    text = FILLER * 12 + SENTENCES[0] + FILLER * 12
    found = list(windows_of(Document("d", text, "Town"), pieces, 64, 32))
    assert len(found) > 5
    for window in found:
        assert window.startswith("Town ")
        assert window.endswith(".")
        assert window.removeprefix("Town ") in text
        assert len(pieces.starts(window)) <= 64 + 2
    assert len(list(windows_of(Document("d", "A short text."), pieces, 64, 32))) == 1


def test_scores_are_those_of_the_vectors(folder, tmp_path):
    collection = Collection(folder, tmp_path / "vectors")
    parts = collection.parts(load_encoder())
    best = collection.best_windows(parts.dense, 64, 32)
    untitled = collection.without_shared_titles(parts.dense, 1)
    encoder = load_encoder(parts=("cls",), dtype="mixed")
    asked = encoder.encode_queries([topic.text for topic in collection.topics]).cls
    for row, document in enumerate(collection.documents[:3]):
        windows = list(windows_of(document, read_word_pieces(None), 64, 32))
        expected = (asked @ encoder.encode_documents(windows).cls.T).max(1)
        np.testing.assert_allclose(best[:, row], expected, rtol=0.03, atol=0.05)
        text_alone = asked @ encoder.encode_documents([document.text]).cls[0]
        np.testing.assert_allclose(untitled[:, row], text_alone, rtol=0.03, atol=0.05)
    # The short passage has no windows, and no other one has its title.
    np.testing.assert_array_equal(best[:, 3], parts.dense[:, 3])
    np.testing.assert_array_equal(untitled[:, 3], parts.dense[:, 3])
    np.testing.assert_array_equal(collection.without_shared_titles(parts.dense, 3), parts.dense)
    # The vectors of an earlier run are read again.
    (stored,) = (tmp_path / "vectors").glob("windows.64.32.*.npy")
    np.save(stored, np.load(stored) * 0)
    assert (collection.best_windows(parts.dense, 64, 32)[:, :3] == 0).all()


def test_how_much_of_a_query_the_best_passage_has():
    asked = sparse.csr_matrix([[2.0, 1.0, 1.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
    stored = sparse.csr_matrix([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    words = (asked @ stored.T).toarray()
    assert covered(asked, stored, words).tolist() == [0.75, 0.0, 0.0]


@pytest.mark.nightly
def test_the_record_of_a_collection(folder, tmp_path):
    record = measure(folder, tmp_path / "vectors")
    assert record["queries"] == ["q0", "q1", "q2"]
    settings = record["settings"]
    assert len(settings) == 1 + 3 * len(SHARES) + 1 + 3 + len(COVERED)
    for part in ("meaning", "hybrid"):
        assert all(0 <= value <= 1 for value in settings["today"][part]["nDCG@10"])
    # A question's sentence is a small part of a passage, and all of what is special in a window.
    assert sum(settings["window 64, share 1"]["meaning"]["nDCG@10"]) == 3
    assert "meaning" not in settings["half from 0.9"]


def records(folder, changes, queries=200):
    """Records in which each setting of an arm has today's values plus some noise and a change by collection."""
    rng = np.random.default_rng(0)
    for name in (*sentences_tables.CHOOSE_BY, *sentences_tables.NEW, sentences_tables.DEMO):
        today = rng.uniform(0.3, 0.6, queries)
        settings = {"today": today}
        for number, (setting, change) in enumerate(changes.items()):
            gain = change.get(name, change[""])
            settings[setting] = today + gain + rng.normal(0, 0.01, queries) * (number > 0)
        record = {"queries": list(range(queries)), "settings": {}}
        for setting, values in settings.items():
            record["settings"][setting] = {"hybrid": {"nDCG@10": values.tolist()}}
        (folder / f"{name}.json").write_text(json.dumps(record))
    return sentences_tables.read_records(folder)


def test_the_rule(tmp_path):
    found = sentences_tables.results(
        records(
            tmp_path,
            {
                "window 64, share 0.2": {"": 0.01},
                "window 64, share 0.3": {"": 0.03},
                "shorter passages": {"": 0.02, "cacm": -0.02},
                "titles of at most 1": {"": 0.004},
                "half from 0.6": {"": 0.0},
            },
        )
    )
    assert [result.setting for result in found] == [
        "window 64, share 0.3",
        "shorter passages",
        "titles of at most 1",
        "half from 0.6",
    ]
    assert [result.answer for result in found] == [
        "met, if its costs are",
        "gains, but loses on cacm",
        "not shown",
        "not shown",
    ]
    assert abs(found[0].gain - 0.03) < 0.002


def test_each_new_collection_counts_once(tmp_path):
    found = records(tmp_path, {"window 64, share 0.2": {"": 0.0, "stories": 0.1}})
    smaller = {**found["stories"], "queries": found["stories"]["queries"][:20]}
    values = found["stories"]["settings"]
    smaller["settings"] = {
        name: {"hybrid": {"nDCG@10": value["hybrid"]["nDCG@10"][:20]}}
        for name, value in values.items()
    }
    difference = sentences_tables.differences({**found, "stories": smaller}, "window 64, share 0.2")
    assert len(difference) == 220
    assert abs(difference.mean() - 0.05) < 1e-9


def test_a_missing_record_is_named(tmp_path, capsys):
    assert sentences_tables.main([str(tmp_path)]) == 2
    assert "covid.json: no such record" in capsys.readouterr().err
