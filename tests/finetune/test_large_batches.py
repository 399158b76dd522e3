"""GradCache, and negatives of several processes: the gradient is the plain step's."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.tiny_models import tiny_config

from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.large_batches import cached_step
from dupmae_ir.finetune.objective import BiEncoder, batch_loss
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

OBJECTIVE = Objective(
    top_k=6,
    contrastive_weight=1.0,
    part_weight=0.5,
    query_flops=0.1,
    document_flops=0.1,
    distill="kl",
)


def retriever(seed=0, dropout=0.0):
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    lm = BertForMaskedLM(
        tiny_config(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    )
    model = Retriever(lm, torch.nn.Linear(24, 8, bias=False), [0, 1, 2, 3, 4], [0, 3, 4])
    return model.double().train()


def texts(queries=6, negatives=1, seed=0):
    """A batch of random texts; the teacher's opinion is random too."""
    g = torch.Generator().manual_seed(seed)
    documents = queries * (1 + negatives)

    def side(n, longest):
        ids = torch.randint(6, 29, (n, longest), generator=g)
        lengths = torch.randint(3, longest + 1, (n, 1), generator=g)
        mask = (torch.arange(longest) < lengths).long()
        return ids * mask, mask

    (qi, qm), (di, dm) = side(queries, 7), side(documents, 12)
    group = torch.tensor(
        [
            [i, *range(queries + i * negatives, queries + (i + 1) * negatives)]
            for i in range(queries)
        ]
    )
    return {
        "query_ids": qi,
        "query_mask": qm,
        "document_ids": di,
        "document_mask": dm,
        "group": group,
        "query_keys": torch.arange(queries) // 2,
        "document_keys": torch.arange(documents),
        "answers": torch.arange(queries).unsqueeze(1),
        "teacher_scores": torch.randn(queries, 1 + negatives, generator=g).double(),
    }


def plain_gradient(model, batch):
    loss, _ = batch_loss(*model(batch).values(), batch, OBJECTIVE)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_grad_cache_has_the_plain_steps_gradient(chunk):
    one = BiEncoder(retriever())
    other = copy.deepcopy(one)
    batch = texts()
    loss, expected = plain_gradient(one, batch)
    cached = cached_step(
        other,
        batch,
        chunk,
        lambda p: batch_loss(p["query"], p["document"], batch, OBJECTIVE)[0],
        torch.Tensor.backward,
    )
    assert cached.item() == pytest.approx(loss, rel=1e-9)
    for name, p in other.named_parameters():
        if name in expected:
            torch.testing.assert_close(p.grad, expected[name], rtol=1e-6, atol=1e-9)


def test_the_second_encoding_has_the_first_ones_dropout(monkeypatch):
    """Else the gradient would belong to another loss."""
    model = BiEncoder(retriever(dropout=0.3))
    batch = texts()
    seen = []
    real = BiEncoder.encode

    def noted(self, ids, mask, side):
        out = real(self, ids, mask, side)
        seen.append((side, out[0].detach().clone(), out[1].detach().clone()))
        return out

    monkeypatch.setattr(BiEncoder, "encode", noted)
    cached_step(
        model,
        batch,
        5,
        lambda p: batch_loss(p["query"], p["document"], batch, OBJECTIVE)[0],
        torch.Tensor.backward,
    )
    half = len(seen) // 2
    for first, again in zip(seen[:half], seen[half:], strict=True):
        assert first[0] == again[0]
        torch.testing.assert_close(first[1:], again[1:], rtol=0, atol=0)
    # And what follows the step is not the same chance again.
    assert not torch.equal(
        seen[0][1], real(model, batch["query_ids"][:5], batch["query_mask"][:5], "query")[0]
    )


