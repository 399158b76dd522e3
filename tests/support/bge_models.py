"""A tiny model with exactly the files and keys of the BGE-M3 release: XLM-R, its two layers, sentence-transformers'
modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PIECES = [
    "▁the",
    "▁cat",
    "▁sat",
    "▁on",
    "▁mat",
    "▁dog",
    "▁Der",
    "▁Hund",
    "▁läuft",
    "▁быстро",
    "▁狗",
    "跑",
    "▁",
    "s",
    "é",
]
TEXTS = [
    "the cat sat on the mat",
    "Der Hund läuft läuft",
    "the dogs быстро 狗跑",
    "",
    "quux </s> the <pad> cat <mask> mat",
    "the cat s mat on dog " * 12,
]
"""With repeated words, unknown ones, scripts, special tokens spelt out, and no words at all."""


def xlm_r_tokenizer(length: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(set("".join(PIECES).replace("▁", "")) - {"s", "é", "跑"})
    vocabulary = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += (
        [(piece, -2.0) for piece in PIECES]
        + [(letter, -9.0) for letter in letters]
        + [("<mask>", 0.0)]
    )
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "cls": "<s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    }
    special = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=length, **special)


def write_bge_m3(folder: Path, length: int = 64) -> Path:
    """The release's files: weights and layers as pickles of tensors, three modules, no ``dupmae_config.json``."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel

    torch.manual_seed(0)
    tokenizer = xlm_r_tokenizer(length)
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=length + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        initializer_range=0.3,
        architectures=["XLMRobertaModel"],
    )
    model = XLMRobertaModel(config)
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for name, width in (("sparse", 1), ("colbert", 32)):
        torch.save(torch.nn.Linear(32, width).state_dict(), folder / f"{name}_linear.pt")
    tokenizer.save_pretrained(folder)
    types = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(types.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for path in [*types][1:]:
        (folder / path).mkdir()
    pooling = {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": length, "do_lower_case": False})
    )
    return folder
