"""``pretrain.tokenizer``: a vocabulary from a corpus, and training from scratch with it."""

from __future__ import annotations

import json

import pytest
from support.pretraining import flags, tiny_corpus
from transformers import AutoTokenizer, BertForMaskedLM

from dupmae_ir.errors import InputError
from dupmae_ir.pretrain.__main__ import main as pretrain
from dupmae_ir.pretrain.tokenizer import TokenizerConfig, main, run

TEXT = (
    "The heartbeat of the hypersonic wing.\nÉtude: a study of wings, hearts and beats, 1957.\n" * 20
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def made(text, output, **changes):
    settings = {"size": 70, "layers": 1, "width": 64, "positions": 32, "quiet": True} | changes
    return run(TokenizerConfig(corpus=(str(text),), output=str(output), **settings))


def test_the_folder_has_a_tokenizer_and_a_model_configuration(text, tmp_path):
    assert made(text, tmp_path / "a")["pieces"] == 70
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a", local_files_only=True)
    ids = tokenizer("Étude of WINGS")["input_ids"]
    assert [ids[0], ids[-1]] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "etude of wings"
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)
    assert any(piece.startswith("##") for piece in tokenizer.get_vocab())
    model = BertForMaskedLM(BertForMaskedLM.config_class.from_pretrained(tmp_path / "a"))
    assert model.get_input_embeddings().weight.shape == (70, 64)


def test_the_same_corpus_gives_the_same_file(text, tmp_path):
    for name in ("a", "b"):
        made(text, tmp_path / name)
    first, second = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("a", "b"))
    assert first == second


def test_a_cased_tokenizer_keeps_case_and_accents(text, tmp_path):
    made(text, tmp_path / "a", cased=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a", local_files_only=True)
    assert (
        tokenizer.decode(tokenizer("Étude The")["input_ids"], skip_special_tokens=True)
        == "Étude The"
    )


def test_a_corpus_with_too_few_words_is_refused(text, tmp_path):
    with pytest.raises(InputError, match="`size` 5000"):
        made(text, tmp_path / "a", size=5000)
    assert not (tmp_path / "a").exists()


def test_from_scratch_in_two_commands(tmp_path):
    corpus = tiny_corpus(tmp_path / "corpus.jsonl")
    pieces = tmp_path / "pieces"
    small = ("--size", "70", "--layers", "1", "--width", "64", "--positions", "32", "--quiet")
    assert main(["--corpus", str(corpus), "--output", str(pieces), *small]) == 0
    words = {"model": None, "from-config": pieces / "config.json", "tokenizer": pieces}
    own = {**words, "init-embeddings": "corpus", "length-pool": 2, "steps": 4, "quiet": True}
    assert pretrain(flags("mlm", None, corpus, tmp_path / "model", **own)) == 0
    settings = json.loads((tmp_path / "model" / "training.json").read_text())["settings"]
    assert (settings["init_embeddings"], settings["length_pool"]) == ("corpus", 2)