def test_grouped_encoding_changes_nothing_but_the_work():
    model = BiEncoder(retriever())
    batch = texts(16, 2)
    together = model.retriever(batch["document_ids"], batch["document_mask"])
    grouped = model.encode(batch["document_ids"], batch["document_mask"], "document")
    for a, b in zip(together, grouped, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert 0 < model.waste < 1 - float(batch["document_mask"].float().mean())


def test_two_encoders_read_their_own_texts():
    model = BiEncoder(UntiedRetriever(retriever(0), retriever(1)))
    batch = texts()
    _, gradients = plain_gradient(model, batch)
    own = model.retriever.query(batch["query_ids"], batch["query_mask"])[0]
    torch.testing.assert_close(
        model.encode(batch["query_ids"], batch["query_mask"], "query")[0], own
    )
    assert {n.split(".")[1] for n in gradients} == {"query", "document"}


WORKER = """
import sys, torch
sys.path.insert(0, "tests"); sys.path.insert(0, "tests/finetune")
from accelerate import Accelerator
from test_large_batches import OBJECTIVE, retriever, texts
from dupmae_ir.finetune.large_batches import gather_batch
from dupmae_ir.finetune.objective import BiEncoder, batch_loss
from torch.nn.parallel import DistributedDataParallel

accelerator = Accelerator(cpu=True)
rank, world = accelerator.process_index, accelerator.num_processes
whole = texts(6, 1)
# Three queries for each process; the second has a document less: its last query has no negative of its own.
rows = range(3 * rank, 3 * rank + 3)
negatives = [int(whole["group"][i, 1]) for i in rows][: 3 - rank]
documents = [*rows, *negatives]
group = torch.tensor([[n, 3 + n if n < len(negatives) else -1] for n in range(3)])
batch = {k: whole[k][list(rows)] for k in ("query_ids", "query_mask", "query_keys", "answers", "teacher_scores")}
batch |= {k: whole[k][documents] for k in ("document_ids", "document_mask", "document_keys")} | {"group": group}
model = DistributedDataParallel(BiEncoder(retriever()), find_unused_parameters=True)
queries, every, targets = gather_batch(*model(batch).values(), batch, accelerator)
loss, _ = batch_loss(queries, every, targets, OBJECTIVE)
(loss * world).backward()
if rank == 0:
    torch.save({"loss": loss.detach(), **{n.removeprefix("module."): p.grad for n, p in model.named_parameters()
                                          if p.grad is not None}}, sys.argv[1])
"""


def result_of(code, processes, folder):
    """What the first of several processes saves that run ``code`` together, by gloo."""
    script = folder / "worker.py"
    script.write_text(code)
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(processes),
            "--standalone",
            str(script),
            str(folder / "gradient.pt"),
        ],
        check=True,
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
        capture_output=True,
    )
    return torch.load(folder / "gradient.pt", weights_only=True)


@pytest.mark.nightly
def test_two_processes_give_the_gradient_of_one(tmp_path):
    found = result_of(WORKER, 2, tmp_path)
    whole = texts(6, 1)
    keep = [d for d in range(12) if d != 11]
    group = whole["group"].clone()
    group[5, 1] = -1
    batch = {
        **whole,
        "group": group,
        **{k: whole[k][keep] for k in ("document_ids", "document_mask", "document_keys")},
    }
    loss, expected = plain_gradient(BiEncoder(retriever()), batch)
    assert found.pop("loss").item() == pytest.approx(loss, rel=1e-9)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9)


EIGHT = """
import sys, torch
sys.path.insert(0, "tests"); sys.path.insert(0, "tests/finetune")
from accelerate import Accelerator
from test_large_batches import OBJECTIVE, part_of, retriever, texts
from dupmae_ir.finetune.large_batches import gather_batch
from dupmae_ir.finetune.objective import BiEncoder, batch_loss
from torch.nn.parallel import DistributedDataParallel

accelerator = Accelerator(cpu=True)
batch = part_of(texts(16, 3), accelerator.process_index, accelerator.num_processes)
model = DistributedDataParallel(BiEncoder(retriever()), find_unused_parameters=True)
parts = gather_batch(*model(batch).values(), batch, accelerator)
loss, _ = batch_loss(*parts, OBJECTIVE)
(loss * accelerator.num_processes).backward()
if accelerator.process_index == 0:
    found = {"loss": loss.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name.removeprefix("module.")] = parameter.grad
    torch.save(found, sys.argv[1])
"""


def part_of(whole, process, processes):
    """The rows of a batch that one of several processes reads, its documents numbered from 0."""
    count = len(whole["query_ids"]) // processes
    rows = slice(process * count, (process + 1) * count)
    group = whole["group"][rows]
    documents = group.t().flatten()
    part = {
        name: whole[name][rows]
        for name in ("query_ids", "query_mask", "query_keys", "answers", "teacher_scores")
    }
    for name in ("document_ids", "document_mask", "document_keys"):
        part[name] = whole[name][documents]
    part["group"] = torch.arange(group.numel()).view(group.shape[1], -1).t()
    return part


@pytest.mark.nightly
def test_one_process_with_grad_cache_is_eight_processes(tmp_path):
    """The in-batch negatives of eight processes, from one that holds the graph of five texts."""
    found = result_of(EIGHT, 8, tmp_path)
    batch = texts(16, 3)
    model = BiEncoder(retriever())
    loss = cached_step(
        model,
        batch,
        5,
        lambda p: batch_loss(p["query"], p["document"], batch, OBJECTIVE)[0],
        torch.Tensor.backward,
    )
    assert loss.item() == pytest.approx(found.pop("loss").item(), rel=1e-6)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9)
