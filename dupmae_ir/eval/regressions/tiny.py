"""The synthetic collection and model of tier tiny: small, and identical on every machine.

Words are random syllables. Each topic has six words; a document mixes words of one topic with common words, and a query
contains two words of one topic and a common one. The model is a two-layer BERT with weights drawn by numpy.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dupmae_ir.collections.prepared import write_qrels, write_records

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TOPICS = 24
WORDS_PER_TOPIC = 6
COMMON_WORDS = 120
DOCUMENTS = 240
QUERIES = 48
PAIRS = 96
HIDDEN_SIZE = 48
SPECIAL_TOKENS = ("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
COPIES = 4
"""Queries whose text is also a document with the same id, to test the removal of self-retrieval."""


def words() -> list[str]:
    """The vocabulary without special tokens: each topic's words, then the common ones."""
    consonants_and_vowels = itertools.product("bdfgklmnprstvz", "aeiou")
    syllables = ["".join(pair) for pair in consonants_and_vowels]
    rng = np.random.default_rng(1)
    # The keys of a dictionary are unique words in the order in which they are drawn.
    drawn: dict[str, None] = {}
    while len(drawn) < TOPICS * WORDS_PER_TOPIC + COMMON_WORDS:
        length = int(rng.integers(2, 4))
        drawn["".join(rng.choice(syllables, length))] = None
    return list(drawn)


def write_collection(folder: Path) -> Path:
    """Write the collection in BEIR's layout, and pairs.jsonl and augmented.jsonl for training. Returns ``folder``."""
    rng = np.random.default_rng(2)
    vocabulary = words()
    topic_words = []
    for topic in range(TOPICS):
        start = topic * WORDS_PER_TOPIC
        topic_words.append(vocabulary[start : start + WORDS_PER_TOPIC])
    common_words = vocabulary[TOPICS * WORDS_PER_TOPIC :]

    def text(topic: int, topical: int, common: int) -> str:
        """Random words in random order: ``topical`` of the topic and ``common`` common ones."""
        drawn = [*rng.choice(topic_words[topic], topical), *rng.choice(common_words, common)]
        return " ".join(rng.permutation(drawn))

    # All texts are drawn from one generator: whoever changes the order of the draws changes every text after it.
    document_topics = rng.integers(0, TOPICS, DOCUMENTS)
    corpus = []
    for number, topic in enumerate(document_topics):
        title = text(topic, 1, 1)
        common = int(rng.integers(4, 16))
        corpus.append({"_id": f"d{number}", "title": title, "text": text(topic, 3, common)})

    query_topics = rng.integers(0, TOPICS, QUERIES)
    queries = []
    qrels: dict[str, dict[str, int]] = {}
    for number, topic in enumerate(query_topics):
        queries.append({"_id": f"q{number}", "text": text(topic, 2, 1)})
        # Documents with even numbers have grade 1, with odd numbers grade 2.
        relevant = np.flatnonzero(document_topics == topic)
        qrels[f"q{number}"] = {f"d{document}": 1 + int(document) % 2 for document in relevant}
    for query in queries[:COPIES]:
        corpus.append({"_id": query["_id"], "title": "", "text": query["text"]})

    pairs = []
    for number, topic in enumerate(rng.integers(0, TOPICS, PAIRS)):
        query_text = text(topic, 2, 1)
        positive = {"id": f"p{number}", "title": "", "text": text(topic, 3, 8)}
        pairs.append({"query": query_text, "positive": positive})

    # The copies at the end of the corpus have no topic, and no augmented text.
    augmented = []
    for document, topic in zip(corpus, document_topics, strict=False):
        generated_query = text(topic, 2, 1)
        next_text = text(topic, 2, 6)
        augmented.append(
            {"text": document["text"], "queries": [generated_query], "next": [next_text]}
        )

    write_records(folder / "corpus.jsonl", corpus)
    write_records(folder / "queries.jsonl", queries)
    write_records(folder / "pairs.jsonl", pairs)
    write_records(folder / "augmented.jsonl", augmented)
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

    vocabulary = [*SPECIAL_TOKENS, *words(), "##s"]
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * HIDDEN_SIZE,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    tokenizer = _tokenizer(vocabulary)
    lm: Any = BertForMaskedLM(config)
    projection = torch.nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE // 2, bias=False)
    model = Retriever(lm, projection, *excluded_ids(tokenizer))
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "LayerNorm" in name:
                continue
            if name.endswith("bias"):
                weight.zero_()
            else:
                weight.copy_(torch.from_numpy(rng.normal(0, 0.12, weight.shape)))
        # Words must outweigh positions for retrieval to work, and the two parts need similar scales.
        lm.bert.embeddings.word_embeddings.weight.mul_(7)
        projection.weight.mul_(6)
    save_model(folder, model, tokenizer, ModelConfig(document_length=48, query_length=16, top_k=24))
    return folder


def _tokenizer(vocabulary: list[str]) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: token_id for token_id, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
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
