"""Encoding: both parts from one pass, alone or in a batch, packed or padded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_models import load_padded
from transformers import AutoTokenizer

from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer
from dupmae_ir.models.inference import packed, packed_layers
from dupmae_ir.models.inference.encoder import TextEncoder, batches_by_tokens, even_budget
from dupmae_ir.models.pooling import strongest
from dupmae_ir.models.retriever import similarity

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "cat",
    "heap queue sorts list",
    "",
    "the the the dog | é",
    "zebra unknown",
    "tree graph list heap the cat sat on the mat over lazy dogs",
]


@pytest.fixture(scope="module")
def encoder(tiny_folder):
    return TextEncoder.load(tiny_folder)


def test_a_text_alone_and_in_a_batch_agree(encoder):
    """Only the order of float32 sums differs between batch shapes."""
    together = encoder.encode_documents(TEXTS)
    for row, text in enumerate(TEXTS):
        alone = encoder.encode_documents([text])
        np.testing.assert_allclose(alone.cls[0], together.cls[row], atol=1e-4)
        np.testing.assert_allclose(alone.ot.toarray()[0], together.ot.toarray()[row], atol=1e-4)


def test_packed_equals_padded(encoder, tiny_folder):
    assert encoder._packed is not None
    ours = encoder.encode_documents(TEXTS)
    reference = load_padded(tiny_folder).encode_documents(TEXTS)
    np.testing.assert_allclose(ours.cls, reference.cls, atol=1e-5)
    np.testing.assert_allclose(ours.ot.toarray(), reference.ot.toarray(), atol=1e-5)


def test_the_ot_vector_follows_the_formula(encoder, tiny_retriever):
    """Eq. 6-7: maximum over ordinary tokens of the masked-LM logits, ReLU, top k, without special and unused ids."""
    model, tokenizer = tiny_retriever
    batch = tokenizer([TEXTS[0]], return_tensors="pt")
    with torch.no_grad():
        logits = model.lm(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits[0]
    want = logits[1:-1].amax(0).clamp(min=0)
    want[:6] = 0  # [PAD] [unused0] [UNK] [CLS] [SEP] [MASK]
    kth = want.topk(6).values[-1]
    want[want < kth] = 0
    np.testing.assert_allclose(
        encoder.encode_documents([TEXTS[0]]).ot.toarray()[0], want.numpy(), atol=1e-5
    )


def test_the_cls_vector_is_the_projection_of_the_first_state(encoder, tiny_retriever):
    model, tokenizer = tiny_retriever
    batch = tokenizer([TEXTS[0]], return_tensors="pt")
    with torch.no_grad():
        first = model.lm.bert(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[
            0
        ][0, 0]
        want = model.projection.weight @ first
    np.testing.assert_allclose(encoder.encode_documents([TEXTS[0]]).cls[0], want.numpy(), atol=1e-5)


def test_hybrid_is_the_inner_product_of_the_concatenation(encoder):
    d = encoder.encode_documents(TEXTS)
    q = encoder.encode_queries(["quick dog", "heap"])
    apart = q.cls @ d.cls.T + (q.ot @ d.ot.T).toarray()
    joined = np.hstack([q.cls, q.ot.toarray()]) @ np.hstack([d.cls, d.ot.toarray()]).T
    # The same products, summed in another order.
    np.testing.assert_allclose(apart, joined, rtol=1e-5, atol=1e-5)
    ours = similarity(
        (torch.tensor(q.cls), torch.tensor(q.ot.toarray())),
        (torch.tensor(d.cls), torch.tensor(d.ot.toarray())),
    )
    np.testing.assert_allclose(ours.numpy(), apart, rtol=1e-5, atol=1e-5)


def test_documents_are_cut_to_top_k_and_queries_to_the_cap(encoder):
    assert np.diff(encoder.encode_documents(TEXTS).ot.indptr).max() == 6
    whole = np.diff(encoder.encode_queries(TEXTS).ot.indptr)
    assert whole.max() > 6
    assert np.diff(encoder.encode_queries(TEXTS, cap=3).ot.indptr).max() == 3


def test_an_empty_text_has_a_vector_and_no_words(encoder):
    rep = encoder.encode_documents(["", "cat"])
    assert np.isfinite(rep.cls).all()
    assert rep.ot[0].nnz == 0
    assert rep.ot[1].nnz > 0


def test_no_texts(encoder):
    rep = encoder.encode_documents([])
    assert rep.cls.shape == (0, 8)
    assert rep.ot.shape == (0, 29)


def test_parts_are_optional(tiny_folder):
    assert TextEncoder.load(tiny_folder, parts=("cls",)).encode_documents(TEXTS).ot is None
    only_ot = TextEncoder.load(tiny_folder, parts=("ot",))
    assert only_ot.encode_documents(TEXTS).cls is None
    assert only_ot.dim is None


def test_arguments_override_the_settings_of_the_checkpoint(tiny_folder):
    assert TextEncoder.load(tiny_folder).settings.document_length == 32
    assert TextEncoder.load(tiny_folder).settings.top_k == 6
    assert TextEncoder.load(tiny_folder, document_length=10, top_k=3).settings.document_length == 10
    assert load_encoder(tiny_folder, top_k=None).settings.top_k == 6


@pytest.mark.parametrize(
    "bad",
    [
        {"document_length": 1000},
        {"query_length": 2},
        {"top_k": -1},
        {"activation": "softmax"},
        {"device": "gpu"},
        {"dtype": "float8"},
        {"dtype": "float16", "device": "cpu"},
        {"parts": ("dense",)},
    ],
)
def test_bad_settings_are_refused_in_one_line(tiny_folder, bad):
    with pytest.raises(UsageError) as e:
        TextEncoder.load(tiny_folder, **bad)
    assert "\n" not in str(e.value)


def test_truncation_keeps_the_closing_sep(encoder):
    long = "cat " * 500
    assert encoder._tokenise([long], "", 10).pieces[0][-1] == encoder.tokenizer.sep_token_id
    assert len(encoder._tokenise([long], "", 10).pieces[0]) == 10


@pytest.mark.parametrize("plain", [True, False])
def test_texts_longer_than_the_model_reads_are_counted(tiny_folder, plain):
    encoder = TextEncoder.load(tiny_folder, document_length=8)
    if not plain:
        encoder.tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    assert isinstance(encoder.tokenizer, PlainTokenizer) == plain
    word = TEXTS[0].split()[0]
    room = 6 // len(encoder._tokenise([word], "", 32, special=False).pieces[0])
    # The second fits exactly.
    texts = ["", " ".join([word] * room), " ".join([word] * (room + 1)), " ".join([word] * 500)]
    assert encoder.encode_documents(texts).truncated == 2
    assert encoder.encode_documents(texts[:2]).truncated == 0


def test_batches_group_similar_lengths_within_the_budget():
    lengths = [3, 9, 4, 9, 1, 30]
    got = list(batches_by_tokens(lengths, 20))
    assert sorted(r for b in got for r in b) == list(range(6))
    assert all(len(b) == 1 or max(lengths[r] for r in b) * len(b) <= 20 for b in got)
    assert [r for b in got for r in b] == sorted(range(6), key=lambda r: (-lengths[r], r))


@pytest.mark.parametrize("texts", [0, 1, 40, 96, 1000])
def test_batches_are_shared_out_evenly(texts):
    lengths = [280 + text % 7 for text in range(texts)]
    budget = even_budget(lengths, 4096)
    assert budget <= 4096
    tokens = [sum(lengths[row] for row in rows) for rows in batches_by_tokens(lengths, budget)]
    assert sum(tokens) == sum(lengths)
    # Two threads that take batches in turn differ by one batch at most; a few large ones would leave one idle.
    first, second = sum(tokens[::2]), sum(tokens[1::2])
    assert abs(first - second) <= max(1200, 0.08 * sum(tokens))


def test_log1p_and_none_follow_the_formula(tiny_folder):
    relu = TextEncoder.load(tiny_folder, top_k=29).encode_documents(TEXTS).ot.toarray()
    log1p = (
        TextEncoder.load(tiny_folder, top_k=29, activation="log1p")
        .encode_documents(TEXTS)
        .ot.toarray()
    )
    np.testing.assert_allclose(log1p, np.log1p(relu), atol=1e-6)


def test_bfloat16_is_close_and_recorded(tiny_folder):
    half = TextEncoder.load(tiny_folder, dtype="bfloat16")
    assert half.settings.dtype == "bfloat16"
    full = TextEncoder.load(tiny_folder).encode_documents(TEXTS).cls
    # Eight bits of mantissa through two layers.
    assert np.abs(half.encode_documents(TEXTS).cls - full).max() < 0.1 * np.abs(full).max()


def test_mixed_has_bfloat16_products_and_float32_between(tiny_folder, monkeypatch):
    """Nearer to float32 than bfloat16 throughout, in both parts; queries are as in float32."""
    monkeypatch.setattr("dupmae_ir.device.cpu_supports_bf16", lambda: True)
    found = {
        name: TextEncoder.load(tiny_folder, dtype=name) for name in ("float32", "mixed", "bfloat16")
    }
    assert found["mixed"].settings.dtype == "mixed"
    assert "those of the layers in bfloat16" in found["mixed"].running["kernel"]
    full, mixed, half = (one.encode_documents(TEXTS) for one in found.values())
    errors = [np.abs(part.cls - full.cls).mean() for part in (mixed, half)]
    assert 0 < errors[0] < errors[1]
    errors = [np.abs(part.ot.toarray() - full.ot.toarray()).mean() for part in (mixed, half)]
    assert 0 < errors[0] < errors[1]
    assert mixed.cls.dtype == mixed.ot.dtype == np.float32
    queries = [found[name].encode_queries(TEXTS) for name in ("float32", "mixed")]
    assert np.array_equal(queries[0].cls, queries[1].cls)
    assert np.array_equal(queries[0].ot.toarray(), queries[1].ot.toarray())


def test_packed_top_is_the_top_of_the_whole_ot_part(encoder):
    packed = encoder._on("document")
    pieces = sorted(encoder._tokenise(TEXTS, "", 32).pieces, key=len, reverse=True)
    with torch.inference_mode():
        whole = strongest(packed(pieces)[2], 5)
        _, *top = packed(pieces, keep=5)
    assert torch.equal(top[0][:, : whole[0].shape[1]], whole[0])
    torch.testing.assert_close(top[1], whole[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "mixed", "bfloat16"])
def test_cls_alone_is_cls_of_all_tokens(tiny_folder, dtype):
    """The last layer for the first tokens alone gives their states after the whole layer."""
    side = TextEncoder.load(tiny_folder, dtype=dtype)._on("document")
    pieces = sorted(
        TextEncoder.load(tiny_folder)._tokenise([*TEXTS, *TEXTS], "", 32).pieces,
        key=len,
        reverse=True,
    )
    with torch.inference_mode():
        alone, *nothing = side(pieces, keep=0)
        whole, *_ = side(pieces)
    assert nothing == [None, None]
    torch.testing.assert_close(alone, whole, atol=1e-5 if dtype == "float32" else 0.1, rtol=0)


def test_screened_and_unscreened_heads_agree(tiny_folder, monkeypatch):
    """Both ways, whichever this processor would use."""
    found = []
    for screens in (True, False):
        monkeypatch.setattr(packed, "pick_screen", lambda *_, s=screens: (s, "forced"))
        one = TextEncoder.load(tiny_folder, top_k=6)
        found.append(one.encode_documents(TEXTS).ot)
        side = one._on("document")
        assert (side.unscreened == 0) is screens
    assert found[0].indices.tolist() == found[1].indices.tolist()
    np.testing.assert_allclose(found[0].data, found[1].data, atol=1e-5)


def test_too_many_candidates_are_computed_in_full(tiny_folder, monkeypatch):
    monkeypatch.setattr(packed, "pick_screen", lambda *_: (True, "forced"))
    monkeypatch.setattr(packed, "MOST_CANDIDATES", 0)
    one = TextEncoder.load(tiny_folder)
    plain = load_padded(tiny_folder)
    ours = one.encode_documents(TEXTS)
    reference = plain.encode_documents(TEXTS)
    assert one._on("document").unscreened > 0
    np.testing.assert_allclose(ours.ot.toarray(), reference.ot.toarray(), atol=1e-5)


def test_bfloat16_attention_is_close_to_float64():
    g = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 11, 3, 2, 8, generator=g)
    exact = packed_layers.attention(qkv.double())
    # Scores, probabilities and sums are rounded to eight bits.
    torch.testing.assert_close(
        packed_layers.attention(qkv.bfloat16()).double(), exact, atol=3e-2, rtol=0
    )


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()]
)
def test_a_batch_that_does_not_fit_is_halved(tiny_folder, monkeypatch, error):
    one = TextEncoder.load(tiny_folder)
    whole = one.encode_documents(TEXTS)
    forward = one._forward
    sizes = []

    def small_memory(pieces, side, keep):
        sizes.append(len(pieces))
        if len(pieces) > 2:
            raise error
        return forward(pieces, side, keep)

    monkeypatch.setattr(one, "_forward", small_memory)
    halved = one.encode_documents(TEXTS)
    np.testing.assert_allclose(halved.cls, whole.cls, atol=1e-5)
    np.testing.assert_allclose(halved.ot.toarray(), whole.ot.toarray(), atol=1e-5)
    assert sizes[0] == len(TEXTS)
    assert "halved" in one.running["batch"]
    sizes.clear()
    one.encode_documents(TEXTS)
    assert sizes[0] < len(TEXTS), "later batches are smaller from the start"


def failing(folder, monkeypatch, message):
    """An encoder whose forward pass raises a RuntimeError."""
    one = TextEncoder.load(folder)

    def forward(*_):
        raise RuntimeError(message)

    monkeypatch.setattr(one, "_forward", forward)
    return one


def test_a_single_text_that_does_not_fit_is_a_one_line_error(tiny_folder, monkeypatch):
    one = failing(tiny_folder, monkeypatch, "CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(DupmaeError, match="too little memory for a single text of 16 word pieces"):
        one.encode_documents(TEXTS)


def test_other_errors_are_not_mistaken_for_out_of_memory(tiny_folder, monkeypatch):
    one = failing(tiny_folder, monkeypatch, "shapes do not match")
    with pytest.raises(RuntimeError, match="shapes"):
        one.encode_documents(TEXTS)


def test_choices_come_with_their_reason(encoder):
    assert set(encoder.running) == {"device", "dtype", "kernel", "head", "threads", "batch"}
    assert "word pieces:" in encoder.running["batch"]
