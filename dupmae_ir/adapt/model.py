"""The model of an adaptation: loaded from the start, with what masked auto-encoding needs, and saved in its form."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from dupmae_ir.adapt.config import AdaptConfig
from dupmae_ir.adapt.training import Adapting, LossWeights
from dupmae_ir.errors import CheckpointError, HeadMissing
from dupmae_ir.finetune.lexical import LexicalBatches
from dupmae_ir.finetune.objective import BiEncoder
from dupmae_ir.models.checkpoints.layout import LEXICON, is_compact
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.saving import save_model, write_compact
from dupmae_ir.models.heads.calibration import FEWEST, add_head
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.heads.masked_lm import encoder_of, has_head
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.pretrain.model import build_objective
from dupmae_ir.pretrain.recipes import Recipe
from dupmae_ir.training.layers import set_dropout
from dupmae_ir.types import CollectionStatistics, Document

STATISTICS = 5000
"""Documents that the document frequencies of a lexical OT part are counted in for training; search counts all."""


class Start(NamedTuple):
    """The model to start from."""

    folder: Path
    model: Retriever
    tokenizer: PreTrainedTokenizerBase
    config: ModelConfig

    @classmethod
    def load(cls, folder: Path) -> Start:
        """Raises :class:`CheckpointError` for a model that cannot be adapted."""
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: no such model folder; nothing is downloaded")
        try:
            model, tokenizer, config = load_model(folder, need_ot=read_config(folder).needs_lm_head)
        except HeadMissing as e:
            raise HeadMissing(f"{e}; only a model with both parts can be adapted") from None
        if not isinstance(model, Retriever):
            raise CheckpointError(f"{folder}: holds two encoders; adapt starts from a model with one")
        return cls(folder, model, tokenizer, config)

    def lexical(self, documents: Sequence[Document]) -> LexicalBatches | None:
        """Lexical weights of batches, with the document frequencies of these documents; None for the papers' form."""
        if self.config.lexical is None:
            return None
        width = int(self.model.lm.config.vocab_size)
        lexicon = Lexicon.load(self.folder / LEXICON, self.config.lexical, width)
        frequencies, special = np.zeros(lexicon.width, np.int64), self.tokenizer.all_special_ids
        counted = documents[:STATISTICS]
        for document in counted:
            text = document.joined(self.config.title_separator)
            pieces = self.tokenizer(text, truncation=True, max_length=self.config.document_length)["input_ids"]
            weights = lexicon.document(document.title, document.text, [p for p in pieces if p not in special])
            frequencies[list(weights)] += 1
        statistics = CollectionStatistics(len(counted), frequencies)
        return LexicalBatches(lexicon.for_collection(statistics), special, self.config.has_head)

    def adapting(self, config: AdaptConfig, recipe: Recipe, passages: Sequence[str]) -> Adapting:
        """The model in training, with DupMAE's objective around its encoder.

        An encoder without a masked-LM head gets one calibrated on ``passages`` for the time of training.
        """
        parts = (True, self.config.has_head)
        start = BiEncoder(copy.deepcopy(self.model), parts)
        masked: DupMAE | None = None
        if config.masked_weight:
            if not has_head(self.model.lm):
                sample = random.Random(config.seed).sample(list(passages), min(FEWEST, len(passages)))
                self.model.lm = add_head(self.model.lm, self.tokenizer, sample, cls_dim=None, length=config.length).lm
            objective = build_objective("dupmae", self.model.lm, recipe)
            assert isinstance(objective, DupMAE)
            masked = objective
        model = BiEncoder(self.model.train().requires_grad_(True), parts)
        set_dropout(self.model, 0.0)  # at the start the distance from it is 0
        weights = LossWeights(config.query_weight, config.masked_weight, config.anchor_weight)
        return Adapting(model, masked, start, weights, self.config.top_k)

    def save(self, made: Path) -> Path:
        """Write the trained model into the new folder ``made``, in 8 bits if the start was."""
        aside = made.with_name(f"{made.name}.whole")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(made, ignore_errors=True)
        if not self.config.needs_lm_head:
            self.model.lm = encoder_of(self.model.lm)
        lexicon = self.folder / LEXICON if self.config.lexical else None
        compact = is_compact(self.folder)
        save_model(aside if compact else made, self.model, self.tokenizer, self.config, lexicon=lexicon)
        if compact:
            write_compact(aside, made)
            shutil.rmtree(aside)
        return made

    def copied(self, made: Path) -> Path:
        """Copy the start's files, unchanged, into the new folder ``made``."""
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, made / path.name)
        return made
