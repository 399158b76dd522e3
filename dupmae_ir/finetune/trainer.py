"""The training run: Hugging Face's Trainer with our batches, losses by term, negatives of all processes, and batches
larger than memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import TrainingArguments

from dupmae_ir.finetune.data.examples import ABSENT, Batches, ExampleCollator
from dupmae_ir.finetune.data.pairs import Pair
from dupmae_ir.finetune.objective import BiEncoder, Objective, Parts, batch_loss, in_groups
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.pooling import keep_top_k
from dupmae_ir.models.retriever import similarity
from dupmae_ir.training import CheckedTrainer


class Teacher:
    """A frozen sentence encoder: (B, L) ids and mask -> (B, d) mean of the tokens at length sqrt(``scale``)."""

    def __init__(self, encoder: Any, scale: float = 20.0) -> None:
        self.encoder, self.scale = encoder.eval().requires_grad_(False), scale

    @torch.no_grad()
    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        def means(rows: Tensor, length: int) -> Parts:
            some_ids, some_mask = ids[rows, :length], mask[rows, :length]
            hidden = self.encoder(input_ids=some_ids, attention_mask=some_mask).last_hidden_state
            return (hidden * some_mask.unsqueeze(-1)).sum(1) / some_mask.sum(1, keepdim=True), None

        vectors, _ = in_groups(mask, means)
        assert vectors is not None
        return self.scale**0.5 * torch.nn.functional.normalize(vectors.float(), dim=1)


class PairTrainer(CheckedTrainer):
    """Trainer of a :class:`BiEncoder` on :mod:`~dupmae_ir.finetune.data.examples`.

    ``head_lr_factor`` multiplies the learning rate of the MLM head's transform and biases and of W_cls, which start
    far less trained than the encoder. ``chunk`` > 0 encodes so many texts at a time and keeps no graph of the others
    (GradCache). ``warm_steps``: updates until the regulariser has its full weight, quadratically.
    """

    def __init__(
        self,
        model: BiEncoder,
        examples: Any,
        batches: Batches,
        collator: ExampleCollator,
        arguments: TrainingArguments,
        objective: Objective,
        head_lr_factor: float = 1.0,
        chunk: int = 0,
        warm_steps: int = 0,
        teacher: Teacher | None = None,
        dev: Sequence[Pair] = (),
        quiet: bool = False,
        tensorboard: bool = True,
    ) -> None:
        self.objective, self.batches, self.head_lr_factor = objective, batches, head_lr_factor
        self.chunk, self.warm_steps, self.teacher, self.dev = chunk, warm_steps, teacher, list(dev)
        super().__init__(
            quiet,
            tensorboard,
            model=model,
            args=arguments,
            train_dataset=_Examples(examples),
            eval_dataset=_Examples(dev),
            data_collator=collator,
        )

    def get_train_dataloader(self) -> DataLoader:
        loader: Any = DataLoader(
            self.train_dataset,
            batch_sampler=self.batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        return self.accelerator.prepare(loader)

    def create_optimizer(self, *_: Any) -> Any:
        young: list[Tensor] = []
        mature: list[Tensor] = []
        for name, p in self.model.named_parameters():
            is_young = "cls.predictions" in name or ".projection." in name
            (young if is_young else mature).append(p)
        rate, decay = self.args.learning_rate, self.args.weight_decay
        groups = [
            {"params": mature, "weight_decay": decay},
            {"params": young, "lr": rate * self.head_lr_factor, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-8)
        return self.optimizer

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        parts = {side: model(inputs[f"{side}_ids"], inputs[f"{side}_mask"], side) for side in SIDES}
        loss, terms = self._loss(parts, inputs)
        return (loss, terms) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not self.chunk:
            return super().training_step(model, inputs, *args, **kwargs)
        model.train()
        inputs = self._prepare_inputs(inputs)
        share = 1 / self.current_gradient_accumulation_steps
        return cached_step(
            model,
            inputs,
            self.chunk,
            lambda parts: self._loss(parts, inputs)[0] * share,
            self.accelerator.backward,
            self.compute_loss_context_manager,
        )

    def _loss(self, parts: dict[str, Parts], batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss over the batches of all processes, and its terms; noted for the log."""
        anchors = self._anchors(batch)
        queries, documents = parts["query"], parts["document"]
        if self.args.world_size > 1:
            queries, documents, batch = gathered(queries, documents, batch, self.accelerator)
            anchors = tuple(_all_rows(a, self.accelerator) for a in anchors)
        warmth = min(1.0, (self.state.global_step + 1) / self.warm_steps) ** 2 if self.warm_steps else 1.0
        loss, terms = batch_loss(queries, documents, batch, self.objective, warmth, anchors)
        self.sums.add({"loss": loss, **{f"loss_{k}": v for k, v in terms.items()}})
        # Processes' gradients are averaged, and each has only its own texts' part of the whole.
        return loss * self.args.world_size, terms

    def _anchors(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """The teacher's vectors of queries and documents, if there is one; as many texts at a time as GradCache has."""
        if self.teacher is None:
            return ()
        vectors: dict[str, list[Tensor]] = {side: [] for side in SIDES}
        for side, ids, mask in _chunks(batch, self.chunk or len(batch["document_ids"])):
            vectors[side].append(self.teacher(ids, mask))
        return tuple(torch.cat(vectors[side]) for side in SIDES)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """MRR@10 and accuracy of the dev queries among the dev positives, logged as ``eval_mrr`` and
        ``eval_accuracy``, once a step."""
        if self.looked():
            return {}
        found = dev_scores(self.bare, self.dev, self.data_collator, self.objective, self.args.device)
        self.model.train()
        self.log(found)
        return found


class _Examples(Dataset):
    """Examples in torch's clothes."""

    def __init__(self, examples: Any) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, draw: Any) -> Any:
        return self.examples[draw]


