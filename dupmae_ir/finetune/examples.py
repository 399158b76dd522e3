"""Training examples: a query with one positive, some negatives and, for distillation, the teacher's scores.

The positive and the negatives of a query in an epoch depend only on the seed, the epoch and the query.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune.data import (
    MinedQuery,
    Pair,
    Passages,
    open_passages,
    read_mined,
    read_scores,
    require_scores,
    text_key,
)
from dupmae_ir.finetune.lexical import LexicalBatches
from dupmae_ir.types import Document

ABSENT = -1
"""Padding of keys and columns."""


class ExampleKey(NamedTuple):
    """A row of the training set in an epoch; together they determine its negatives."""

    row: int
    epoch: int


class Example(NamedTuple):
    """One training example.

    ``answers`` are the text keys of all positives of the query, which are never its negatives; ``scores`` the
    teacher's, positive first.
    """

    query: str
    positive: Document
    negatives: tuple[Document, ...]
    answers: frozenset[int]
    scores: tuple[float, ...] = ()


class PairExamples(Dataset):
    """Pairs, each with at most ``negatives`` of its own negatives."""

    def __init__(self, pairs: Sequence[Pair], negatives: int = 0, seed: int = 0) -> None:
        self.pairs, self.negatives, self.seed = pairs, negatives, seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: ExampleKey) -> Example:
        pair = self.pairs[key.row]
        drawn: Sequence[Document] = pair.negatives
        if len(drawn) > self.negatives:
            drawn = _rng(self.seed, key).sample(drawn, self.negatives)
        answers = frozenset([text_key(pair.positive)])
        return Example(
            pair.query,
            pair.positive,
            tuple(d for d in drawn if text_key(d) not in answers),
            answers,
        )


@dataclass
class MinedExamples(Dataset):
    """MinedQuery queries: one positive each, and ``negatives`` sampled from its top ``top`` candidates.

    ``left_out`` is the number of queries without a negative, which are not included.
    """

    mined: Sequence[MinedQuery]
    passages: Passages
    negatives: int
    top: int
    seed: int = 0
    scores: Mapping[str, Mapping[str, float]] | None = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.mined)

    def __getitem__(self, key: ExampleKey) -> Example:
        query = self.mined[key.row]
        rng = _rng(self.seed, key)
        positive = query.positives[rng.randrange(len(query.positives))]
        best = query.negatives[: self.top]
        drawn = rng.sample(best, min(self.negatives, len(best)))
        scores = (
            ()
            if self.scores is None
            else tuple(self.scores[query.qid][d] for d in (positive.docid, *drawn))
        )
        answers = frozenset(map(text_key, query.positives))
        return Example(
            query.query, positive, tuple(self.passages[d] for d in drawn), answers, scores
        )


def _rng(seed: int, key: ExampleKey) -> random.Random:
    return random.Random(f"{seed} {key.epoch} {key.row}")


def mined_examples(
    path: str | Path,
    negatives: int,
    top: int,
    seed: int,
    scores: str | Path | None = None,
    collection: str | Path | None = None,
) -> MinedExamples:
    """Examples of a mined file, all of it checked before training starts.

    Args:
        path: mined file.
        negatives: negatives per query.
        top: candidates to sample them from.
        seed: random seed.
        scores: file of the teacher's scores.
        collection: the mined collection, if it has moved.

    Raises:
        InputError: negatives that are positives, unknown ids, missing scores (with counts), or no query with a
            negative.
    """
    mined = read_mined(path)
    with_negatives = [m for m in mined if m.negatives]
    if not with_negatives:
        raise InputError(
            f"{path}: none of its {len(mined):,} queries has a negative; mine with a larger `depth`"
        )
    passages = open_passages(path, mined, collection)
    by_query = None
    if scores is not None:
        by_query = read_scores(scores)
        require_scores(mined, by_query, scores)
    return MinedExamples(
        with_negatives, passages, negatives, top, seed, by_query, len(mined) - len(with_negatives)
    )


class TopicalBatches:
    """Batches of rows, made of small groups of neighbouring passages, in an order given by the seed and the epoch.

    Rows are sorted by the ids of their passages, ``docids``, and cut into groups of ``group_size``; a batch is a random
    sample of groups. Passages of one chapter or article are thus hard in-batch negatives of each other, at no cost.
    With ``group_size`` 1, batches are random.
    """

    def __init__(
        self, docids: Sequence[str], batch_size: int, group_size: int = 1, seed: int = 0
    ) -> None:
        if not 1 <= group_size <= batch_size <= len(docids):
            raise UsageError(
                f"`group_size` {group_size}, `batch_size` {batch_size} and {len(docids)} pairs do not fit: each must "
                "be at least 1 and at most the next"
            )
        self.docids, self.batch_size, self.group_size, self.seed = (
            docids,
            batch_size,
            group_size,
            seed,
        )

    def __len__(self) -> int:
        return len(self.docids) // self.batch_size

    def of_epoch(self, epoch: int) -> Iterator[list[int]]:
        """The batches of an epoch."""
        rng = random.Random(f"{self.seed} {epoch}")
        order = sorted(range(len(self.docids)), key=lambda i: (self.docids[i], i))
        # Another offset each epoch, so that the groups differ.
        shift = rng.randrange(self.group_size)
        order = order[shift:] + order[:shift]
        groups = [order[i : i + self.group_size] for i in range(0, len(order), self.group_size)]
        rng.shuffle(groups)
        flat = [i for group in groups for i in group]
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield flat[start : start + self.batch_size]


class TopicalSchedule:
    """The ``count`` batches of a training, epoch after epoch, from :class:`TopicalBatches`."""

    def __init__(self, batches: TopicalBatches, count: int) -> None:
        self.batches, self.count = batches, count
        self.batch_size, self.drop_last = batches.batch_size, True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[ExampleKey]]:
        batches = (
            [ExampleKey(row, n) for row in rows]
            for n in count()
            for rows in self.batches.of_epoch(n)
        )
        return islice(batches, self.count)


@dataclass(frozen=True)
class ExampleCollator:
    """Collates Q examples with D documents: the Q positives first, then all negatives.

    A batch has ``query_ids``, ``query_mask``, ``document_ids`` and ``document_mask``; int64 text keys ``query_keys``
    (Q,), ``document_keys`` (D,) and ``answers`` (Q, P), padded with -1; ``group`` (Q, 1 + N), the columns of a query's
    positive and negatives, padded with -1; in distillation ``teacher_scores`` (Q, 1 + N); and the tensors of
    ``lexical`` for a model with lexical OT weights.
    """

    tokenizer: PreTrainedTokenizerBase
    query_length: int
    document_length: int
    separator: str = " "
    lexical: LexicalBatches | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        documents = [e.positive for e in examples] + [d for e in examples for d in e.negatives]
        queries = self.tokens([e.query for e in examples], self.query_length)
        passages = self.tokens([d.joined(self.separator) for d in documents], self.document_length)
        groups, first = [], len(examples)
        for i, e in enumerate(examples):
            groups.append([i, *range(first, first + len(e.negatives))])
            first += len(e.negatives)
        # Keys of 63 bits, so that -1 is none.
        batch = {
            "query_ids": queries["input_ids"],
            "query_mask": queries["attention_mask"],
            "document_ids": passages["input_ids"],
            "document_mask": passages["attention_mask"],
            "query_keys": torch.tensor([text_key(Document("", e.query)) >> 1 for e in examples]),
            "document_keys": torch.tensor([text_key(d) >> 1 for d in documents]),
            "answers": _padded([sorted(k >> 1 for k in e.answers) for e in examples], ABSENT),
            "group": _padded(groups, ABSENT),
        }
        if examples[0].scores:
            batch["teacher_scores"] = _padded([list(e.scores) for e in examples], 0.0)
        if self.lexical is not None:
            batch |= self.lexical([e.query for e in examples], documents)
        return batch

    def tokens(self, texts: list[str], length: int) -> BatchEncoding:
        """Padded ids and mask of texts truncated to ``length`` word pieces."""
        return self.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=length,
            return_tensors="pt",
            return_token_type_ids=False,
        )


def _padded(rows: Sequence[Sequence[Any]], filler: float) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])
