"""Batches of an adaptation. Draw n depends only on n and the seed, so a resumed run sees the same batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from dupmae_ir.adapt.queries import PseudoQuery, draw, pseudo_queries
from dupmae_ir.finetune.data import text_key
from dupmae_ir.finetune.examples import Example, ExampleCollator
from dupmae_ir.pretrain.collate import Collator, Draw
from dupmae_ir.types import Document


class Draws(Dataset[int]):
    """Maps each number to itself: the collator draws."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


class NumberedBatches:
    """``count`` batches of ``size`` consecutive numbers. A batch sampler for torch's ``DataLoader``."""

    def __init__(self, size: int, count: int) -> None:
        self.batch_size, self.count, self.drop_last = size, count, True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.count):
            yield list(range(number * self.batch_size, (number + 1) * self.batch_size))


class AdaptCollator:
    """Makes ``{"pairs": ..., "texts": ...}`` of numbers of draws.

    Args:
        documents: those to train on.
        kinds: of pseudo-queries.
        pairs: collates pseudo-queries with their passages.
        texts: DupMAE's collator over the same documents, row by row; None leaves masked texts out.
        seed: seed of the run.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        kinds: Sequence[str],
        pairs: ExampleCollator,
        texts: Collator | None,
        seed: int,
    ) -> None:
        self.documents, self.kinds, self.pairs, self.texts, self.seed = documents, kinds, pairs, texts, seed

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of the documents with a pseudo-query."""
        return np.array([row for row, d in enumerate(self.documents) if pseudo_queries(d, self.kinds)], np.int64)

    def __call__(self, numbers: Sequence[int]) -> dict[str, dict[str, Tensor] | None]:
        """The batch of these draws: every document once per pass, in a new order, with another pseudo-query."""
        examples = [self._example(self._query(number)) for number in numbers]
        masked = [Draw(number, 0, self._row(number, len(self.documents), "masked")) for number in numbers]
        return {"pairs": self.pairs(examples), "texts": self.texts(masked) if self.texts is not None else None}

    def _query(self, number: int) -> PseudoQuery:
        document = self.documents[self.rows[self._row(number, len(self.rows), "pairs")]]
        found = draw(document, self.kinds, random.Random(f"{self.seed} pair {number}"))
        assert found is not None  # rows
        return found

    def _row(self, number: int, rows: int, use: str) -> int:
        """The row of a draw: pass after pass over ``rows`` rows, each in a random order."""
        seed = random.Random(f"{self.seed} {use} {number // rows}").getrandbits(63)
        if self._order.get(use, (-1,))[0] != seed:
            self._order[use] = (seed, np.random.default_rng(seed).permutation(rows))
        return int(self._order[use][1][number % rows])

    @cached_property
    def _order(self) -> dict[str, tuple[int, np.ndarray]]:
        return {}

    @staticmethod
    def _example(found: PseudoQuery) -> Example:
        return Example(found.query, found.passage, (), frozenset([text_key(found.passage)]))
