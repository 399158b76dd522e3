"""The synthetic collection and model of tier tiny: small, and identical on every machine.

Words are random syllables. Every topic has words of its own; a document mixes words of one topic with common words,
and a query contains some words of one topic. The model is a two-layer BERT with weights drawn by numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dupmae_ir.collections.prepared import write_qrels, write_records

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOPICS = 24
WORDS_OF_TOPIC = 6
COMMON = 120
DOCUMENTS = 240
QUERIES = 48
PAIRS = 96
WIDTH = 48
SPECIAL = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
COPIES = 4
"""Queries whose text is also a document with the same id, to test the removal of self-retrieval."""


def words() -> list[str]:
    """The vocabulary without special tokens: each topic's words, then the common ones."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    rng = np.random.default_rng(1)
    drawn: dict[str, None] = {}
    while len(drawn) < TOPICS * WORDS_OF_TOPIC + COMMON:
        drawn["".join(rng.choice(syllables, int(rng.integers(2, 4))))] = None
    return list(drawn)


def write_collection(folder: Path) -> Path:
    """Write the collection in BEIR's layout, and pairs.jsonl and augmented.jsonl for training. Returns ``folder``."""
    rng = np.random.default_rng(2)
    vocabulary = words()
    topical = [vocabulary[t * WORDS_OF_TOPIC : (t + 1) * WORDS_OF_TOPIC] for t in range(TOPICS)]
    common = vocabulary[TOPICS * WORDS_OF_TOPIC :]

    def text(topic: int, of_topic: int, of_common: int) -> str:
        drawn = [*rng.choice(topical[topic], of_topic), *rng.choice(common, of_common)]
        return " ".join(rng.permutation(drawn))

    # The order of the draws determines every text.
    document_topics = rng.integers(0, TOPICS, DOCUMENTS)
    corpus = [
        {"_id": f"d{n}", "title": text(t, 1, 1), "text": text(t, 3, int(rng.integers(4, 16)))}
        for n, t in enumerate(document_topics)
    ]
    query_topics = rng.integers(0, TOPICS, QUERIES)
    queries = [{"_id": f"q{n}", "text": text(t, 2, 1)} for n, t in enumerate(query_topics)]
    corpus += [{"_id": q["_id"], "title": "", "text": q["text"]} for q in queries[:COPIES]]
    qrels = {
        f"q{n}": {f"d{m}": 1 + int(m) % 2 for m in np.flatnonzero(document_topics == t)}
        for n, t in enumerate(query_topics)
    }
    pair_topics = rng.integers(0, TOPICS, PAIRS)
    pairs = [
        {"query": text(t, 2, 1), "positive": {"id": f"p{n}", "title": "", "text": text(t, 3, 8)}}
        for n, t in enumerate(pair_topics)
    ]
    augmented = [
        {"text": d["text"], "queries": [text(t, 2, 1)], "next": [text(t, 2, 6)]}
        for d, t in zip(corpus, document_topics, strict=False)
    ]
    for name, rows in (
        ("corpus", corpus),
        ("queries", queries),
        ("pairs", pairs),
        ("augmented", augmented),
    ):
        write_records(folder / f"{name}.jsonl", rows)
    write_qrels(folder, "test", qrels)
    return folder


def write_model(folder: Path) -> Path:
    """Write a masked language model with a [CLS] projection, to train from or to search with. Returns ``folder``."""
    # Imported here: listing and reporting cases must not wait for torch.
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever

    vocabulary = [*SPECIAL, *words(), "##s"]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    tokenizer = _tokenizer(vocabulary)
    lm: Any = BertForMaskedLM(config)
    projection = torch.nn.Linear(WIDTH, WIDTH // 2, bias=False)
    model = Retriever(lm, projection, *excluded_ids(tokenizer))
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "LayerNorm" in name:
                continue
            drawn = (
                np.zeros(weight.shape)
                if name.endswith("bias")
                else rng.normal(0, 0.12, weight.shape)
            )
            weight.copy_(torch.from_numpy(drawn))
        # Words must outweigh positions for retrieval to work, and the two parts need similar scales.
        lm.bert.embeddings.word_embeddings.weight.mul_(7)
        projection.weight.mul_(6)
    save_model(folder, model, tokenizer, ModelConfig(document_length=48, query_length=16, top_k=24))
    return folder


def _tokenizer(vocabulary: list[str]) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", vocabulary.index("[CLS]")), ("[SEP]", vocabulary.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
