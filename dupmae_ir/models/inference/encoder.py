"""Encoding texts to :class:`~dupmae_ir.types.Representation`: tokenise, sort by length, batch by tokens, one pass.

Used by all code that encodes: the encode and search commands, mining, and evaluation during training. A batch that does
not fit the device's memory is halved and tried again; batches that are done are kept.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dupmae_ir.device import out_of_memory, pick_batch_tokens, pick_device, pick_encoding
from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.models import pooling
from dupmae_ir.models.checkpoints.layout import COLBERT_LINEAR, SIDES, folder_digest
from dupmae_ir.models.checkpoints.loading import check_dense, load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.heads.lexical import TermWeights
from dupmae_ir.models.heads.masked_lm import max_input_length
from dupmae_ir.models.inference.packed import WHOLE, Batch, PackedRetriever
from dupmae_ir.models.inference.packed_layers import can_pack
from dupmae_ir.models.inference.term_encoder import PARTS, TermEncoder, encoder_settings, with_head
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.types import EncoderOptions, EncoderSettings, Representation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
R = TypeVar("R")
Rows = list[int]
Fetch = Callable[[], Batch]


class TextEncoder(TermEncoder):
    """A model, its tokenizer and its settings. Use :meth:`load`.

    The representation of a text does not depend on the other texts of the call beyond float32 rounding (1e-4), and
    equal calls return bit-identical results.
    """

    def __init__(
        self,
        name: str | Path | None,
        config: ModelConfig,
        settings: EncoderSettings,
        model: Retriever | UntiedRetriever,
        tokenizer: PreTrainedTokenizerBase,
        parts: tuple[str, ...],
        device: torch.device,
        dtype: torch.dtype,
        products: torch.dtype,
    ) -> None:
        sides = {side: model.side(side) for side in SIDES}
        width = int(sides["document"].lm.config.vocab_size)
        digest = folder_digest(model_folder(name))
        super().__init__(name, digest, config, settings, tokenizer, width, parts)
        self.model = model.to(device=device, dtype=dtype).eval().requires_grad_(False)
        self.dim: int | None = model.dim if "cls" in parts else None
        #: whether a layer of the model computes OT weights
        self._pools = "ot" in parts and config.has_head
        self._device = device
        self._products = {"document": products, "query": dtype}
        # Packed layers by model and dtype of the products, made when they are first needed; None for padded batches.
        self._packed: dict[tuple[Retriever, torch.dtype], PackedRetriever] | None = None
        if device.type in PACKED and all(map(can_pack, sides.values())):
            self._packed = {}
        self._batch_tokens, self._batch_reason = pick_batch_tokens(device)
        self.on_share: Callable[[float], object] = lambda _: None

    @classmethod
    def load(
        cls, model: str | Path | None = None, **options: Unpack[EncoderOptions]
    ) -> TextEncoder:
        """Load a model by name or folder (:func:`~dupmae_ir.models.names.model_folder`).

        Raises :class:`UsageError` for an invalid choice and :class:`CheckpointError` for an unusable checkpoint.
        """
        parts = options.get("parts")
        if parts is None:
            parts = PARTS
        activation = options.get("activation")
        if not parts or set(parts) - set(PARTS):
            raise UsageError(f"`parts` must be cls, ot or both, got {' '.join(parts) or 'nothing'}")
        if activation is not None and activation not in pooling.ACTIVATIONS:
            raise UsageError(
                f"`activation` must be one of {', '.join(pooling.ACTIVATIONS)}, got {activation}"
            )
        folder = model_folder(model)
        device, _ = pick_device(options.get("device") or "auto")
        computed = options.get("head") is None and "ot" in parts
        need_ot = computed and (not folder.is_dir() or read_config(folder).needs_lm_head)
        module, tokenizer, config = load_model(
            folder,
            need_ot,
            activation,
            options.get("normalize"),
            published=True,
            plain=device.type in PACKED,
        )
        config = with_head(config, options)
        check_dense(folder, config, "cls" in parts)
        precision, dtype, products = pick_encoding(options.get("dtype") or "float32", device)
        longest = min(max_input_length(module.side(side).lm) for side in SIDES)
        settings = encoder_settings(config, longest, options, precision, str(device))
        for side in SIDES:
            module.side(side).dimensions = settings.dimensions
        return cls(model, config, settings, module, tokenizer, parts, device, dtype, products)

    def token_vectors(self, texts: Sequence[str], side: str) -> list[Tensor]:
        """(L - 1, d'') float32 unit vectors of the tokens of each text after the first, on the CPU (BGE-M3).

        Raises :class:`UsageError` for a model without a layer for them.
        """
        model = self.model.side(side)
        layer = model.token_vectors
        if layer is None:
            raise UsageError(f"{self.name}: has no vectors of single tokens (no {COLBERT_LINEAR})")
        if side == "query":
            pieces = self._query_pieces(texts)
        else:
            pieces = self._document_pieces(texts).pieces
        packed = self._on(side)
        vectors = [torch.empty(0)] * len(pieces)
        with torch.inference_mode():
            for rows in batches_by_tokens([len(p) for p in pieces], self._batch_tokens):
                batch = [pieces[row] for row in rows]
                hidden: Iterable[Tensor]
                if packed:
                    hidden = packed.hidden(batch)
                else:
                    hidden = model.hidden(*self._pad(batch))
                for row, states in zip(rows, hidden, strict=True):
                    # Without the first token, and without padding.
                    token_states = layer(states[1 : len(pieces[row])])
                    unit = torch.nn.functional.normalize(token_states.float(), dim=-1)
                    vectors[row] = unit.cpu()
        return vectors

    @property
    def running(self) -> dict[str, str]:
        """What was chosen for this machine, each with its reason: device, dtype, kernel, head, threads, batch."""
        choices = {"device": self.settings.device, "dtype": self.settings.dtype}
        packed = self._on("document")
        if packed:
            choices["kernel"] = f"packed: {packed.kernel}"
            if self._pools:
                choices["head"] = packed.head_kernel
            if self._device.type == "cpu":
                threads = torch.get_num_threads()
                choices["threads"] = f"{threads} (torch's), each with batches of its own"
        else:
            choices["kernel"] = "padded batches through transformers' own model"
        choices["batch"] = f"{self._batch_tokens:,} word pieces: {self._batch_reason}"
        return choices

    def with_settings(self, **changes: Any) -> TextEncoder:
        """An encoder with other settings that shares the weights of this one."""
        other = copy.copy(self)
        other.settings = replace(self.settings, **changes)
        return other

    def _encode_lexical(
        self, pieces: list[list[int]], side: str, rows: Sequence[TermWeights], keep: int
    ) -> Representation:
        """[CLS] vectors, and the ``keep`` largest of the lexical weights ``rows`` with those of the head added."""
        assert self._lexicon is not None
        if not self._pools:
            return super()._encode_lexical(pieces, side, rows, keep)
        cls = np.zeros((len(rows), self.dim), np.float32) if self.dim else None
        width = self._lexicon.width_of(rows)
        matrices: list[sp.csr_matrix] = [sp.csr_matrix((1, width), dtype=np.float32)] * len(rows)
        for batch, (dense, _, head) in self._batches(pieces, side, WHOLE):
            if cls is not None and dense is not None:
                cls[batch] = dense.float().numpy()
            assert head is not None
            for row, head_weights in zip(batch, head.float().numpy(), strict=True):
                matrix = self._lexicon.matrix([rows[row]], keep, [head_weights])
                # Also of a text in the index's language among others.
                matrix.resize(1, width)
                matrices[row] = matrix
        empty = sp.csr_matrix((0, width), dtype=np.float32)
        return Representation(cls, sp.vstack([empty, *matrices], format="csr"))

    def _encode(self, pieces: list[list[int]], side: str, keep: int) -> Representation:
        """The parts that a forward pass computes."""
        n = len(pieces)
        cls = np.zeros((n, self.dim), np.float32) if self.dim else None
        kept_ids: list[np.ndarray] = [_NO_IDS] * n
        kept_weights: list[np.ndarray] = [_NO_WEIGHTS] * n
        for rows, (dense, top_ids, top_weights) in self._batches(pieces, side, keep):
            if cls is not None and dense is not None:
                cls[rows] = dense.float().numpy()
            if top_ids is None or top_weights is None:
                continue
            for row, ids, weights in zip(rows, top_ids.numpy(), top_weights.numpy(), strict=True):
                count = int((ids >= 0).sum())
                # Copies: a view would keep the memory of the complete batch.
                kept_ids[row] = ids[:count].astype(np.int32)
                kept_weights[row] = weights[:count].copy()
        if not self._pools:
            return Representation(cls, None)
        indptr = np.cumsum([0, *map(len, kept_ids)])
        data = np.concatenate([_NO_WEIGHTS, *kept_weights])
        indices = np.concatenate([_NO_IDS, *kept_ids])
        ot = sp.csr_matrix((data, indices, indptr), shape=(n, self._width))
        ot.sort_indices()
        return Representation(cls, ot)

    def _batches(
        self, pieces: list[list[int]], side: str, keep: int
    ) -> Iterator[tuple[Rows, Batch]]:
        """Batches of texts, by row number, with the results of their forward passes."""
        if self.dim is None and not self._pools:
            return
        lengths = [len(text) for text in pieces]
        budget = self._batch_tokens
        on_cpu = self._device.type == "cpu"
        if on_cpu:
            budget = even_budget(lengths, budget)
        batches = list(batches_by_tokens(lengths, budget))
        threads = torch.get_num_threads()
        work = partial(self._results, pieces, side, keep)
        # One thread computes a batch of documents, since the bits of an index must not depend on the threads. A single
        # batch of queries is answered sooner by all of them.
        min_batches = 2 if side == "query" else 1
        batch_per_thread = on_cpu and self._on(side) is not None and threads > 1
        if batch_per_thread and len(batches) >= min_batches:
            results = side_by_side(work, batches, min(threads, len(batches)))
        else:
            results = map(work, batches)
        if not on_cpu:
            # A batch's results are read when the next one is on the device.
            results = (first for first, _ in pairwise(chain(results, [[]])))

        done = 0
        total = max(1, sum(map(len, pieces)))
        for batch, parts in zip(batches, results, strict=True):
            for rows, wait_for_copy in parts:
                yield rows, wait_for_copy()
            done += sum(len(pieces[row]) for row in batch)
            self.on_share(done / total)

    def _results(
        self, pieces: list[list[int]], side: str, keep: int, batch: Rows
    ) -> list[tuple[Rows, Fetch]]:
        """The result of a batch, or of smaller ones if it does not fit into memory; see :func:`fetch`."""
        queue = deque([batch])
        results: list[tuple[Rows, Fetch]] = []
        while queue:
            rows = queue.popleft()
            try:
                with torch.inference_mode():
                    result = fetch(self._forward([pieces[row] for row in rows], side, keep))
            except (RuntimeError, MemoryError) as e:
                if not out_of_memory(e):
                    raise
                queue.extendleft(self._halves(rows, pieces))
                continue
            results.append((rows, result))
        return results

    def _halves(self, rows: Rows, pieces: list[list[int]]) -> tuple[Rows, Rows]:
        """The two halves of a batch that did not fit, second first for ``extendleft``; later batches are smaller."""
        if len(rows) < 2:
            raise DupmaeError(
                f"the {self.settings.device} has too little memory for a single text of {len(pieces[rows[0]])} word "
                "pieces; use a smaller `document_length` or `dtype` bfloat16"
            ) from None
        torch.cuda.empty_cache()
        half = len(rows) // 2
        # The first text of a batch is the longest.
        self._batch_tokens = max(1, half * len(pieces[rows[0]]))
        self._batch_reason = "halved until it fitted into memory"
        return rows[half:], rows[:half]

    def _forward(self, pieces: list[list[int]], side: str, keep: int) -> Batch:
        cls = self.dim is not None
        if not self._pools:
            keep = 0
        # Weights of terms that become one are added up before the largest are chosen.
        folds = self.settings.fold_terms if keep > 0 else ""
        packed = self._on(side)
        ids = None
        if packed:
            dense, ids, weights = packed(pieces, cls, WHOLE if folds else keep)
        else:
            dense, weights = self.model.side(side)(*self._pad(pieces), cls, keep != 0)
        if folds and weights is not None:
            same = torch.from_numpy(self._folded).to(weights.device).expand_as(weights)
            how = "amax" if folds == "max" else "sum"
            weights = torch.zeros_like(weights).scatter_reduce_(1, same, weights, how)
        if keep > 0 and ids is None and weights is not None:
            ids, weights = pooling.strongest(weights, keep)
        return dense, ids, weights

    def _on(self, side: str) -> PackedRetriever | None:
        """The packed layers of a side, created when they are first needed; None if the model has none."""
        if self._packed is None:
            return None
        key = self.model.side(side), self._products[side]
        if key not in self._packed:
            self._packed[key] = PackedRetriever(*key)
        return self._packed[key]

    def _pad(self, pieces: list[list[int]]) -> tuple[Tensor, Tensor]:
        ids = [torch.tensor(p) for p in pieces]
        mask = pad_sequence([torch.ones_like(p) for p in ids], batch_first=True)
        padded = pad_sequence(ids, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0)
        return padded.to(self._device), mask.to(self._device)


def fetch(results: Batch) -> Fetch:
    """Start to copy results to the CPU; the function returned waits for the copy and returns it."""
    dense, ids, weights = (
        None if part is None else part.to("cpu", non_blocking=True) for part in results
    )
    copied = None
    if any(part is not None and part.is_cuda for part in results):
        copied = torch.cuda.Event()
        copied.record()

    def wait_for_copy() -> Batch:
        if copied is not None:
            copied.synchronize()
        return dense, ids, weights

    return wait_for_copy


PACKED = ("cpu", "cuda")
"""Devices on which models that can be packed are."""
EVEN_BATCHES = 8
"""Batches of documents on a CPU are a multiple of this many."""
MIN_BATCH = 1024
"""Word pieces from which a batch is as fast as larger ones, within a twentieth."""
_NO_IDS = np.zeros(0, np.int32)
_NO_WEIGHTS = np.zeros(0, np.float32)


def batches_by_tokens(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Row numbers in batches of similar length, longest first, each of at most ``budget`` padded word pieces."""
    order = sorted(range(len(lengths)), key=lambda r: (-lengths[r], r))
    start = 0
    while start < len(order):
        size = max(1, budget // max(1, lengths[order[start]]))
        yield order[start : start + size]
        start += size


def even_budget(lengths: Sequence[int], budget: int) -> int:
    """At most ``budget``: so small that threads which take batches in turn finish at about the same time.

    It does not depend on the threads, since the last bits of a vector depend on the batch of its text.
    """
    total = sum(lengths)
    batches = EVEN_BATCHES * -(-total // (EVEN_BATCHES * budget))
    # A batch ends before the text that does not fit, so each may be one text short.
    longest = max(lengths, default=0)
    return min(budget, max(MIN_BATCH, total // max(1, batches) + longest))


def side_by_side(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """``work(item)`` for each item, in their order, on ``threads`` threads of which each is torch's only one.

    Few results wait at a time. An exception of ``work`` is raised in the place of its result. The number of threads
    that torch has outside is kept.
    """
    threads_before = torch.get_num_threads()
    pending = deque[Future[R]]()
    remaining = iter(items)
    try:
        with ThreadPoolExecutor(threads, "forward", torch.set_num_threads, (1,)) as pool:
            try:
                pending.extend(pool.submit(work, item) for item in islice(remaining, 2 * threads))
                while pending:
                    yield pending.popleft().result()
                    pending.extend(pool.submit(work, item) for item in islice(remaining, 1))
            finally:
                # Also if the caller stops early: no work is left that nobody reads.
                pool.shutdown(cancel_futures=True)
    finally:
        # New threads would take the number of the workers.
        torch.set_num_threads(threads_before)
