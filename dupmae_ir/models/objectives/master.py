"""MASTER: several bottlenecked decoders, each with its own task, on one encoder (MASTER section 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dupmae_ir.models.objectives.bottleneck import Bottleneck, Terms, decoder_layers

TASKS = {"mkp": "c_head", "doc2query": "query_head", "gpt2": "gpt_head", "npr": "next_head", "cmp": "overlap_head"}
"""Task -> name of its decoder in the released checkpoints: masked keywords, generated queries, generated
continuation, neighbouring passage, complementary mask."""

# Task -> (prefix of its decoder's inputs, attention mask of those inputs).
_INPUTS = {
    "mkp": ("decoder", "attention_mask"),
    "doc2query": ("query", "query_attention_mask"),
    "gpt2": ("gpt", "gpt_attention_mask"),
    "npr": ("next_decoder", "next_decoder_attention_mask"),
    "cmp": ("overlap_decoder", "attention_mask"),
}


class MASTER(Bottleneck):
    """The sum of the decoders' losses and of the encoder's on each text it reads (MASTER Eq. 8; three passes in the
    released code). ``tasks`` switches decoders off for the ablations; a task that is off costs nothing.

    ``encoder_losses``: ``all`` adds the masked-LM loss of every text the encoder reads, as released; ``passage`` that
    of the passage alone, the one L_MLM of Eq. 8. ``shared_decoder``: one for all tasks (Table 6).
    """

    def __init__(
        self,
        lm: nn.Module,
        tasks: tuple[str, ...] = tuple(TASKS),
        layers: int = 2,
        encoder_losses: str = "all",
        shared_decoder: bool = False,
    ) -> None:
        super().__init__(lm)
        if encoder_losses not in ("all", "passage"):
            raise ValueError(f"encoder losses {encoder_losses!r} are not known")
        self.encoder_losses = encoder_losses
        if unknown := set(tasks) - set(TASKS):
            raise ValueError(f"no task named {sorted(unknown)[0]!r}; there are {', '.join(TASKS)}")
        self.tasks = tasks
        self.decoder_of = dict.fromkeys(tasks, "shared_head") if shared_decoder else {t: TASKS[t] for t in tasks}
        for name in dict.fromkeys(self.decoder_of.values()):
            setattr(self, name, decoder_layers(self.lm.config, layers))

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """``input_ids, attention_mask, labels`` of the masked passage, and for each task that is on
        ``PREFIX_input_ids, PREFIX_labels`` with its mask, the prefixes being those of the released code."""
        terms: Terms = {}
        passage = self._read(batch, "input_ids", "attention_mask", "labels", terms, "mlm_passage")
        led_by = dict.fromkeys(self.tasks, passage)
        if "npr" in self.tasks:
            led_by["npr"] = self._read(
                batch,
                "next_encoder_input_ids",
                "next_encoder_attention_mask",
                "next_encoder_labels",
                terms,
                "mlm_neighbour",
            )
        if "cmp" in self.tasks:
            led_by["cmp"] = self._read(
                batch,
                "overlap_encoder_input_ids",
                "attention_mask",
                "overlap_encoder_labels",
                terms,
                "mlm_complementary",
            )
        for task in self.tasks:
            prefix, mask = _INPUTS[task]
            ids, labels = batch[f"{prefix}_input_ids"], batch[f"{prefix}_labels"]
            terms[task] = self.decode(getattr(self, self.decoder_of[task]), led_by[task], ids, batch[mask], labels)
        return torch.stack(list(terms.values())).sum(), terms

    def _read(self, batch: dict[str, Tensor], ids: str, mask: str, labels: str, terms: Terms, name: str) -> Tensor:
        """Encode one masked text, note its own loss where it counts, and return its [CLS] (B, 1, d)."""
        hidden = self.encode(batch[ids], batch[mask])
        if self.encoder_losses == "all" or name == "mlm_passage":
            terms[name] = self.predict(hidden, batch[labels])
        return hidden[:, :1]
