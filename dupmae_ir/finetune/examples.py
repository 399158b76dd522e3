"""Training examples: a query with one positive, some negatives and, for distillation, the teacher's scores.

The positive and the negatives of a query in an epoch depend only on the seed, the epoch and the query.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune.data import (
    MinedQuery,
    Passages,
    open_passages,
    read_mined,
    read_scores,
    require_scores,
    text_key,
)
from dupmae_ir.finetune.lexical import LexicalBatches
from dupmae_ir.finetune.pairs import Pair
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
    """Pairs, each with a sample of at most ``negatives`` of the negatives that it names."""

    def __init__(self, pairs: Sequence[Pair], negatives: int = 0, seed: int = 0) -> None:
        self.pairs = pairs
        self.negatives = negatives
        self.seed = seed

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: ExampleKey) -> Example:
        pair = self.pairs[key.row]
        sample: Sequence[Document] = pair.negatives
        if len(sample) > self.negatives:
            sample = _rng(self.seed, key).sample(sample, self.negatives)
        answers = frozenset([text_key(pair.positive)])
        negatives = tuple(passage for passage in sample if text_key(passage) not in answers)
        return Example(pair.query, pair.positive, negatives, answers)


QueryWithPositive = tuple[MinedQuery, Document | None]
"""The query of an example, and its positive; None if one is drawn at random."""


def example_rows(mined: Sequence[MinedQuery], per_judgement: bool) -> list[QueryWithPositive]:
    """The examples of an epoch: one for each query, or one for each positive of each query."""
    rows: list[QueryWithPositive] = []
    for query in mined:
        if per_judgement:
            rows += [(query, positive) for positive in query.positives]
        else:
            rows.append((query, None))
    return rows


@dataclass
class MinedExamples(Dataset):
    """Mined queries, each with one of its positives and ``negatives`` sampled from its top ``top`` candidates.

    ``left_out`` is the number of queries without a negative, which are not included. With ``per_judgement`` there is an
    example for each positive of a query; otherwise one, with a positive drawn at random.
    """

    mined: Sequence[MinedQuery]
    passages: Passages
    negatives: int
    top: int
    seed: int = 0
    scores: Mapping[str, Mapping[str, float]] | None = None
    left_out: int = 0
    per_judgement: bool = False

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def _rows(self) -> list[QueryWithPositive]:
        return example_rows(self.mined, self.per_judgement)

    def __getitem__(self, key: ExampleKey) -> Example:
        query, positive = self._rows[key.row]
        rng = _rng(self.seed, key)
        if positive is None:
            positive = query.positives[rng.randrange(len(query.positives))]
        candidates = query.negatives[: self.top]
        sample = rng.sample(candidates, min(self.negatives, len(candidates)))
        scores: tuple[float, ...] = ()
        if self.scores is not None:
            query_scores = self.scores[query.qid]
            scores = tuple(query_scores[docid] for docid in (positive.docid, *sample))
        negatives = tuple(self.passages[docid] for docid in sample)
        answers = frozenset(map(text_key, query.positives))
        return Example(query.query, positive, negatives, answers, scores)


def _rng(seed: int, key: ExampleKey) -> random.Random:
    # Python seeds from a string by its SHA-512, so that every process draws the same.
    return random.Random(f"{seed} {key.epoch} {key.row}")


def mined_examples(
    path: str | Path,
    negatives: int,
    top: int,
    seed: int,
    scores: str | Path | None = None,
    collection: str | Path | None = None,
    per_judgement: bool = False,
) -> MinedExamples:
    """Examples of a mined file, all of it checked before training starts.

    Args:
        path: mined file.
        negatives: negatives per query.
        top: candidates to sample them from.
        seed: random seed.
        scores: file of the teacher's scores.
        collection: the mined collection, if it has moved.
        per_judgement: an example for each positive of a query.

    Raises:
        InputError: negatives that are positives, unknown ids, missing scores (with counts), or no query with a
            negative.
    """
    mined = read_mined(path)
    with_negatives = [query for query in mined if query.negatives]
    if not with_negatives:
        raise InputError(
            f"{path}: none of its {len(mined):,} queries has a negative; mine with a larger `depth`"
        )
    passages = open_passages(path, mined, collection)
    scores_by_query = None
    if scores is not None:
        scores_by_query = read_scores(scores)
        require_scores(mined, scores_by_query, scores)
    left_out = len(mined) - len(with_negatives)
    return MinedExamples(
        with_negatives, passages, negatives, top, seed, scores_by_query, left_out, per_judgement
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
        if len(docids) < batch_size:
            raise UsageError(
                f"{len(docids):,} pairs do not fill a batch; give `batch_size` {len(docids)} or less"
            )
        if group_size > batch_size:
            raise UsageError(
                f"`group_size` {group_size} is larger than `batch_size` {batch_size}; give `group_size` "
                f"{batch_size} or less"
            )
        self.docids = docids
        self.batch_size = batch_size
        self.group_size = group_size
        self.seed = seed

    def __len__(self) -> int:
        return len(self.docids) // self.batch_size

    def of_epoch(self, epoch: int) -> Iterator[list[int]]:
        """The batches of an epoch."""
        rng = random.Random(f"{self.seed} {epoch}")
        order = sorted(range(len(self.docids)), key=lambda row: (self.docids[row], row))
        # Another offset each epoch, so that the groups differ.
        shift = rng.randrange(self.group_size)
        order = order[shift:] + order[:shift]
        groups = []
        for start in range(0, len(order), self.group_size):
            groups.append(order[start : start + self.group_size])
        rng.shuffle(groups)
        rows = list(chain.from_iterable(groups))
        # Rows at the end that do not fill a batch are left out; the next epoch has another order.
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield rows[start : start + self.batch_size]


class TopicalSchedule:
    """The ``count`` batches of a training, epoch after epoch, from :class:`TopicalBatches`."""

    def __init__(self, batches: TopicalBatches, count: int) -> None:
        self.batches = batches
        self.count = count
        self.batch_size = batches.batch_size
        # accelerate reads it: a sampler without it has its first batches repeated until all processes have as many.
        self.drop_last = True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[ExampleKey]]:
        return islice(self._all_batches(), self.count)

    def _all_batches(self) -> Iterator[list[ExampleKey]]:
        """The batches of all epochs, without an end."""
        for epoch in count():
            for rows in self.batches.of_epoch(epoch):
                yield [ExampleKey(row, epoch) for row in rows]


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
        query_texts = [example.query for example in examples]
        documents = [example.positive for example in examples]
        groups = []
        for column, example in enumerate(examples):
            first_negative = len(documents)
            documents.extend(example.negatives)
            groups.append([column, *range(first_negative, len(documents))])
        document_texts = [document.joined(self.separator) for document in documents]
        queries = self.tokens(query_texts, self.query_length)
        passages = self.tokens(document_texts, self.document_length)

        # Keys of 63 bits, so that -1 is none of them.
        query_keys = [text_key(Document("", query)) >> 1 for query in query_texts]
        document_keys = [text_key(document) >> 1 for document in documents]
        answers = []
        for example in examples:
            answers.append(sorted(key >> 1 for key in example.answers))
        batch = {
            "query_ids": queries["input_ids"],
            "query_mask": queries["attention_mask"],
            "document_ids": passages["input_ids"],
            "document_mask": passages["attention_mask"],
            "query_keys": torch.tensor(query_keys),
            "document_keys": torch.tensor(document_keys),
            "answers": _pad_rows(answers, ABSENT),
            "group": _pad_rows(groups, ABSENT),
        }
        if examples[0].scores:
            batch["teacher_scores"] = _pad_rows([example.scores for example in examples], 0.0)
        if self.lexical is not None:
            batch |= self.lexical(query_texts, documents)
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


def _pad_rows(rows: Sequence[Sequence[Any]], filler: float) -> Tensor:
    width = max(map(len, rows))
    padded = []
    for row in rows:
        padding = [filler] * (width - len(row))
        padded.append([*row, *padding])
    return torch.tensor(padded)
