"""The collection and the model of tier tiny: made up, small, and the same numbers everywhere.

Words are syllables; every topic has words of its own, a document speaks of one topic among words of no meaning, and a
query holds some words of one topic. The model is a BERT of two layers with weights drawn by numpy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TOPICS = 24
WORDS_OF_TOPIC = 6
COMMON = 120
DOCUMENTS = 240
QUERIES = 48
PAIRS = 96
WIDTH = 48
SPECIAL = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
COPIES = 4
"""Topics whose text is also a document, under the same id: what self-retrieval finds."""


def words() -> list[str]:
    """The vocabulary after the special tokens: first each topic's words, then the common ones."""
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    chance = np.random.default_rng(1)
    found: dict[str, None] = {}
    while len(found) < TOPICS * WORDS_OF_TOPIC + COMMON:
        found["".join(chance.choice(syllables, int(chance.integers(2, 4))))] = None
    return list(found)


def write_collection(folder: Path) -> Path:
    """corpus.jsonl, queries.jsonl, qrels/test.tsv (BEIR); pairs.jsonl and augmented.jsonl to train on."""
    chance = np.random.default_rng(2)
    known = words()
    topical = [known[t * WORDS_OF_TOPIC : (t + 1) * WORDS_OF_TOPIC] for t in range(TOPICS)]
    common = known[TOPICS * WORDS_OF_TOPIC :]

    def text(topic: int, own: int, others: int) -> str:
        drawn = [*chance.choice(topical[topic], own), *chance.choice(common, others)]
        return " ".join(chance.permutation(drawn))

    about = chance.integers(0, TOPICS, DOCUMENTS)
    corpus = [
        {"_id": f"d{n}", "title": text(t, 1, 1), "text": text(t, 3, int(chance.integers(4, 16)))}
        for n, t in enumerate(about)
    ]
    asked = chance.integers(0, TOPICS, QUERIES)
    queries = [{"_id": f"q{n}", "text": text(t, 2, 1)} for n, t in enumerate(asked)]
    corpus += [{"_id": q["_id"], "title": "", "text": q["text"]} for q in queries[:COPIES]]
    judged = [(f"q{n}", f"d{m}", 1 + m % 2) for n, t in enumerate(asked) for m in np.flatnonzero(about == t)]
    trained = chance.integers(0, TOPICS, PAIRS)
    pairs = [
        {"query": text(t, 2, 1), "positive": {"id": f"p{n}", "title": "", "text": text(t, 3, 8)}}
        for n, t in enumerate(trained)
    ]
    written = [
        {"text": d["text"], "queries": [text(t, 2, 1)], "next": [text(t, 2, 6)]}
        for d, t in zip(corpus, about, strict=False)
    ]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", corpus), ("queries", queries), ("pairs", pairs), ("augmented", written)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    lines = "".join(f"{q}\t{d}\t{grade}\n" for q, d, grade in judged)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines, encoding="utf-8")
    return folder


def write_model(folder: Path) -> Path:
    """A masked language model with a [CLS] projection, as a base to train from or to search with."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.retriever import Retriever
    from dupmae_ir.models.special_tokens import excluded_ids

    known = [*SPECIAL, *words(), "##s"]
    config = BertConfig(
        vocab_size=len(known),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    tokenizer = _tokenizer(known)
    lm: Any = BertForMaskedLM(config)
    projection = torch.nn.Linear(WIDTH, WIDTH // 2, bias=False)
    model = Retriever(lm, projection, *excluded_ids(tokenizer))
    chance = np.random.default_rng(3)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "LayerNorm" in name:
                continue
            drawn = np.zeros(weight.shape) if name.endswith("bias") else chance.normal(0, 0.12, weight.shape)
            weight.copy_(torch.from_numpy(drawn))
        # Words must outweigh positions for anything to be found, and neither part the other.
        lm.bert.embeddings.word_embeddings.weight.mul_(7)
        projection.weight.mul_(6)
    save_model(folder, model, tokenizer, ModelConfig(document_length=48, query_length=16, top_k=24))
    return folder


def _tokenizer(known: list[str]) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordPiece({w: i for i, w in enumerate(known)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", known.index("[CLS]")), ("[SEP]", known.index("[SEP]"))]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )
