"""Batches of the objectives from drawn texts: padding, masks, labels.

All randomness derives from the number of the draw and the seed of the run, so a batch does not depend on the number of
workers or processes, or on a resumption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dupmae_ir.pretrain import masking
from dupmae_ir.pretrain.recipes import Recipe
from dupmae_ir.pretrain.tokens import Corpus, Vocabulary, WordCounts, word_hashes, word_starts

MAX_QUERIES = 10
"""Generated queries joined into one text for MASTER's decoder, as in the released code."""

Batch = dict[str, Tensor]


class Draw(NamedTuple):
    """A text drawn from the corpora; ``number`` counts the draws of the run."""

    number: int
    corpus: int
    row: int


class Padded(NamedTuple):
    """Texts with [CLS] and [SEP], padded to the longest."""

    ids: np.ndarray  #: (B, L) int64
    lengths: np.ndarray  #: (B,) int64, [CLS] and [SEP] included
    continues: np.ndarray  #: (B, L) bool: the piece continues the word before it
    numbers: np.ndarray  #: (B,) int64 numbers of the draws

    @property
    def mask(self) -> Tensor:
        """(B, L) int64 attention mask."""
        return torch.from_numpy(
            (np.arange(self.ids.shape[1]) < self.lengths[:, None]).astype(np.int64)
        )


class Collator:
    """Base class of the methods' collators: a callable from draws to a batch.

    Args:
        corpora: the corpora that draws refer to.
        vocabulary: of the base model's tokenizer.
        recipe: resolved choices.
        seed: seed of the run.
        counts: word counts of each corpus, needed for keyword masks only.
        bits: pack the masks of enhanced decoding into bits, to transfer less to a GPU.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        vocabulary: Vocabulary,
        recipe: Recipe,
        seed: int = 0,
        counts: Sequence[WordCounts] = (),
        bits: bool = False,
    ) -> None:
        self.corpora, self.vocabulary, self.recipe, self.seed = corpora, vocabulary, recipe, seed
        self.counts, self.bits = counts, bits

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        """The batch of these draws."""
        raise NotImplementedError

    def text(self, draw: Draw) -> np.ndarray:
        """The ids of a drawn text, without special tokens."""
        return self.corpora[draw.corpus].texts[draw.row]

    def padded(
        self, texts: Sequence[np.ndarray], draws: Sequence[Draw], use: str = "text"
    ) -> Padded:
        """``[CLS] text [SEP]`` of each text, truncated to the recipe's length; ``use`` names the random stream."""
        v = self.vocabulary
        numbers = np.array([d.number for d in draws], np.int64)
        room = int(self.recipe.length or 0) - 2
        kept = [t[:room] for t in texts]
        if self.recipe.truncation == "random":
            seeds = self.seeds(numbers, f"cut {use}")
            kept = [
                t[-room:] if seed & np.uint64(1) else t[:room]
                for t, seed in zip(texts, seeds, strict=True)
            ]
        lengths = np.array([len(t) + 2 for t in kept], np.int64)
        ids = np.full((len(kept), int(lengths.max())), v.pad, np.int64)
        for row, text in enumerate(kept):
            ids[row, 0], ids[row, len(text) + 1] = v.cls, v.sep
            ids[row, 1 : len(text) + 1] = text
        continues = v.continues[ids]
        continues[:, :2] = False  # the first piece always starts a word
        return Padded(ids, lengths, continues, numbers)

    def random_query(self, draw: Draw) -> np.ndarray:
        """One of the generated queries of a drawn text."""
        queries = self.corpora[draw.corpus].queries_of(draw.row)
        chance = self.seeds(np.array([draw.number]), "partner")[0]
        return queries[int(chance % np.uint64(len(queries)))]

    def seeds(self, numbers: np.ndarray, use: str) -> np.ndarray:
        """(B,) uint64: an independent random stream for each draw and use."""
        return masking.seeds_for(self.seed, numbers, use)

    def word_mask(self, texts: Padded, ratio: float | None, use: str) -> np.ndarray:
        """(B, L) bool: whole words masked at random."""
        assert ratio is not None
        seeds = self.seeds(texts.numbers, use)
        count_special = bool(self.recipe.count_special)
        return masking.word_mask(
            texts.continues, texts.lengths, ratio, seeds, count_special=count_special
        )

    def corrupt(self, texts: Padded, masked: np.ndarray, use: str) -> tuple[Tensor, Tensor]:
        """(ids with the masked ones replaced, labels), both (B, L); see :func:`~dupmae_ir.pretrain.masking.corrupt`."""
        shares = tuple(self.recipe.mask_replace or ())
        ids, labels = masking.corrupt(
            texts.ids,
            masked,
            self.seeds(texts.numbers, f"replace {use}"),
            self.vocabulary.mask,
            self.vocabulary.size,
            replace=shares,
        )
        return torch.from_numpy(ids), torch.from_numpy(labels)

    def mask_words(self, texts: Padded, ratio: float | None, use: str) -> tuple[Tensor, Tensor]:
        """:meth:`corrupt` at whole words masked at random."""
        return self.corrupt(texts, self.word_mask(texts, ratio, use), use)


class MLMCollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.bottleneck.PlainMLM`."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        texts = self.padded([self.text(d) for d in draws], draws)
        return self.batch(texts, self.word_mask(texts, self.recipe.encoder_ratio, "encoder"))

    def batch(self, texts: Padded, masked: np.ndarray) -> Batch:
        """The inputs and labels. ``masked`` (B, L) bool: the tokens masked in the encoder's input."""
        ids, labels = self.corrupt(texts, masked, "encoder")
        return {"encoder_ids": ids, "attention_mask": texts.mask, "encoder_labels": labels}


class RetroMAECollator(MLMCollator):
    """Batches of :class:`~dupmae_ir.models.objectives.retromae.RetroMAE`."""

    def batch(self, texts: Padded, masked: np.ndarray) -> Batch:
        """The inputs and labels. ``masked`` (B, L) bool: the tokens masked in the encoder's input."""
        batch = super().batch(texts, masked)
        if self.recipe.decoding == "basic":
            ids, labels = self.mask_words(texts, self.recipe.decoder_ratio, "decoder")
            return {**batch, "decoder_ids": ids, "decoder_labels": labels}
        assert self.recipe.decoder_ratio is not None
        visible = masking.position_masks(
            texts.continues,
            texts.lengths,
            self.recipe.decoder_ratio,
            self.seeds(texts.numbers, "decoder"),
            bits=self.bits,
        )
        nothing_masked = np.zeros(texts.ids.shape, np.bool_)
        predicted = masking.complement(
            nothing_masked, texts.lengths
        )  # all tokens but [CLS] and the final [SEP]
        return {
            **batch,
            "ids": torch.from_numpy(texts.ids),
            "decoder_visible": torch.from_numpy(visible),
            "decoder_labels": torch.from_numpy(np.where(predicted, texts.ids, masking.IGNORED)),
        }


class DupMAECollator(RetroMAECollator):
    """Batches of :class:`~dupmae_ir.models.objectives.dupmae.DupMAE`: RetroMAE's, bags of words and a pooling mask."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        texts = self.padded([self.text(d) for d in draws], draws)
        masked = self.word_mask(texts, self.recipe.encoder_ratio, "encoder")
        ids, weights = self._bags(texts)
        position = np.arange(texts.ids.shape[1])
        ends = texts.lengths[:, None] - bool(self.recipe.ot_exclude_sep)
        pooling_mask = (position > 0) & (position < ends)
        if self.recipe.ot_exclude_masked:
            pooling_mask &= ~masked
        return {
            **self.batch(texts, masked),
            "bow_ids": torch.from_numpy(ids),
            "bow_weights": torch.from_numpy(weights),
            "pooling_mask": torch.from_numpy(pooling_mask),
        }

    def _bags(self, texts: Padded) -> tuple[np.ndarray, np.ndarray]:
        """(B, W) distinct ids and their weights, 0 for padding (DupMAE Eq. 8; 1 / tokens in the released code)."""
        bags = []
        for row, length in zip(texts.ids, texts.lengths, strict=True):
            ids = row[:length]
            ordinary = ids[~self.vocabulary.special[ids]]
            distinct = np.unique(ordinary)
            total = {"sum": 1, "length": len(ordinary), "set": len(distinct)}[
                str(self.recipe.bow_norm)
            ]
            bags.append((distinct, 1 / max(1, total)))
        width = max(1, *(len(ids) for ids, _ in bags))
        all_ids, weights = (
            np.zeros((len(bags), width), np.int64),
            np.zeros((len(bags), width), np.float32),
        )
        for row, (ids, weight) in enumerate(bags):
            all_ids[row, : len(ids)], weights[row, : len(ids)] = ids, weight
        return all_ids, weights


class MASTERCollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.master.MASTER`, with the inputs of the recipe's tasks."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        texts = self.padded([self.text(d) for d in draws], draws)
        ids, labels = self.mask_words(texts, self.recipe.encoder_ratio, "encoder")
        batch = {"input_ids": ids, "attention_mask": texts.mask, "labels": labels}
        makers: dict[str, Callable[[Padded, Sequence[Draw]], Batch]] = {
            "mkp": self._keywords,
            "cmp": self._complementary,
            "npr": self._neighbours,
            "doc2query": self._queries,
            "gpt2": self._continuations,
        }
        for task in self.recipe.tasks or ():
            batch |= makers[task](texts, draws)
        return batch

    def _keywords(self, texts: Padded, draws: Sequence[Draw]) -> Batch:
        """Masked keyword prediction: the decoder predicts the keywords of the passage (MASTER Eq. 5)."""
        return _named(
            "decoder", self.corrupt(texts, self._keyword_mask(texts, draws, "mkp"), "mkp")
        )

    def _complementary(self, texts: Padded, draws: Sequence[Draw]) -> Batch:  # noqa: ARG002
        """Complementary masks: the decoder predicts the tokens that the encoder saw (MASTER Eq. 5)."""
        masked = self.word_mask(texts, self.recipe.complementary_ratio, "cmp")
        rest = masking.complement(masked, texts.lengths)
        return {
            **_named("overlap_encoder", self.corrupt(texts, masked, "cmp encoder")),
            **_named("overlap_decoder", self.corrupt(texts, rest, "cmp decoder")),
        }

    def _neighbours(self, texts: Padded, draws: Sequence[Draw]) -> Batch:  # noqa: ARG002
        """Neighbouring passages: [CLS] of one helps decode the other (MASTER Eq. 6)."""
        pairs = [self._pair(d) for d in draws]
        first = self.padded([a for a, _ in pairs], draws, "npr encoder")
        second = self.padded([b for _, b in pairs], draws, "npr decoder")
        masked = self._keyword_mask(second, draws, "npr")
        return {
            **_named(
                "next_encoder",
                self.mask_words(first, self.recipe.encoder_ratio, "npr encoder"),
                first.mask,
            ),
            **_named("next_decoder", self.corrupt(second, masked, "npr decoder"), second.mask),
        }

    def _pair(self, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
        corpus, text = self.corpora[draw.corpus], self.text(draw)
        other = corpus.neighbour(draw.row) if self.recipe.npr_source == "neighbours" else None
        if other is not None:
            return text, corpus.texts[other]
        # Also for a text that is alone in its document.
        middle = len(text) // 2
        return text[:middle], text[middle:]

    def _queries(self, texts: Padded, draws: Sequence[Draw]) -> Batch:  # noqa: ARG002
        """The text's generated queries, joined by [SEP] (MASTER Eq. 7)."""
        sep = np.array([self.vocabulary.sep])
        joined = []
        for d in draws:
            queries = self.corpora[d.corpus].queries_of(d.row)[:MAX_QUERIES]
            parts = [piece for q in queries for piece in (sep, q)][1:]
            joined.append(np.concatenate(parts) if parts else self.text(d)[:0])
        return self._generated("query", joined, draws)

    def _continuations(self, texts: Padded, draws: Sequence[Draw]) -> Batch:  # noqa: ARG002
        """The text's generated continuation, or the text itself if there is none (MASTER Eq. 7)."""
        following = [self.corpora[d.corpus].following_of(d.row) for d in draws]
        return self._generated(
            "gpt",
            [f[0] if f else self.text(d) for f, d in zip(following, draws, strict=True)],
            draws,
        )

    def _generated(self, prefix: str, rows: list[np.ndarray], draws: Sequence[Draw]) -> Batch:
        texts = self.padded(rows, draws, prefix)
        return _named(prefix, self.mask_words(texts, self.recipe.decoder_ratio, prefix), texts.mask)

    def _keyword_mask(self, texts: Padded, draws: Sequence[Draw], use: str) -> np.ndarray:
        weights = np.ones(texts.ids.shape, np.float32)
        for row, draw in enumerate(draws):
            ids = texts.ids[row, 1 : texts.lengths[row] - 1]
            starts = word_starts(ids, self.vocabulary.continues)
            words = self.counts[draw.corpus].weights(
                word_hashes(ids, starts), str(self.recipe.keyword)
            )
            weights[row, starts + 1] = words
        assert self.recipe.decoder_ratio is not None
        seeds = self.seeds(texts.numbers, use)
        return masking.keyword_mask(
            texts.continues, texts.lengths, weights, self.recipe.decoder_ratio, seeds
        )


class CoTMAECollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.cot_mae.CoTMAE`.

    Two texts of a document each help decode the other, so a draw makes two rows. A generated query is only decoded, and
    a draw makes one row.
    """

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        pairs = [self._pair(d) for d in draws]
        if self.recipe.context == "query":
            rows, decoded, numbers = [a for a, _ in pairs], [b for _, b in pairs], list(draws)
        else:
            rows = [t for pair in pairs for t in pair]
            decoded = [t for a, b in pairs for t in (b, a)]
            # Each direction has its own masks.
            numbers = [d._replace(number=2 * d.number + way) for d in draws for way in (0, 1)]
        texts, contexts = self.padded(rows, numbers), self.padded(decoded, numbers, "context")
        ids, labels = self.mask_words(texts, self.recipe.encoder_ratio, "encoder")
        batch = {"input_ids": ids, "attention_mask": texts.mask, "labels": labels}
        if self.recipe.decoder_layers:
            batch |= _named(
                "enc_head",
                self.mask_words(contexts, self.recipe.decoder_ratio, "decoder"),
                contexts.mask,
            )
        if self.recipe.causal_layers:
            batch |= {
                "dec_head_input_ids": torch.from_numpy(contexts.ids),
                "dec_head_attention_mask": contexts.mask,
            }
        return batch

    def _pair(self, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
        corpus, text = self.corpora[draw.corpus], self.text(draw)
        context = self.recipe.context
        if context == "query":
            return text, self.random_query(draw)
        if context == "overlap":
            # Two spans of three quarters each, which overlap in half of the text.
            quarter = len(text) // 4
            return text[: len(text) - quarter], text[quarter:]
        if context == "random":
            chance = self.seeds(np.array([draw.number]), "partner")[0]
            first, last = np.searchsorted(
                corpus.document, [corpus.document[draw.row], corpus.document[draw.row] + 1]
            )
            step = 1 + int(chance % np.uint64(last - first - 1))
            return text, corpus.texts[first + (draw.row - first + step) % (last - first)]
        other = corpus.neighbour(draw.row)
        assert other is not None
        return text, corpus.texts[other]


class CoTMoTECollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.cot_mote.CoTMoTE`: a passage and one of its queries."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        passages = self.padded([self.text(d) for d in draws], draws)
        queries = self.padded([self.random_query(d) for d in draws], draws, "query")
        ids, labels = self.mask_words(passages, self.recipe.encoder_ratio, "encoder")
        batch = {"input_ids": ids, "attention_mask": passages.mask, "labels": labels}
        batch |= _named(
            "query", self.mask_words(queries, self.recipe.encoder_ratio, "query"), queries.mask
        )
        return batch | {
            "dec_head_input_ids": torch.from_numpy(queries.ids),
            "dec_head_attention_mask": queries.mask,
        }


def _named(prefix: str, masked: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Batch:
    """``PREFIX_input_ids, PREFIX_labels``, and ``PREFIX_attention_mask`` if it is not that of the passage."""
    batch = {f"{prefix}_input_ids": masked[0], f"{prefix}_labels": masked[1]}
    return batch if mask is None else {**batch, f"{prefix}_attention_mask": mask}


COLLATORS: dict[str, type[Collator]] = {
    "retromae": RetroMAECollator,
    "dupmae": DupMAECollator,
    "master": MASTERCollator,
    "cot-mae": CoTMAECollator,
    "cot-mote": CoTMoTECollator,
    "mlm": MLMCollator,
}


def usable(corpus: Corpus, method: str, recipe: Recipe) -> np.ndarray:
    """Rows of a corpus that the method can train on: those with the query or neighbour that it needs."""
    rows = np.arange(len(corpus))
    if method == "cot-mote" or (method == "cot-mae" and recipe.context == "query"):
        return rows[np.diff(corpus.query_range) > 0]
    if method == "master" and "doc2query" in (recipe.tasks or ()):
        return rows[np.diff(corpus.query_range) > 0]
    if method == "cot-mae" and recipe.context in ("nearby", "random"):
        _, inverse, size = np.unique(corpus.document, return_inverse=True, return_counts=True)
        return rows[size[inverse] > 1]
    return rows
