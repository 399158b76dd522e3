"""``fold_terms``: terms that differ by case or a leading space alone are one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import UsageError
from dupmae_ir.index.__main__ import main as index
from dupmae_ir.models import load_encoder
from dupmae_ir.search.__main__ import main as search

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "cat",
    "Cat",
    "\u0120cat",
    "\u0120Cat",
    "dog",
    "\u0120dog",
    "\u0120",
]
SAME = [0, 1, 2, 3, 4, 5, 5, 5, 5, 9, 9, 11]
TEXTS = ["cat dog", "Cat", "dog Cat cat", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ModernBERT with a cased vocabulary that marks spaces."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("cased")
    backend = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=special
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), TOKENS, strict=False))
    special_tokens = {f"{name}_token": token for name, token in names.items()}
    PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=32, **special_tokens
    ).save_pretrained(folder)
    sizes = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    ids = {
        "pad_token_id": 0,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    config = ModernBertConfig(
        vocab_size=12, max_position_embeddings=32, initializer_range=0.5, **sizes, **ids
    )
    ModernBertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("how", ["max", "sum"])
def test_weights_are_those_of_all_spellings(folder, how):
    plain = load_encoder(str(folder)).encode_documents(TEXTS)
    folded = load_encoder(str(folder), fold_terms=how)
    wanted = np.zeros((len(TEXTS), 12), np.float32)
    join = np.maximum if how == "max" else np.add
    for term, same in enumerate(SAME):
        wanted[:, same] = join(wanted[:, same], plain.ot.toarray()[:, term])
    assert (plain.ot.toarray()[:, 6:9] > 0).any()
    for encoded in (folded.encode_documents(TEXTS), folded.encode_queries(TEXTS)):
        np.testing.assert_allclose(encoded.ot.toarray(), wanted, atol=1e-6)
        np.testing.assert_allclose(encoded.cls, plain.cls, atol=1e-6)
    assert folded.term_spans("Cat dog") == [("cat", 0, 3), ("dog", 4, 7)]


def test_the_index_records_it(folder, tmp_path, capsys):
    for name, texts in (("c", TEXTS[:2]), ("more", TEXTS[2:])):
        rows = [json.dumps({"_id": f"{name}{i}", "text": t}) for i, t in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    made = str(tmp_path / "i")
    words = [
        "--corpus",
        str(tmp_path / "c.jsonl"),
        "--model",
        str(folder),
        "--index",
        made,
        "--quiet",
    ]
    assert encode([*words, "--fold-terms", "max"]) == 0
    assert index(["add", "--index", made, "--corpus", str(tmp_path / "more.jsonl"), "--quiet"]) == 0
    capsys.readouterr()
    query = ["--index", made, "--query", "Cat", "--impact", "--impact-search", "postings", "--json"]
    assert search(query) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    encoder = load_encoder(str(folder), fold_terms="max")
    wanted = encoder.encode_queries(["Cat"]).ot @ encoder.encode_documents(TEXTS).ot.T
    docids = ["c0", "c1", "more0", "more1"]
    assert hits[0]["docid"] == docids[int(wanted.toarray().argmax())]
    assert encode([*words, "--restart"]) == 2  # the same index with other terms
    assert "--overwrite" in capsys.readouterr().err


def test_word_weights_in_closed_form_have_no_spellings():
    with pytest.raises(
        UsageError, match="`fold_terms` is for term weights of the model's own head"
    ):
        load_encoder(None, fold_terms="max")
