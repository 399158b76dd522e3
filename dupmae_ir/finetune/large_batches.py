"""Large batches: GradCache, and the representations of all processes in one batch.

GradCache computes the gradient of a large batch with the graph of one chunk in memory (Gao et al. 2021).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dupmae_ir.finetune.examples import ABSENT
from dupmae_ir.finetune.objective import Parts
from dupmae_ir.models.checkpoints.layout import SIDES


def cached_step(
    model: nn.Module,
    batch: dict[str, Tensor],
    chunk: int,
    loss_of: Callable[[dict[str, Parts]], Tensor],
    backward: Callable[[Tensor], None],
    precision: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Tensor:
    """Forward and backward pass of a large batch, ``chunk`` texts at a time; returns the loss.

    All texts are encoded without a graph, and the gradient of the loss with respect to their representations is kept.
    Then each chunk is encoded again, with the same dropout, and that gradient is propagated to the weights.

    Args:
        model: called as ``model(batch, sides)``, it returns :data:`Parts` by side.
        batch: ``{side}_ids`` and ``{side}_mask`` of both sides.
        chunk: texts encoded at a time.
        loss_of: the loss from the parts of both sides.
        backward: called with the loss.
        precision: context of the forward passes, for autocast.
    """
    states: list[_RandomState] = []
    parts: dict[str, list[Parts]] = {side: [] for side in SIDES}
    for side, ids, mask in chunks_of(batch, chunk):
        # Taken before the pass draws its dropout, so that the second pass draws the same.
        states.append(_RandomState())
        with torch.no_grad(), precision():
            parts[side].append(model({f"{side}_ids": ids, f"{side}_mask": mask}, (side,))[side])
    leaves = {side: _concatenate(parts[side]) for side in SIDES}
    with precision():
        loss = loss_of(leaves)
    backward(loss)

    next_row = dict.fromkeys(SIDES, 0)
    chunks = list(chunks_of(batch, chunk))
    for number, ((side, ids, mask), state) in enumerate(zip(chunks, states, strict=True)):
        rows = slice(next_row[side], next_row[side] + len(ids))
        next_row[side] = rows.stop
        is_last = number + 1 == len(chunks)
        with _reduced_by_last_chunk(model, is_last):
            with state.restored(), precision():
                parts_again = model({f"{side}_ids": ids, f"{side}_mask": mask}, (side,))[side]
            # The gradient of this inner product is the kept gradient, passed on to the weights.
            products = []
            for values, leaf in zip(parts_again, leaves[side], strict=True):
                if values is not None and leaf is not None and leaf.grad is not None:
                    products.append((values * leaf.grad[rows].to(values.dtype)).sum())
            torch.stack(products).sum().backward()
    return loss.detach()


def _reduced_by_last_chunk(
    model: nn.Module, is_last: bool
) -> contextlib.AbstractContextManager[object]:
    """The context of a backward pass: the gradients of all processes are reduced once, with the last chunk."""
    if isinstance(model, DistributedDataParallel) and not is_last:
        return model.no_sync()
    return contextlib.nullcontext()


def chunks_of(batch: dict[str, Tensor], size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(side, ids, mask) of ``size`` texts at a time, queries first."""
    for side in SIDES:
        ids = batch[f"{side}_ids"]
        mask = batch[f"{side}_mask"]
        for start in range(0, len(ids), size):
            yield side, ids[start : start + size], mask[start : start + size]


def _concatenate(chunks: Sequence[Parts]) -> Parts:
    """The parts of all chunks, as leaves of a new graph, which accumulate a gradient."""
    cls_parts, ot_parts = zip(*chunks, strict=True)
    return _leaf(cls_parts), _leaf(ot_parts)


def _leaf(parts: Sequence[Tensor | None]) -> Tensor | None:
    computed = [part for part in parts if part is not None]
    if not computed:
        return None
    return torch.cat(computed).requires_grad_(True)


class _RandomState:
    """The state of the random number generators at creation, to repeat the same dropout."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda: list[Tensor] = []
        if torch.cuda.is_available():
            self.cuda = torch.cuda.get_rng_state_all()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        # Afterwards the generators go on from where they were: the next batch must not repeat this dropout.
        with torch.random.fork_rng(devices=range(len(self.cuda))):
            torch.set_rng_state(self.cpu)
            if self.cuda:
                torch.cuda.set_rng_state_all(self.cuda)
            yield


def gather_batch(
    queries: Parts, documents: Parts, batch: dict[str, Tensor], accelerator: Accelerator
) -> tuple[Parts, Parts, dict[str, Tensor]]:
    """(queries, documents, batch) of all processes, so that every query has all documents as negatives.

    Only the rows of this process carry a gradient.

    ``batch`` keeps the keys that :func:`~dupmae_ir.finetune.objective.batch_loss` reads.
    """
    names = ("query_keys", "document_keys", "answers", "group", "teacher_scores")
    local_batch = {name: batch[name] for name in names if name in batch}
    # Their widths depend on the examples of each process, but gathered tensors must have one shape. A teacher's score
    # in the padding is never read, as the column of its group is ABSENT.
    for name in ("answers", "group", "teacher_scores"):
        if name in local_batch:
            filler = 0 if name == "teacher_scores" else ABSENT
            local_batch[name] = accelerator.pad_across_processes(
                local_batch[name], dim=1, pad_index=filler
            )
    document_keys = local_batch.pop("document_keys")
    sizes = accelerator.gather(torch.tensor([len(document_keys)], device=document_keys.device))
    first_document = int(sizes[: accelerator.process_index].sum())
    # Every process has as many queries, but not as many documents.
    first_query = accelerator.process_index * len(local_batch["query_keys"])
    # Columns of the group refer to the documents of all processes.
    group = local_batch["group"]
    local_batch["group"] = torch.where(group >= 0, group + first_document, group)
    all_keys = gather_rows(document_keys, accelerator)
    gathered = {}
    for name, value in local_batch.items():
        gathered[name] = accelerator.gather(value.contiguous())
    gathered["document_keys"] = all_keys

    query_cls, query_ot = queries
    document_cls, document_ot = documents
    all_queries = (
        _among_all(query_cls, first_query, accelerator),
        _among_all(query_ot, first_query, accelerator),
    )
    all_documents = (
        _among_all(document_cls, first_document, accelerator),
        _among_all(document_ot, first_document, accelerator),
    )
    return all_queries, all_documents, gathered


def _among_all(local: Tensor | None, start: int, accelerator: Accelerator) -> Tensor | None:
    """The rows of all processes; the ``local`` ones, from row ``start`` on, keep their graph."""
    if local is None:
        return None
    # Gathered rows have no gradient, so the local ones are put back in their place.
    rows = gather_rows(local.detach(), accelerator)
    return torch.cat([rows[:start], local, rows[start + len(local) :]])


def gather_rows(value: Tensor, accelerator: Accelerator) -> Tensor:
    """The rows of all processes, which may have different numbers of them."""
    # Tensors that are gathered must have one shape in all processes.
    sizes = accelerator.gather(torch.tensor([len(value)], device=value.device))
    max_size = int(sizes.max())
    padding = value.new_zeros((max_size - len(value), *value.shape[1:]))
    padded = torch.cat([value, padding])
    blocks = accelerator.gather(padded.contiguous()).split(max_size)
    return torch.cat([block[: int(size)] for block, size in zip(blocks, sizes, strict=True)])