def cached_step(
    model: Any,
    batch: dict[str, Tensor],
    chunk: int,
    loss_of: Callable[[dict[str, Parts]], Tensor],
    backward: Callable[[Tensor], None],
    precision: Callable[[], Any] = contextlib.nullcontext,
) -> Tensor:
    """GradCache (Gao et al. 2021): the gradient of a large batch with the graph of one chunk in memory.

    All texts are encoded without graph; the loss's gradient with respect to their representations is kept; then every
    chunk is encoded again, with the same dropout, and pushes its share of that gradient into the weights.
    """
    states: list[_Chance] = []
    parts: dict[str, list[Parts]] = {side: [] for side in SIDES}
    for side, ids, mask in _chunks(batch, chunk):
        states.append(_Chance())
        with torch.no_grad(), precision():
            parts[side].append(model(ids, mask, side))
    whole = {side: _leaves(parts[side]) for side in SIDES}
    with precision():
        loss = loss_of(whole)
    backward(loss)
    slopes = {side: [None if v is None else v.grad for v in whole[side]] for side in SIDES}
    first = dict.fromkeys(SIDES, 0)
    work = list(_chunks(batch, chunk))
    for number, ((side, ids, mask), state) in enumerate(zip(work, states, strict=True)):
        rows = slice(first[side], first[side] + len(ids))
        first[side] = rows.stop
        # Gradients of several processes are put together once, with the last chunk.
        apart = model.no_sync() if hasattr(model, "no_sync") and number + 1 < len(work) else contextlib.nullcontext()
        with apart:
            with state.again(), precision():
                again = model(ids, mask, side)
            pushed = [
                (v * g[rows].to(v.dtype)).sum()
                for v, g in zip(again, slopes[side], strict=True)
                if v is not None and g is not None
            ]
            torch.stack(pushed).sum().backward()
    return loss.detach()


