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

MIXED_CONTEXTS = ("random", "nearby", "overlap")
"""What CoT-MAE's released code draws the context from, each with the same probability."""
NEEDS_NEIGHBOURS = ("nearby", "random", "mixed")
"""Contexts that a text without another one in its document cannot have."""
RANDOM_DISTANCE = 100
"""How many texts a random context is away at most, as in CoT-MAE's released code."""

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
        position = np.arange(self.ids.shape[1])
        is_token = position < self.lengths[:, None]
        return torch.from_numpy(is_token.astype(np.int64))


class TextPair(NamedTuple):
    """Two related texts: the [CLS] vector of ``text`` helps decode ``context``."""

    text: np.ndarray
    context: np.ndarray


class Corruption(NamedTuple):
    """Masked texts; see :func:`~dupmae_ir.pretrain.masking.corrupt`."""

    ids: Tensor  #: (B, L) int64, with the masked ids replaced
    labels: Tensor  #: (B, L) int64: the original ids where masked, IGNORED elsewhere


class WordBags(NamedTuple):
    """Bags of words of a batch, padded to the largest; padding has the weight 0."""

    ids: np.ndarray  #: (B, W) int64 distinct ids
    weights: np.ndarray  #: (B, W) float32


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
        self.corpora = corpora
        self.vocabulary = vocabulary
        self.recipe = recipe
        self.seed = seed
        self.counts = counts
        self.bits = bits

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        """The batch of these draws."""
        raise NotImplementedError

    def text(self, draw: Draw) -> np.ndarray:
        """The ids of a drawn text, without special tokens."""
        return self.corpora[draw.corpus].texts[draw.row]

    def padded_texts(self, draws: Sequence[Draw]) -> Padded:
        """The drawn texts themselves, as :meth:`padded` returns them."""
        return self.padded([self.text(draw) for draw in draws], draws)

    def padded(
        self, texts: Sequence[np.ndarray], draws: Sequence[Draw], use: str = "text"
    ) -> Padded:
        """``[CLS] text [SEP]`` of each text, truncated to the recipe's length; ``use`` names the random stream."""
        vocabulary = self.vocabulary
        numbers = np.array([draw.number for draw in draws], np.int64)
        truncated = self._truncated(texts, numbers, use)

        lengths = np.array([len(text) + 2 for text in truncated], np.int64)
        ids = np.full((len(truncated), int(lengths.max())), vocabulary.pad, np.int64)
        for row, text in enumerate(truncated):
            end = len(text) + 1
            ids[row, 0] = vocabulary.cls
            ids[row, 1:end] = text
            ids[row, end] = vocabulary.sep

        continues = vocabulary.continues[ids]
        # The first piece starts a word even if it continued one in the text that was cut.
        continues[:, :2] = False
        return Padded(ids, lengths, continues, numbers)

    def _truncated(
        self, texts: Sequence[np.ndarray], numbers: np.ndarray, use: str
    ) -> list[np.ndarray]:
        """The texts, with room for [CLS] and [SEP] in the recipe's length."""
        room = self.room
        if self.recipe.truncation == "end":
            return [text[:room] for text in texts]

        seeds = self.seeds(numbers, f"cut {use}")
        truncated = []
        for text, seed in zip(texts, seeds, strict=True):
            excess = max(0, len(text) - room)
            first = int(seed % np.uint64(excess + 1))
            truncated.append(text[first : first + room])
        return truncated

    @property
    def room(self) -> int:
        """Ids of a text besides [CLS] and [SEP]."""
        return int(self.recipe.length or 0) - 2

    def random_query(self, draw: Draw) -> np.ndarray:
        """One of the generated queries of a drawn text."""
        queries = self.corpora[draw.corpus].queries_of(draw.row)
        return queries[self.random_below(len(queries), draw)]

    def random_below(self, bound: int, draw: Draw, use: str = "partner") -> int:
        """A random integer in [0, bound); by default the one that chooses the partner of a drawn text."""
        # The bias of the remainder is at most bound / 2^64.
        bits = self.seeds(np.array([draw.number]), use)[0]
        return int(bits % np.uint64(bound))

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

    def corrupt(self, texts: Padded, masked: np.ndarray, use: str) -> Corruption:
        """Replace the ids at ``masked`` (B, L) bool by the recipe's shares."""
        shares = tuple(self.recipe.mask_replace or ())
        ids, labels = masking.corrupt(
            texts.ids,
            masked,
            self.seeds(texts.numbers, f"replace {use}"),
            self.vocabulary.mask,
            self.vocabulary.size,
            replace=shares,
        )
        return Corruption(torch.from_numpy(ids), torch.from_numpy(labels))

    def mask_words(self, texts: Padded, ratio: float | None, use: str) -> Corruption:
        """:meth:`corrupt` at whole words masked at random."""
        return self.corrupt(texts, self.word_mask(texts, ratio, use), use)


class MLMCollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.bottleneck.PlainMLM`."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        texts = self.padded_texts(draws)
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
        # Enhanced decoding predicts every ordinary token: each row of the mask hides another set.
        nothing_masked = np.zeros(texts.ids.shape, np.bool_)
        ordinary = masking.complement(nothing_masked, texts.lengths)
        decoder_labels = np.where(ordinary, texts.ids, masking.IGNORED)
        return {
            **batch,
            "ids": torch.from_numpy(texts.ids),
            "decoder_visible": torch.from_numpy(visible),
            "decoder_labels": torch.from_numpy(decoder_labels),
        }


class DupMAECollator(RetroMAECollator):
    """Batches of :class:`~dupmae_ir.models.objectives.dupmae.DupMAE`: RetroMAE's, bags of words and a pooling mask."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        texts = self.padded_texts(draws)
        masked = self.word_mask(texts, self.recipe.encoder_ratio, "encoder")
        bags = self._bags(texts)
        return {
            **self.batch(texts, masked),
            "bow_ids": torch.from_numpy(bags.ids),
            "bow_weights": torch.from_numpy(bags.weights),
            "pooling_mask": torch.from_numpy(self._pooling_mask(texts, masked)),
        }

    def _pooling_mask(self, texts: Padded, masked: np.ndarray) -> np.ndarray:
        """(B, L) bool: the tokens included in OT pooling; [CLS] never is."""
        position = np.arange(texts.ids.shape[1])
        ends = texts.lengths[:, None] - bool(self.recipe.ot_exclude_sep)
        pooling_mask = (position > 0) & (position < ends)
        if self.recipe.ot_exclude_masked:
            pooling_mask &= ~masked
        return pooling_mask

    def _bags(self, texts: Padded) -> WordBags:
        """The bag of words of each text (DupMAE Eq. 8; weights of 1 / tokens in the released code)."""
        bags = []
        bag_weights = []
        for row, length in zip(texts.ids, texts.lengths, strict=True):
            pieces = row[:length]
            ordinary = pieces[~self.vocabulary.special[pieces]]
            distinct = np.unique(ordinary)
            totals = {"sum": 1, "length": len(ordinary), "set": len(distinct)}
            total = totals[str(self.recipe.bow_norm)]
            bags.append(distinct)
            bag_weights.append(1 / max(1, total))

        # A batch of empty texts has one column of padding.
        width = max(1, *map(len, bags))
        ids = np.zeros((len(bags), width), np.int64)
        weights = np.zeros((len(bags), width), np.float32)
        for row, (bag, weight) in enumerate(zip(bags, bag_weights, strict=True)):
            ids[row, : len(bag)] = bag
            weights[row, : len(bag)] = weight
        return WordBags(ids, weights)


class MASTERCollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.master.MASTER`, with the inputs of the recipe's tasks."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        texts = self.padded_texts(draws)
        ids, labels = self.mask_words(texts, self.recipe.encoder_ratio, "encoder")
        batch = {"input_ids": ids, "attention_mask": texts.mask, "labels": labels}
        inputs_of_task: dict[str, Callable[[Padded, Sequence[Draw]], Batch]] = {
            "mkp": self._keywords,
            "cmp": self._complementary,
            "npr": self._neighbours,
            "doc2query": self._queries,
            "gpt2": self._continuations,
        }
        for task in self.recipe.tasks or ():
            batch |= inputs_of_task[task](texts, draws)
        return batch

    def _keywords(self, texts: Padded, draws: Sequence[Draw]) -> Batch:
        """Masked keyword prediction: the decoder predicts the keywords of the passage (MASTER Eq. 5)."""
        masked = self._keyword_mask(texts, draws, "mkp")
        return _named("decoder", self.corrupt(texts, masked, "mkp"))

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
        pairs = [self._pair(draw) for draw in draws]
        encoded = self.padded([pair.text for pair in pairs], draws, "npr encoder")
        decoded = self.padded([pair.context for pair in pairs], draws, "npr decoder")
        encoder = self.mask_words(encoded, self.recipe.encoder_ratio, "npr encoder")
        keywords = self._keyword_mask(decoded, draws, "npr")
        decoder = self.corrupt(decoded, keywords, "npr decoder")
        return {
            **_named("next_encoder", encoder, encoded.mask),
            **_named("next_decoder", decoder, decoded.mask),
        }

    def _pair(self, draw: Draw) -> TextPair:
        corpus = self.corpora[draw.corpus]
        text = self.text(draw)
        if self.recipe.npr_source == "neighbours":
            neighbour = corpus.neighbour(draw.row)
            if neighbour is not None:
                return TextPair(text, corpus.texts[neighbour])
        # A text that is alone in its document is halved too.
        middle = len(text) // 2
        return TextPair(text[:middle], text[middle:])

    def _queries(self, texts: Padded, draws: Sequence[Draw]) -> Batch:  # noqa: ARG002
        """The text's generated queries, joined by [SEP] (MASTER Eq. 7)."""
        sep = np.array([self.vocabulary.sep])
        joined = []
        for draw in draws:
            parts = []
            for query in self.corpora[draw.corpus].queries_of(draw.row)[:MAX_QUERIES]:
                parts += [sep, query]
            if parts:
                joined.append(np.concatenate(parts[1:]))
            else:
                joined.append(self.text(draw)[:0])
        return self._generated("query", joined, draws)

    def _continuations(self, texts: Padded, draws: Sequence[Draw]) -> Batch:  # noqa: ARG002
        """The text's generated continuation, or the text itself if there is none (MASTER Eq. 7)."""
        rows = []
        for draw in draws:
            continuations = self.corpora[draw.corpus].following_of(draw.row)
            rows.append(continuations[0] if continuations else self.text(draw))
        return self._generated("gpt", rows, draws)

    def _generated(self, prefix: str, rows: list[np.ndarray], draws: Sequence[Draw]) -> Batch:
        texts = self.padded(rows, draws, prefix)
        return _named(prefix, self.mask_words(texts, self.recipe.decoder_ratio, prefix), texts.mask)

    def _keyword_mask(self, texts: Padded, draws: Sequence[Draw], use: str) -> np.ndarray:
        """(B, L) bool: words masked in proportion to their weights in the draws' corpora."""
        weights = np.ones(texts.ids.shape, np.float32)
        for row, draw in enumerate(draws):
            ids = texts.ids[row, 1 : texts.lengths[row] - 1]
            starts = word_starts(ids, self.vocabulary.continues)
            hashes = word_hashes(ids, starts)
            # In the padded row, [CLS] moves each word by one position.
            weights[row, starts + 1] = self.counts[draw.corpus].weights(
                hashes, str(self.recipe.keyword)
            )
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
        rows = []
        contexts_of_rows = []
        draws_of_rows = []
        for draw in draws:
            pair = self._pair(draw)
            if self.recipe.context == "query":
                rows.append(pair.text)
                contexts_of_rows.append(pair.context)
                draws_of_rows.append(draw)
                continue
            rows += [pair.text, pair.context]
            contexts_of_rows += [pair.context, pair.text]
            # Different numbers give the two directions different masks.
            draws_of_rows.append(draw._replace(number=2 * draw.number))
            draws_of_rows.append(draw._replace(number=2 * draw.number + 1))

        texts = self.padded(rows, draws_of_rows)
        contexts = self.padded(contexts_of_rows, draws_of_rows, "context")
        ids, labels = self.mask_words(texts, self.recipe.encoder_ratio, "encoder")
        batch = {"input_ids": ids, "attention_mask": texts.mask, "labels": labels}
        if self.recipe.decoder_layers:
            corruption = self.mask_words(contexts, self.recipe.decoder_ratio, "decoder")
            batch |= _named("enc_head", corruption, contexts.mask)
        if self.recipe.causal_layers:
            batch |= {
                "dec_head_input_ids": torch.from_numpy(contexts.ids),
                "dec_head_attention_mask": contexts.mask,
            }
        return batch

    def _pair(self, draw: Draw) -> TextPair:
        corpus = self.corpora[draw.corpus]
        text = self.text(draw)
        context = self.recipe.context
        if context == "query":
            return TextPair(text, self.random_query(draw))
        # The texts of the document are the rows from first to last - 1.
        document = corpus.document[draw.row]
        first, last = np.searchsorted(corpus.document, [document, document + 1]).tolist()
        if context == "mixed":
            context = MIXED_CONTEXTS[self.random_below(len(MIXED_CONTEXTS), draw, "context")]
        if context == "overlap":
            return self._overlapping(corpus, draw, first, last)
        if context == "nearby":
            # The texts of the document that are beside this one; `usable` leaves out texts without any.
            beside = [row for row in (draw.row - 1, draw.row + 1) if first <= row < last]
            return TextPair(text, corpus.texts[beside[self.random_below(len(beside), draw)]])
        first = max(first, draw.row - RANDOM_DISTANCE)
        last = min(last, draw.row + RANDOM_DISTANCE + 1)
        size = last - first
        # A step of 1 to size - 1, modulo the size, never returns to the text itself.
        step = 1 + self.random_below(size - 1, draw)
        return TextPair(text, corpus.texts[first + (draw.row - first + step) % size])

    def _overlapping(self, corpus: Corpus, draw: Draw, first: int, last: int) -> TextPair:
        """A text and a span of its document that overlaps with at most half of it.

        The span is the end of the text and what follows it; for the last text of a document, what precedes it and its
        beginning. A text that is alone in its document is divided into two spans of three quarters, which overlap in
        half of it.
        """
        text = self.text(draw)
        if last - first == 1:
            quarter = len(text) // 4
            return TextPair(text[: len(text) - quarter], text[quarter:])
        # Spans start and end between words.
        starts = word_starts(text, self.vocabulary.continues)
        half = max(1, len(starts) // 2)
        words = 1 + self.random_below(half, draw, "overlap")
        is_last = draw.row == last - 1
        if is_last:
            shared = text[: starts[words]] if words < len(starts) else text
        else:
            shared = text[starts[-words] :]
        parts = [shared]
        row = draw.row
        while sum(map(len, parts)) < self.room:
            row += -1 if is_last else 1
            if not first <= row < last:
                break
            parts.append(corpus.texts[row])
        if is_last:
            span = np.concatenate(parts[::-1])[-self.room :]
        else:
            span = np.concatenate(parts)[: self.room]
        return TextPair(text, span)


class CoTMoTECollator(Collator):
    """Batches of :class:`~dupmae_ir.models.objectives.cot_mote.CoTMoTE`: a passage and one of its queries."""

    def __call__(self, draws: Sequence[Draw]) -> Batch:
        passages = self.padded_texts(draws)
        queries = self.padded([self.random_query(draw) for draw in draws], draws, "query")
        ids, labels = self.mask_words(passages, self.recipe.encoder_ratio, "encoder")
        masked_queries = self.mask_words(queries, self.recipe.encoder_ratio, "query")
        return {
            "input_ids": ids,
            "attention_mask": passages.mask,
            "labels": labels,
            **_named("query", masked_queries, queries.mask),
            "dec_head_input_ids": torch.from_numpy(queries.ids),
            "dec_head_attention_mask": queries.mask,
        }


def _named(prefix: str, corruption: Corruption, attention_mask: Tensor | None = None) -> Batch:
    """``PREFIX_input_ids, PREFIX_labels``, and ``PREFIX_attention_mask`` if it differs from the passage's."""
    batch = {f"{prefix}_input_ids": corruption.ids, f"{prefix}_labels": corruption.labels}
    if attention_mask is not None:
        batch[f"{prefix}_attention_mask"] = attention_mask
    return batch


COLLATORS: dict[str, type[Collator]] = {
    "retromae": RetroMAECollator,
    "dupmae": DupMAECollator,
    "master": MASTERCollator,
    "cot-mae": CoTMAECollator,
    "cot-mote": CoTMoTECollator,
    "mlm": MLMCollator,
}


def usable(corpus: Corpus, method: str, recipe: Recipe) -> np.ndarray:
    """Rows of the texts that the method can train on: a text may need a generated query or a neighbour."""
    rows = np.arange(len(corpus))
    needs_query = (
        method == "cot-mote"
        or (method == "cot-mae" and recipe.context == "query")
        or (method == "master" and "doc2query" in (recipe.tasks or ()))
    )
    if needs_query:
        return rows[np.diff(corpus.query_range) > 0]
    if method == "cot-mae" and recipe.context in NEEDS_NEIGHBOURS:
        _, document, texts_of_document = np.unique(
            corpus.document, return_inverse=True, return_counts=True
        )
        return rows[texts_of_document[document] > 1]
    return rows
