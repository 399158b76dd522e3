"""Synthetic stand-ins of the released checkpoints and of the training data, in addition to those of ``standins``.

They are tiny, and have the file names and keys of the real ones, so that every recipe in ``eval`` runs unmodified.

``write_models(FOLDER)`` and ``write_training(FOLDER)`` write ``FOLDER/HOST/PATH`` for a web server to serve.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import string
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dupmae_ir.config import read_toml

MODELS = Path(__file__).resolve().parents[2] / "eval" / "models.toml"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
WORDS = 2000
QUERIES = 140
"""Training queries: enough for a batch of 128, and too few for the batch of 1,024 for BEIR."""


def served(folder: Path, url: str) -> Path:
    """The path of ``url`` on a mirror in ``folder``; its parent is created."""
    parts = urlsplit(url)
    path = folder / parts.netloc / parts.path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_models(folder: Path, text: str) -> None:
    """Write every downloadable model of models.toml. The vocabularies contain the words of ``text``."""
    import torch

    torch.manual_seed(7)
    words = [word for word, _ in Counter(text.lower().split()).most_common(WORDS) if word.isalpha()]
    makers = {
        "electra-base": lambda home: _electra(home, words),
        "gpt2": _gpt2,
        "doc2query-t5": lambda home: _t5(home, text),
        "deberta-v3-base": lambda home: _deberta(home, text),
    }
    for name, entry in read_toml(MODELS).items():
        if not isinstance(entry, dict) or "files" not in entry:
            continue
        home = served(folder, f"{entry['url'].format(revision='main')}/x").parent
        makers.get(name, lambda home: _bert(home, words))(home)
        for missing in set(entry["files"]) - {p.name for p in home.iterdir()}:
            raise AssertionError(f"{name}: {missing} was not written")


def _bert_tokenizer(home: Path, words: list[str]) -> int:
    """Write a tokenizer with ``words`` and single characters; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = list(dict.fromkeys([*SPECIAL, *letters, *(f"##{p}" for p in letters), *words]))
    made = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )
    tokenizer.save_pretrained(home)
    (home / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return len(pieces)


def _bert(home: Path, words: list[str]) -> None:
    """A BERT with masked-LM head, like Google's, or without, like RetroMAE's fine-tuned checkpoints."""
    from transformers import BertConfig, BertForMaskedLM, BertModel

    bare = home.parents[1].name.endswith(("finetune", "distill", "BEIR"))
    config = BertConfig(
        vocab_size=_bert_tokenizer(home, words),
        max_position_embeddings=512,
        pad_token_id=0,
        **SIZES,
    )
    config.architectures = ["BertModel" if bare else "BertForMaskedLM"]
    google = "/bert-base-uncased/" in home.as_posix()
    _save(home, BertModel(config) if bare else BertForMaskedLM(config), config, google)


def _electra(home: Path, words: list[str]) -> None:
    from transformers import ElectraConfig, ElectraForPreTraining

    pieces = _bert_tokenizer(home, words)
    config = ElectraConfig(
        vocab_size=pieces, embedding_size=16, max_position_embeddings=512, **SIZES
    )
    config.architectures = ["ElectraForPreTraining"]
    _save(home, ElectraForPreTraining(config), config, False)


def _gpt2(home: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, "<|endoftext|>"])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=256, **ends).save_pretrained(
        home
    )
    (home / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (home / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    last = vocabulary["<|endoftext|>"]
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=1024,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=last,
        eos_token_id=last,
    )
    config.architectures = ["GPT2LMHeadModel"]
    _save(home, GPT2LMHeadModel(config), config, True)


def _pieces(text: str, **special: Any) -> bytes:
    """A sentencepiece model of ``text``."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=model,
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
        **special,
    )
    return model.getvalue()


def _deberta(home: Path, text: str) -> None:
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    special = {
        "pad_piece": "[PAD]",
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "unk_piece": "[UNK]",
    }
    (home / "spm.model").write_bytes(
        _pieces(text, pad_id=0, bos_id=1, eos_id=2, unk_id=3, **special)
    )
    (home / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "DebertaV2Tokenizer", "model_max_length": 512, "vocab_type": "spm"}
        )
    )
    config = DebertaV2Config(
        vocab_size=256, max_position_embeddings=512, pad_token_id=0, type_vocab_size=0, **SIZES
    )
    config.architectures = ["DebertaV2ForMaskedLM"]
    _save(home, DebertaV2ForMaskedLM(config), config, False)


def _t5(home: Path, text: str) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    (home / "spiece.model").write_bytes(_pieces(text, pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    (home / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "model_max_length": 256})
    )
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (home / "special_tokens_map.json").write_text(json.dumps(special))
    config = T5Config(
        vocab_size=256,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    config.architectures = ["T5ForConditionalGeneration"]
    _save(home, T5ForConditionalGeneration(config), config, False)


def _save(home: Path, model: Any, config: Any, safe: bool) -> None:
    import torch

    home.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(home)
    if safe:
        model.save_pretrained(home)
    else:
        torch.save(model.state_dict(), home / "pytorch_model.bin")


def write_training(
    folder: Path, passages: list[tuple[str, str]], documents: list[tuple[str, str]]
) -> None:
    """Write MS MARCO's training queries, judgements and mined negatives, and DPR's training file for NQ.

    ``passages`` and ``documents``: (id, text) from the stand-ins of the collections, from which the queries are made.
    """
    files = read_toml(MODELS)["files"]
    for kind, chosen in (("msmarco", passages), ("msmarco-doc", documents)):
        drawn = [
            (docid, query)
            for _, (docid, query, _) in zip(range(QUERIES), _queries(chosen), strict=False)
        ]
        queries = "".join(f"{9000 + n}\t{query}\n" for n, (_, query) in enumerate(drawn))
        judged = "".join(f"{9000 + n}\t0\t{docid}\t1\n" for n, (docid, _) in enumerate(drawn))
        if kind == "msmarco":
            served(folder, files["msmarco-queries"]["url"]).write_bytes(
                _tar({"queries.train.tsv": queries})
            )
            served(folder, files["msmarco-train-judgements"]["url"]).write_text(
                judged, encoding="utf-8"
            )
            ids = [docid for docid, _ in chosen]
            mined = (
                {
                    "qid": 9000 + n,
                    "pos": [{"pid": docid, "ce-score": 9.0}],
                    "neg": {
                        "bm25": [
                            {"pid": other, "ce-score": 1.0} for other in ids[-4:] if other != docid
                        ]
                    },
                }
                for n, (docid, _) in enumerate(drawn)
            )
            lines = "".join(f"{json.dumps(row)}\n" for row in mined)
            served(folder, files["msmarco-hard-negatives"]["url"]).write_bytes(
                gzip.compress(lines.encode())
            )
        else:
            served(folder, files["msmarco-doc-train-queries"]["url"]).write_bytes(
                gzip.compress(queries.encode())
            )
            served(folder, files["msmarco-doc-train-judgements"]["url"]).write_bytes(
                gzip.compress(judged.encode())
            )
    rows = [
        {
            "question": query,
            "answers": [text.split()[0]],
            "positive_ctxs": [{"title": "T", "text": text, "passage_id": docid}],
            "negative_ctxs": [],
            "hard_negative_ctxs": [
                {"title": "T", "text": other, "passage_id": d} for d, other in passages[-3:]
            ],
        }
        for _, (docid, query, text) in zip(range(QUERIES), _queries(passages), strict=False)
    ]
    served(folder, files["dpr-nq-train"]["url"]).write_bytes(
        gzip.compress(json.dumps(rows).encode())
    )


def _queries(passages: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Endless (id, query, text): the first words of every passage as queries, then the words after them."""
    for start in itertools.count(0, 3):
        for docid, text in passages:
            yield docid, " ".join(text.split()[start : start + 4]) or docid, text


def _tar(content: dict[str, str]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, text in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return whole.getvalue()