def _chunks(batch: dict[str, Tensor], size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    for side in SIDES:
        ids, mask = batch[f"{side}_ids"], batch[f"{side}_mask"]
        for start in range(0, len(ids), size):
            yield side, ids[start : start + size], mask[start : start + size]


def _leaves(chunks: Sequence[Parts]) -> Parts:
    """The chunks' parts put together, as leaves that gather a gradient."""
    cls, ot = (None if p[0] is None else torch.cat(list(p)).requires_grad_(True) for p in zip(*chunks, strict=True))
    return cls, ot


class _Chance:
    """The state of the random numbers at one moment, to have the same dropout again."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=range(len(self.cuda))):
            torch.set_rng_state(self.cpu)
            if self.cuda:
                torch.cuda.set_rng_state_all(self.cuda)
            yield


def gathered(
    queries: Parts, documents: Parts, batch: dict[str, Tensor], accelerator: Any
) -> tuple[Parts, Parts, dict[str, Tensor]]:
    """Representations and keys of all processes; only this process's own rows carry a gradient.

    Queries of one process thus have the documents of all as negatives.
    """
    told = ("query_keys", "document_keys", "answers", "group", "taught")
    every: dict[str, Tensor] = {k: batch[k] for k in told if k in batch}
    for name in ("answers", "group", "taught"):
        if name in every:
            filler = 0 if name == "taught" else ABSENT
            every[name] = accelerator.pad_across_processes(every[name], dim=1, pad_index=filler)
    sizes = accelerator.gather(torch.tensor([len(batch["document_keys"])], device=batch["document_keys"].device))
    mine = int(sizes[accelerator.process_index])
    before = [int(sizes[:r].sum()) for r in range(len(sizes))]
    # Columns of the group count through the documents of all processes.
    group = every["group"]
    every["group"] = torch.where(group >= 0, group + before[accelerator.process_index], group)
    keys = _all_rows(every.pop("document_keys"), accelerator)
    rest = {k: accelerator.gather(v.contiguous()) for k, v in every.items()}

    def documents_of_all(value: Tensor | None) -> Tensor | None:
        if value is None:
            return None
        rows = _all_rows(value.detach(), accelerator)
        start = before[accelerator.process_index]
        return torch.cat([rows[:start], value, rows[start + mine :]])

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


def _all_rows(value: Tensor, accelerator: Any) -> Tensor:
    """Rows of all processes, which may have different numbers of them."""
    sizes = accelerator.gather(torch.tensor([len(value)], device=value.device))
    most = int(sizes.max())
    padded = torch.cat([value, value.new_zeros((most - len(value), *value.shape[1:]))])
    blocks = accelerator.gather(padded.contiguous()).split(most)
    return torch.cat([block[: int(n)] for block, n in zip(blocks, sizes, strict=True)])


def dev_scores(
    model: BiEncoder, pairs: Sequence[Pair], collator: Any, objective: Objective, device: Any, at_once: int = 32
) -> dict[str, float]:
    """``eval_mrr`` (MRR@10) and ``eval_accuracy`` of every dev query among the positives of all."""
    model.eval()
    texts = {"query": [p.query for p in pairs], "document": [p.positive.joined(collator.separator) for p in pairs]}
    lengths = {"query": collator.query_length, "document": collator.document_length}
    parts: dict[str, Parts] = {}
    with torch.inference_mode():
        for side in SIDES:
            done = []
            for start in range(0, len(pairs), at_once):
                rows = collator.tokens(texts[side][start : start + at_once], lengths[side]).to(device)
                cls, ot = model(rows["input_ids"], rows["attention_mask"], side)
                k = objective.top_k if side == "document" else objective.query_top_k
                done.append((cls, keep_top_k(ot, k) if ot is not None and k else ot))
            parts[side] = tuple(None if p[0] is None else torch.cat(list(p)) for p in zip(*done, strict=True))  # type: ignore[assignment]
        if objective.similarity != "sum":
            kept = objective.similarity == "cls"
            parts = {s: (p[0] if kept else None, None if kept else p[1]) for s, p in parts.items()}
        scores = similarity(parts["query"], parts["document"])
    own = scores.diagonal().unsqueeze(1)
    # Copies of the positive neither help nor harm.
    names = {text: i for i, text in enumerate(texts["document"])}
    keys = torch.tensor([names[text] for text in texts["document"]])
    copies = keys.unsqueeze(0) == keys.unsqueeze(1)
    rank = 1 + ((scores > own) & ~copies.to(scores.device)).sum(1)
    found = torch.where(rank <= 10, 1 / rank, 0.0)
    return {"eval_mrr": float(found.mean()), "eval_accuracy": float((rank == 1).float().mean())}
