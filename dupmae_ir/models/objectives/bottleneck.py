"""The steps that all masked-auto-encoder objectives share: encode a masked text and decode from its [CLS] vector.

Masked auto-encoding changes [CLS] freely, and a sentence encoder that it starts from loses what it knew about
similarity. An :class:`Anchor` is the cosine distance between [CLS] of the masked text, which the decoders read, and a
frozen model's dense vector of the same text without masks.

:class:`PlainMLM`, masked-LM pre-training only, is the baseline of the auto-encoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.models.heads.masked_lm import embed, encoder_of, head_of, shape_of
from dupmae_ir.models.objectives.decoders import DecoderLayer
from dupmae_ir.models.objectives.token_loss import IGNORED, token_cross_entropy

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from dupmae_ir.models.retriever import Retriever


class Masked(NamedTuple):
    """A batch of masked texts as the encoder read it."""

    hidden: Tensor  #: (B, L, d) last hidden states
    ids: Tensor  #: (B, L), masked
    mask: Tensor  #: (B, L) attention mask
    labels: Tensor  #: (B, L), the original ids at masked tokens and -100 elsewhere


class Anchor:
    """The frozen model and the weight of the distance from it.

    Not a module: its weights belong neither to the objective's parameters nor to its checkpoints.

    Args:
        model: the model whose dense vectors are the targets; frozen here.
        weight: factor of the distance in the loss.
    """

    def __init__(self, model: Retriever, weight: float) -> None:
        self.model = model.eval().requires_grad_(False)
        self.weight = weight

    def distance(self, texts: Masked) -> Tensor:
        """Mean over the texts of 1 - cos([CLS] of the masked text, vector of the unmasked text), in float32 or
        float64."""
        cls = texts.hidden[:, 0]
        # The labels restore the unmasked text.
        ids = torch.where(texts.labels == IGNORED, texts.ids, texts.labels)
        with torch.no_grad():
            # Moved here because the anchor is not a module, so moving the objective leaves it where it was.
            target, _ = self.model.to(ids.device)(ids, texts.mask, ot=False)
        exact = torch.float64 if cls.dtype == torch.float64 else torch.float32
        return (1 - F.cosine_similarity(cls.to(exact), target.to(exact), dim=1)).mean()


Terms = dict[str, Tensor]
"""The loss of each task by name. Their weighted sum is minimised."""


def sum_of(terms: Terms) -> Tensor:
    """The sum of all losses."""
    return torch.stack(list(terms.values())).sum()


class Bottleneck(nn.Module):
    """Base class of the objectives: a masked LM, whose embeddings and prediction head the decoders share.

    The decoders that a subclass adds are the only new parameters.
    """

    anchor: Anchor | None = None  #: the model that [CLS] is kept close to
    _shuffles = False  #: whether decoders read the vectors of other texts

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Last hidden states: (B, L) ids and attention mask -> (B, L, d)."""
        return encoder_of(self.lm)(input_ids=ids, attention_mask=mask).last_hidden_state

    def bottleneck_vectors(self, vectors: Tensor) -> Tensor:
        """The (B, ...) vectors that a decoder reads: those of its texts, or of other texts inside :meth:`shuffled`.

        Every objective calls this for the vectors of its bottleneck.
        """
        if not self._shuffles:
            return vectors
        return vectors.roll(len(vectors) // 2, 0)

    @contextmanager
    def shuffled(self) -> Iterator[None]:
        """A context in which the decoders read the vectors of other texts of the batch.

        Text i has the vector of text i - B // 2, so that neither neighbours nor, from four texts on, the two spans of
        CoT-MAE's pair exchange theirs.
        """
        self._shuffles = True
        try:
            yield
        finally:
            self._shuffles = False

    def embed(self, ids: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
        """Word embeddings (or the given vectors) + position + type, then LayerNorm and dropout: (B, L, d)."""
        return embed(self.lm, ids, vectors)

    def predict(self, hidden: Tensor, labels: Tensor, lm: PreTrainedModel | None = None) -> Tensor:
        """Mean cross-entropy of the prediction head at the labels; positions labelled -100 are ignored.

        ``lm``: the model whose head is used; None for the objective's.
        """
        head = head_of(self.lm if lm is None else lm)
        labelled = labels != IGNORED
        # Only labelled tokens pass through the head.
        return token_cross_entropy(
            head.transform(hidden[labelled]), labels[labelled], head.weight, head.bias
        )

    def add_anchor(self, loss: Tensor, terms: Terms, *texts: Masked) -> tuple[Tensor, Terms]:
        """``loss`` and ``terms`` with the distance of [CLS] from the anchor; unchanged without an anchor.

        ``texts``: the masked texts that the decoders' [CLS] vectors come from.
        """
        if self.anchor is None:
            return loss, terms
        distances = [self.anchor.distance(batch) for batch in texts]
        distance = torch.stack(distances).mean()
        return loss + self.anchor.weight * distance, {**terms, "anchor": distance}

    def decoder_input(self, cls: Tensor, ids: Tensor) -> Tensor:
        """[h_cls, embeddings of the other tokens]: (B, L, d). h_cls has no position embedding."""
        return torch.cat([cls, self.embed(ids)[:, 1:]], 1)

    def decode(
        self, layers: Iterable[nn.Module], cls: Tensor, ids: Tensor, mask: Tensor, labels: Tensor
    ) -> Tensor:
        """Loss at the masked tokens after self-attention over :meth:`decoder_input` (RetroMAE Eq. 2-3)."""
        hidden = self.decoder_input(cls, ids)
        visible = mask.bool().unsqueeze(1)
        for layer in layers:
            hidden = layer(hidden, hidden, visible)
        return self.predict(hidden, labels)


def decoder_layers(config: PretrainedConfig, count: int) -> nn.ModuleList:
    """``count`` new BERT layers with BERT's initialisation."""
    layers = nn.ModuleList(DecoderLayer(config) for _ in range(count))
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=shape_of(config).initial_std)
            nn.init.zeros_(module.bias)
    return layers


class PlainMLM(Bottleneck):
    """The encoder's masked-LM loss without a decoder: nothing trains [CLS] to represent the text."""

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Terms]:
        """The loss and its terms. ``batch``: ``encoder_ids, attention_mask, encoder_labels``, each (B, L)."""
        hidden = self.encode(batch["encoder_ids"], batch["attention_mask"])
        loss = self.predict(hidden, batch["encoder_labels"])
        texts = Masked(
            hidden, batch["encoder_ids"], batch["attention_mask"], batch["encoder_labels"]
        )
        return self.add_anchor(loss, {"mlm": loss}, texts)
