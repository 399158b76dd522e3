"""Representations of all processes in one batch, so that every query has the documents of all as negatives."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor

from dupmae_ir.finetune.data.examples import ABSENT
from dupmae_ir.finetune.objective import Parts


def gather_batch(
    queries: Parts, documents: Parts, batch: dict[str, Tensor], accelerator: Accelerator
) -> tuple[Parts, Parts, dict[str, Tensor]]:
    """(queries, documents, batch) of all processes; only this process's own rows carry a gradient.

    ``batch`` keeps the keys that :func:`~dupmae_ir.finetune.objective.batch_loss` reads.
    """
    names = ("query_keys", "document_keys", "answers", "group", "teacher_scores")
    every: dict[str, Tensor] = {k: batch[k] for k in names if k in batch}
    for name in ("answers", "group", "teacher_scores"):
        if name in every:
            filler = 0 if name == "teacher_scores" else ABSENT
            every[name] = accelerator.pad_across_processes(every[name], dim=1, pad_index=filler)
    sizes = accelerator.gather(torch.tensor([len(batch["document_keys"])], device=batch["document_keys"].device))
    own = int(sizes[accelerator.process_index])
    before = [int(sizes[:r].sum()) for r in range(len(sizes))]
    # Columns of the group refer to the documents of all processes.
    group = every["group"]
    every["group"] = torch.where(group >= 0, group + before[accelerator.process_index], group)
    keys = gather_rows(every.pop("document_keys"), accelerator)
    rest = {k: accelerator.gather(v.contiguous()) for k, v in every.items()}

    def documents_of_all(value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        rows = gather_rows(value.detach(), accelerator)
        start = before[accelerator.process_index]
        return torch.cat([rows[:start], value, rows[start + own :]])

    def queries_of_all(value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        rows = accelerator.gather(value.detach().contiguous())
        start = accelerator.process_index * len(value)
        return torch.cat([rows[:start], value, rows[start + len(value) :]])

    return (
        (queries_of_all(queries[0]), queries_of_all(queries[1])),
        (documents_of_all(documents[0]), documents_of_all(documents[1])),
        {**rest, "document_keys": keys},
    )


def gather_rows(value: Tensor, accelerator: Accelerator) -> Tensor:
    """The rows of all processes, which may have different numbers of them."""
    sizes = accelerator.gather(torch.tensor([len(value)], device=value.device))
    most = int(sizes.max())
    padded = torch.cat([value, value.new_zeros((most - len(value), *value.shape[1:]))])
    blocks = accelerator.gather(padded.contiguous()).split(most)
    return torch.cat([block[: int(n)] for block, n in zip(blocks, sizes, strict=True)])
