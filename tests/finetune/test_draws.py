"""What is drawn for a query, what a batch says about it, and what is refused before training."""

from __future__ import annotations

import json

import pytest
import torch
from support.rerank_samples import write_mined
from support.tiny_models import tiny_tokenizer

from dupmae_ir.errors import InputError
from dupmae_ir.finetune.data import read_mined
from dupmae_ir.finetune.examples import (
    ExampleCollator,
    ExampleKey,
    PairExamples,
    TopicalBatches,
    TopicalSchedule,
    mined_examples,
)
from dupmae_ir.finetune.objective import group_by_length, other_answers
from dupmae_ir.finetune.pairs import Pair
from dupmae_ir.types import Document


@pytest.fixture
def mined(tmp_path):
    return write_mined(tmp_path, queries=12, negatives=6)


def test_negatives_are_the_best_ranked_ones_drawn_anew_each_epoch(mined):
    by_qid = {m.qid: m for m in read_mined(mined)}
    examples = mined_examples(mined, negatives=2, top=4, seed=0)
    seen = set()
    for epoch in range(30):
        example = examples[ExampleKey(3, epoch)]
        names = [d.docid for d in example.negatives]
        assert set(names) <= set(by_qid["q3"].negatives[:4])
        assert len(set(names)) == 2
        assert example == examples[ExampleKey(3, epoch)]
        seen.add(tuple(names))
    assert len(seen) > 5
    assert {examples[ExampleKey(3, e)].positive.docid for e in range(30)} == {"p3", "p3b"}
    other = mined_examples(mined, negatives=2, top=4, seed=1)
    assert [other[ExampleKey(3, e)] for e in range(5)] != [
        examples[ExampleKey(3, e)] for e in range(5)
    ]


def test_an_epoch_may_have_an_example_for_each_judgement(mined):
    queries = read_mined(mined)
    each = mined_examples(mined, negatives=2, top=4, seed=0, per_judgement=True)
    judged = [(query.query, positive.docid) for query in queries for positive in query.positives]
    assert len(judged) > len(queries)
    for epoch in (0, 1):
        drawn = [each[ExampleKey(row, epoch)] for row in range(len(each))]
        assert [(example.query, example.positive.docid) for example in drawn] == judged
        # Another positive of the query is no negative of this one.
        for example, query in zip(drawn, [q for q in queries for _ in q.positives], strict=True):
            assert len(example.answers) == len(query.positives)
    assert len(mined_examples(mined, negatives=2, top=4, seed=0)) == len(queries)


def test_scores_go_with_their_passages(mined, tmp_path):
    scores = tmp_path / "scores.jsonl"
    with open(scores, "w") as f:
        for m in read_mined(mined):
            ids = [*(p.docid for p in m.positives), *m.negatives]
            f.write(
                json.dumps({"qid": m.qid, "scores": {d: len(d) + hash(d) % 7 for d in ids}}) + "\n"
            )
    examples = mined_examples(mined, 3, 6, 0, scores)
    example = examples[ExampleKey(5, 2)]
    ids = [example.positive.docid, *(d.docid for d in example.negatives)]
    assert example.scores == tuple(len(d) + hash(d) % 7 for d in ids)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda row: row["negatives"].__setitem__(0, row["positives"][0]["id"]),
            "negative is a positive",
        ),
        (lambda row: row["negatives"].__setitem__(0, "n999"), "negative is not in"),
        (lambda row: row.__setitem__("positives", []), "has no positive"),
    ],
)
def test_what_is_wrong_with_a_mined_file_is_one_line(mined, spoil, message):
    rows = [json.loads(line) for line in mined.read_text().splitlines()]
    spoil(rows[2])
    mined.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(InputError) as e:
        mined_examples(mined, 2, 4, 0)
    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_missing_scores_are_counted(mined, tmp_path):
    scores = tmp_path / "scores.jsonl"
    scores.write_text('{"qid": "q0", "scores": {"p0": 1.0}}\n')
    with pytest.raises(InputError, match="passages have no score"):
        mined_examples(mined, 2, 4, 0, scores)


def test_a_batch_says_who_answers_whom():
    shared = Document("a", "the cat sat")
    pairs = [
        Pair("cat", shared, (Document("n", "the dog"), Document("n2", "the fox"))),
        Pair("sat", Document("b", "The  CAT sat", "mat"), (Document("n", "the dog"),)),
        Pair("cat", Document("c", "on the mat")),
    ]
    examples = PairExamples(pairs, negatives=2)
    batch = ExampleCollator(tiny_tokenizer(), 8, 8)([examples[ExampleKey(i, 0)] for i in range(3)])
    assert batch["group"].tolist() == [[0, 3, 4], [1, 5, -1], [2, -1, -1]]
    assert batch["document_ids"].shape[0] == 6
    # Equal texts answer each other's queries; a query asked twice has both answers; one's own target is not "same".
    expected = [
        [False, True, True, False, False, False],
        [True, False, False, False, False, False],
        [True, True, False, False, False, False],
    ]
    assert other_answers(batch).tolist() == expected


def test_a_pairs_own_negatives():
    negatives = tuple(Document(f"n{i}", f"text {i}") for i in range(5))
    pair = Pair("q", Document("p", "text 0"), negatives)
    drawn = [PairExamples([pair], 2)[ExampleKey(0, e)] for e in range(20)]
    assert all(len(e.negatives) <= 2 for e in drawn)
    # Text 0 is the positive by another name.
    assert not any(d.docid == "n0" for e in drawn for d in e.negatives)
    assert PairExamples([pair], 0)[ExampleKey(0, 0)].negatives == ()


def test_batches_run_over_epochs():
    pairs = [Pair(str(i), Document(str(i), str(i))) for i in range(10)]
    draws = [
        d
        for batch in TopicalSchedule(TopicalBatches([p.positive.docid for p in pairs], 4), 5)
        for d in batch
    ]
    assert len(draws) == 20
    assert [d.epoch for d in draws] == [0] * 8 + [1] * 8 + [2] * 4
    assert len({d.row for d in draws[:8]}) == 8
    assert [d.row for d in draws[:8]] != [d.row for d in draws[8:16]]


def test_texts_of_like_length_are_encoded_together():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 120, (64,), generator=generator).tolist()
    groups = group_by_length(lengths)
    assert sorted(row for g in groups for row in g) == list(range(64))
    padded = sum(len(g) * max(lengths[row] for row in g) for g in groups)
    assert 1 - sum(lengths) / padded < 0.1
    assert len(groups) < 12


@pytest.mark.parametrize("cost", [0, 3, 20, 1000])
def test_the_groups_are_the_cheapest_there_are(cost):
    """Against every way to cut nine sorted lengths."""
    lengths = [3, 9, 9, 4, 12, 30, 5, 7, 28]
    sorted_lengths = sorted(lengths, reverse=True)

    def price(groups):
        return sum(len(g) * g[0] + cost for g in groups)

    def cuts():
        for bits in range(1 << 8):
            groups = [[sorted_lengths[0]]]
            for i, n in enumerate(sorted_lengths[1:]):
                if bits >> i & 1:
                    groups.append([n])
                else:
                    groups[-1].append(n)
            yield groups

    found = [[lengths[row] for row in g] for g in group_by_length(lengths, cost)]
    assert price(found) == min(map(price, cuts()))
    assert group_by_length([], cost) == []
