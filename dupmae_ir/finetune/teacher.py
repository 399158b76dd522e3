"""The sentence encoder whose vectors the [CLS] part learns to reproduce (``--teacher``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.objective import Parts, in_groups
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.masked_lm import encoder_of
from dupmae_ir.models.names import model_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever


class FrozenTeacher:
    """A frozen sentence encoder: (B, L) ids and mask -> (B, d) mean of the token vectors, of length sqrt(``scale``)."""

    def __init__(self, encoder: nn.Module, scale: float = 20.0) -> None:
        self.encoder = encoder.eval().requires_grad_(False)
        self.scale = scale

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        # The trainer moves only its own model to the device of the batches. Without effect from the second call on.
        encoder = self.encoder.to(input_ids.device)

        def token_means(rows: Tensor, length: int) -> Parts:
            ids = input_ids[rows, :length]
            mask = attention_mask[rows, :length]
            hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True), None

        vectors, _ = in_groups(attention_mask, token_means)
        assert vectors is not None
        return self.scale**0.5 * torch.nn.functional.normalize(vectors.float(), dim=1)


@dataclass(frozen=True)
class Teacher:
    """The encoder that ``--teacher`` names. It is loaded once, when it is first needed."""

    name: str

    @cached_property
    def _retriever(self) -> Retriever:
        retriever, _, _ = load_model(model_folder(self.name), need_ot=False)
        assert isinstance(retriever, Retriever)  # a sentence encoder, not a pair
        return retriever

    def for_student(self, student: Retriever | UntiedRetriever) -> FrozenTeacher:
        """The frozen encoder. Raises :class:`UsageError` unless its width and its vocabulary are the student's."""
        encoder = self._retriever.lm
        width = encoder.config.hidden_size
        vocabulary = encoder.config.vocab_size
        student_vocabulary = student.side("document").lm.config.vocab_size
        if width != student.dim or vocabulary != student_vocabulary:
            raise UsageError(
                f"`teacher` {self.name}: its vectors are {width} wide over {vocabulary:,} word pieces, the [CLS] part "
                f"is {student.dim} wide over {student_vocabulary:,}; they must be equal"
            )
        return FrozenTeacher(encoder_of(encoder))
