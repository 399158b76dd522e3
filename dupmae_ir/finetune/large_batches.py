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
        states.append(_RandomState())
        with torch.no_grad(), precision():
            parts[side].append(model({f"{side}_ids": ids, f"{side}_mask": mask}, (side,))[side])
    leaves = {side: _leaves(parts[side]) for side in SIDES}
    with precision():
        loss = loss_of(leaves)
    backward(loss)
    gradients = {side: [None if v is None else v.grad for v in leaves[side]] for side in SIDES}
    first = dict.fromkeys(SIDES, 0)
    chunks = list(chunks_of(batch, chunk))
    for number, ((side, ids, mask), state) in enumerate(zip(chunks, states, strict=True)):
        rows = slice(first[side], first[side] + len(ids))
        first[side] = rows.stop
        # The gradients of all processes are reduced once, with the last chunk.
        last = number + 1 == len(chunks)
        with (
            contextlib.nullcontext()
            if last or not isinstance(model, DistributedDataParallel)
            else model.no_sync()
        ):
            with state.restored(), precision():
                parts_again = model({f"{side}_ids": ids, f"{side}_mask": mask}, (side,))[side]
            pairs = zip(parts_again, gradients[side], strict=True)
            products = [
                (v * g[rows].to(v.dtype)).sum() for v, g in pairs if v is not None and g is not None
            ]
            torch.stack(products).sum().backward()
    return loss.detach()


def chunks_of(batch: dict[str, Tensor], size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(side, ids, mask) of ``size`` texts at a time, queries first."""
    for side in SIDES:
        ids, mask = batch[f"{side}_ids"], batch[f"{side}_mask"]
        for start in range(0, len(ids), size):
            yield side, ids[start : start + size], mask[start : start + size]


def _leaves(chunks: Sequence[Parts]) -> Parts:
    """The chunks' parts concatenated, as leaves that accumulate a gradient."""
    cls, ot = (
        None if p[0] is None else torch.cat(list(p)).requires_grad_(True)
        for p in zip(*chunks, strict=True)
    )
    return cls, ot


class _RandomState:
    """The state of the random number generators at creation, to repeat the same dropout."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=range(len(self.cuda))):
            torch.set_rng_state(self.cpu)
            if self.cuda:
                torch.cuda.set_rng_state_all(self.cuda)
            yield


def gather_batch(
    queries: Parts, documents: Parts, batch: dict[str, Tensor], accelerator: Accelerator
) -> tuple[Parts, Parts, dict[str, Tensor]]:
    """(queries, documents, batch) of all processes, so that every query has all documents as negatives.

    Only this process's own rows carry a gradient.

    ``batch`` keeps the keys that :func:`~dupmae_ir.finetune.objective.batch_loss` reads.
    """
    names = ("query_keys", "document_keys", "answers", "group", "teacher_scores")
    every: dict[str, Tensor] = {k: batch[k] for k in names if k in batch}
    for name in ("answers", "group", "teacher_scores"):
        if name in every:
            filler = 0 if name == "teacher_scores" else ABSENT
            every[name] = accelerator.pad_across_processes(every[name], dim=1, pad_index=filler)
    sizes = accelerator.gather(
        torch.tensor([len(batch["document_keys"])], device=batch["document_keys"].device)
    )
    before = [int(sizes[:r].sum()) for r in range(len(sizes))]
    # Columns of the group refer to the documents of all processes.
    group = every["group"]
    every["group"] = torch.where(group >= 0, group + before[accelerator.process_index], group)
    keys = gather_rows(every.pop("document_keys"), accelerator)
    rest = {k: accelerator.gather(v.contiguous()) for k, v in every.items()}

    def of_all(value: Tensor | None, start: int) -> Tensor | None:
        if value is None:
            return None
        rows = gather_rows(value.detach(), accelerator)
        return torch.cat([rows[:start], value, rows[start + len(value) :]])

    first_query = accelerator.process_index * len(batch["query_keys"])
    first_document = before[accelerator.process_index]
    return (
        (of_all(queries[0], first_query), of_all(queries[1], first_query)),
        (of_all(documents[0], first_document), of_all(documents[1], first_document)),
        {**rest, "document_keys": keys},
    )


def gather_rows(value: Tensor, accelerator: Accelerator) -> Tensor:
    """The rows of all processes, which may have different numbers of them."""
    sizes = accelerator.gather(torch.tensor([len(value)], device=value.device))
    most = int(sizes.max())
    padded = torch.cat([value, value.new_zeros((most - len(value), *value.shape[1:]))])
    blocks = accelerator.gather(padded.contiguous()).split(most)
    return torch.cat([block[: int(n)] for block, n in zip(blocks, sizes, strict=True)])
