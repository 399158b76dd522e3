"""Tiny models shared by these tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import tiny_config, tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_retriever() -> Any:
    """(retriever, tokenizer) with random weights, large enough for clear differences between scores."""
    import torch
    from transformers import BertForMaskedLM

    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever

    torch.manual_seed(7)
    tokenizer = tiny_tokenizer()
    lm = BertForMaskedLM(tiny_config())
    torch.nn.init.normal_(lm.cls.predictions.decoder.bias, std=0.3)
    return Retriever(
        lm, torch.nn.Linear(24, 8, bias=False), *excluded_ids(tokenizer)
    ).eval(), tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tiny_retriever: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model

    model, tokenizer = tiny_retriever
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_model(
        folder, model, tokenizer, ModelConfig(document_length=32, query_length=16, top_k=6)
    )
