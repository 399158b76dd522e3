"""experiments/lexical.py: [CLS] is the mean of the tokens, the lexicon counts documents, equal bytes every time."""

from __future__ import annotations

import gzip
import json

import lexical as module
import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer
from transformers import BertModel

from dupmae_ir.models.heads.lexical import bucket_of, decoded
from dupmae_ir.models.inference.encoder import TextEncoder

PASSAGES = [
    {"_id": "a", "title": "The cat", "text": "sat on the mat"},
    {"_id": "b", "text": "cats and a dog"},
    {"_id": "held", "text": "a lazy dog"},
]
TEXTS = ["the quick brown fox jumps over the lazy dog", "cat", "list heap queue tree graph"]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as f:
        f.writelines(line + "\n" for line in lines)


@pytest.fixture
def data(tmp_path):
    for name in module.PRETRAIN:
        write(tmp_path / "data" / "pretrain" / f"{name}.txt.gz", ["dogs run", "", "the tree"] * (name == "xquad"))
    write(tmp_path / "data" / "pairs" / "corpus.jsonl.gz", map(json.dumps, PASSAGES))
    write(tmp_path / "data" / "pairs" / "dev.jsonl.gz", [json.dumps({"query": "dog", "positive": {"id": "held"}})])
    return tmp_path / "data"


@pytest.fixture
def base(tmp_path):
    torch.manual_seed(1)
    BertModel(tiny_config(), add_pooling_layer=False).save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_the_model_folder(data, base, tmp_path, capsys):
    flags = ["--data", str(data), "--base", str(base)]
    assert module.main([*flags, "--output", str(tmp_path / "m")]) == 0
    assert module.main([*flags, "--output", str(tmp_path / "again")]) == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()}
    assert json.loads(files["training.json"])["documents"] == 4
    assert module.main([*flags, "--output", str(tmp_path / "m")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_cls_is_the_mean_of_the_tokens(data, base, tmp_path):
    module.make(str(base), data, tmp_path / "m", 4.5)
    encoder = TextEncoder.load(tmp_path / "m")
    plain = BertModel.from_pretrained(base, add_pooling_layer=False).eval()
    found = encoder.encode_documents(TEXTS).cls
    for text, cls in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            mean = plain(**encoder.tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        centred = (mean - mean.mean()).numpy()
        assert cls @ centred / np.linalg.norm(centred) / np.linalg.norm(cls) > 0.9999
    np.testing.assert_allclose((found**2).sum(1), 4.5, rtol=2e-3)


def test_the_lexicon_counts_documents(data, base, tmp_path):
    module.make(str(base), data, tmp_path / "m", 4.5)
    lexicon = TextEncoder.load(tmp_path / "m")._lexicon
    rates = lexicon.rates[29:]
    # Of four documents, without the held-out one: "cat" in both passages, "dog" in one and in a line.
    assert rates[bucket_of("cat", 1 << 17)] == pytest.approx(0.5, rel=0.03)
    assert rates[bucket_of("dog", 1 << 17)] == pytest.approx(0.5, rel=0.03)
    assert rates[bucket_of("lazi", 1 << 17)] == 0
    pieces = lexicon.rates[:29]
    assert pieces[tiny_tokenizer().get_vocab()["cat"]] == pytest.approx(1.0, rel=0.03)  # word pieces: passages alone
    assert pieces[tiny_tokenizer().all_special_ids].max() == 0
    assert decoded(np.array([0], np.uint8))[0] == 0


def test_missing_text_is_one_line(base, tmp_path, capsys):
    assert module.main(["--data", str(tmp_path), "--base", str(base), "--output", str(tmp_path / "m")]) == 2
    assert "dev.jsonl.gz is missing; --data names the folder" in capsys.readouterr().err
