"""A tiny BERT with a word-level vocabulary, built in a second and saved as any checkpoint would be."""

from __future__ import annotations

from typing import Any

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "dog",
    "runs",
    "fast",
    "over",
    "lazy",
    "quick",
    "brown",
    "fox",
    "jumps",
    "heap",
    "queue",
    "sorts",
    "list",
    "tree",
    "graph",
]


def tiny_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "|", "é"]
    t = Tokenizer(models.WordPiece({w: i for i, w in enumerate(vocab)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", vocab.index("[CLS]")), ("[SEP]", vocab.index("[SEP]"))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=t,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


def load_padded(folder: Any, **options: Any) -> Any:
    """An encoder that computes padded batches with transformers' own modules, as on a device without packed layers."""
    import pytest

    from dupmae_ir.models.inference import encoder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "PACKED", ())
        made = encoder.TextEncoder.load(folder, **options)
    assert made._packed is None
    return made


def tiny_config(**changes: Any) -> Any:
    from transformers import BertConfig

    settings = {
        "vocab_size": 29,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "initializer_range": 0.4,
        "pad_token_id": 0,
    }
    return BertConfig(**{**settings, **changes})
