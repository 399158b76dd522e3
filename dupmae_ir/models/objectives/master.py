"""MASTER: one encoder and several bottlenecked decoders, each with its own task (MASTER section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from dupmae_ir.models.objectives.bottleneck import Bottleneck, Masked, Terms, decoder_layers, sum_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASKS = {
    "mkp": "c_head",
    "doc2query": "query_head",
    "gpt2": "gpt_head",
    "npr": "next_head",
    "cmp": "overlap_head",
}
"""Task -> name of its decoder in the released checkpoints: masked keywords, generated queries, generated
continuation, neighbouring passage, complementary mask."""


class _DecoderInputs(NamedTuple):
    """Names in the batch of the released code."""

    prefix: str  #: of the ids and the labels
    mask: str  #: the attention mask


_INPUTS = {
    "mkp": _DecoderInputs("decoder", "attention_mask"),
    "doc2query": _DecoderInputs("query", "query_attention_mask"),
    "gpt2": _DecoderInputs("gpt", "gpt_attention_mask"),
    "npr": _DecoderInputs("next_decoder", "next_decoder_attention_mask"),
    "cmp": _DecoderInputs("overlap_decoder", "attention_mask"),
}


class MASTER(Bottleneck):
    """The sum of all decoder losses and of the encoder's masked-LM losses (MASTER Eq. 8).

    Args:
        lm: the masked LM to train.
        tasks: the tasks to train; a task that is left out costs nothing.
        layers: layers of each decoder.
        encoder_losses: ``all`` adds the masked-LM loss of every text that the encoder reads (three passes, as in the
            released code); ``passage`` adds that of the passage only, the one L_MLM of Eq. 8.
        shared_decoder: one decoder for all tasks (Table 6).
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        tasks: tuple[str, ...] = tuple(TASKS),
        layers: int = 2,
        encoder_losses: str = "all",
        shared_decoder: bool = False,
    ) -> None:
        super().__init__(lm)
        if encoder_losses not in ("all", "passage"):
            raise ValueError(f"encoder losses {encoder_losses!r} are not known; use all or passage")
        self.encoder_losses = encoder_losses
        unknown = set(tasks) - set(TASKS)
        if unknown:
            raise ValueError(f"no task named {min(unknown)!r}; there are {', '.join(TASKS)}")
        self.tasks = tasks
        if shared_decoder:
            self.decoder_of = dict.fromkeys(tasks, "shared_head")
        else:
            self.decoder_of = {task: TASKS[task] for task in tasks}
        # Each name once, although a shared decoder has several tasks.
        for name in dict.fromkeys(self.decoder_of.values()):
            setattr(self, name, decoder_layers(self.lm.config, layers))

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms.

        ``batch``: ``input_ids, attention_mask, labels`` of the masked passage, and for each task
        ``PREFIX_input_ids, PREFIX_labels`` and their attention mask, with the prefixes of the released code.
        """
        terms: Terms = {}
        passage = self._encode_masked(
            batch, "input_ids", "attention_mask", "labels", terms, "mlm_passage"
        )
        # The hidden states from which each task decodes.
        hidden = dict.fromkeys(self.tasks, passage)
        if "npr" in self.tasks:
            hidden["npr"] = self._encode_masked(
                batch,
                "next_encoder_input_ids",
                "next_encoder_attention_mask",
                "next_encoder_labels",
                terms,
                "mlm_neighbour",
            )
        if "cmp" in self.tasks:
            hidden["cmp"] = self._encode_masked(
                batch,
                "overlap_encoder_input_ids",
                "attention_mask",
                "overlap_encoder_labels",
                terms,
                "mlm_complementary",
            )
        for task in self.tasks:
            inputs = _INPUTS[task]
            terms[task] = self.decode(
                getattr(self, self.decoder_of[task]),
                self.bottleneck_vectors(hidden[task][:, :1]),
                batch[f"{inputs.prefix}_input_ids"],
                batch[inputs.mask],
                batch[f"{inputs.prefix}_labels"],
            )
        texts = Masked(passage, batch["input_ids"], batch["attention_mask"], batch["labels"])
        return self.add_anchor(sum_of(terms), terms, texts)

    def _encode_masked(
        self, batch: dict[str, Tensor], ids: str, mask: str, labels: str, terms: Terms, name: str
    ) -> Tensor:
        """Hidden states (B, L, d) of a masked text. Adds its masked-LM loss to ``terms`` if it is part of the sum."""
        hidden = self.encode(batch[ids], batch[mask])
        if self.encoder_losses == "all" or name == "mlm_passage":
            terms[name] = self.predict(hidden, batch[labels])
        return hidden
