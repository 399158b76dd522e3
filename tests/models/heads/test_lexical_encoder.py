"""The lexical OT part: weights equal the definition, [CLS] is untouched, folders and errors."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from support.lexical_models import document_impacts, make_lexical, query_impacts
from support.tiny_models import WORDS

from dupmae_ir.errors import CheckpointError, HeadMissing, IndexMismatch
from dupmae_ir.index.format.forward import FREQUENCIES, Forward, ForwardWriter
from dupmae_ir.index.format.quantisation import quantise
from dupmae_ir.models.analyzer import stems
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import (
    WHOLE_WORDS,
    WITH_PARTS,
    LexicalSettings,
    read_config,
)
from dupmae_ir.models.heads.lexical import (
    BucketTerms,
    Lexicon,
    bucket_number,
    bucket_of,
    decode_frequencies,
    encode_frequencies,
    terms_in_languages,
)
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.types import CollectionStatistics, Document, LexicalEncoder

RNG = random.Random(5)
DOCUMENTS = [
    Document(
        f"d{i}",
        " ".join(RNG.choices([*WORDS, "running", "Cats"], k=i % 30)),
        "lazy dogs" * (i % 3 == 0),
    )
    for i in range(40)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_lexical(tmp_path_factory.mktemp("lexical"))


@pytest.fixture(scope="module")
def encoder(folder):
    return TextEncoder.load(folder)


def rows(impacts):
    return [dict(zip(r.indices.tolist(), r.data.tolist(), strict=True)) for r in impacts]


def test_documents_equal_the_definition(encoder):
    impacts, clipped = quantise(encoder.encode_collection(DOCUMENTS).ot, 255.0)
    want = [
        document_impacts(stems(d.title), stems(d.text), encoder.settings.top_k) for d in DOCUMENTS
    ]
    assert clipped == 0
    assert rows(impacts) == want
    assert max(map(len, want)) == encoder.settings.top_k
    assert want[0]  # a title without text


def test_queries_equal_the_definition_with_and_without_a_collection(encoder, folder):
    rates = np.minimum(
        decode_frequencies(
            encode_frequencies(np.random.default_rng(0).integers(0, 300, 512).astype(float))
        )
        / 300,
        1,
    )
    queries = {
        "the quick cats": ["quick", "cat"],
        "running over lists and the running": [
            "run",
            "list",
            "run",
        ],  # "over" is left out of queries alone
        "": [],
        "the": [],
        "over": ["over"],  # there is no other word
    }
    frequencies = np.random.default_rng(1).integers(0, 90, 512)
    for documents, df in ((0, np.zeros(512)), (90, frequencies)):
        chosen = (
            encoder.for_collection(CollectionStatistics(documents, df)) if documents else encoder
        )
        impacts, _ = quantise(chosen.encode_queries(list(queries)).ot, 255.0, 8191)
        assert rows(impacts) == [
            query_impacts(words, rates, documents, df) for words in queries.values()
        ]
    assert impacts.data.max() > 255  # a query's impacts are not those of a document
    assert isinstance(encoder, LexicalEncoder)


@pytest.mark.parametrize("analyzer", [WHOLE_WORDS, WITH_PARTS])
def test_identifiers_match_by_their_parts_if_the_model_says_so(analyzer):
    settings = LexicalSettings(buckets=1 << 12, analyzer=analyzer)
    lexicon = Lexicon(settings, np.full(1 << 12, 0.1))
    document = lexicon.document("threading.Thread.join", "waits until it ends")
    whole, part = (lexicon.dimension(stem) for stem in ("threading.thread.join", "join"))
    assert whole in lexicon.query("threading.Thread.join")
    assert whole in document
    for text in ("Thread.join", "joining"):  # the part of an identifier, and a plain word
        shared = lexicon.query(text).keys() & document.keys()
        assert (part in shared) == (analyzer == WITH_PARTS)
    terms = (
        ["threading.thread.join", "thread", "thread", "join"]
        if analyzer == WITH_PARTS
        else ["threading.thread.join"]
    )
    title = document_impacts_of(settings, lexicon, terms, stems("waits until it ends"))
    assert {d: round(255 * w) for d, w in document.items()} == title
    names = lexicon.names("threading.Thread.join()")
    assert names[whole] == "threading.thread.join"
    assert names.get(part) == ("join" if analyzer == WITH_PARTS else None)


def document_impacts_of(settings, lexicon, title, text):
    """The impacts of a document from the definition, for any settings."""
    counts = Counter(map(lexicon.dimension, title * 2 + text))
    n = len(title + text)
    norm = settings.k1 * (1 - settings.b + settings.b * n / settings.average_stems)
    return {d: round(255 * tf / (tf + norm)) for d, tf in counts.items()}


def test_the_strongest_terms_of_a_query_are_kept(encoder):
    whole, cut = (
        encoder.encode_queries(["the quick cats sat on lists"], cap).ot for cap in (1024, 3)
    )
    assert sorted(cut.data) == sorted(whole.data)[-3:]


def test_cls_is_that_of_the_model_alone(encoder, folder):
    texts = [d.joined() for d in DOCUMENTS]
    model, tokenizer, config = load_model(folder, need_ot=False)
    for i in (1, 3, 29):
        ids = torch.tensor([tokenizer(texts[i], truncation=True, max_length=16)["input_ids"]])
        with torch.inference_mode():
            want = model(ids, torch.ones_like(ids), ot=False)[0]
        np.testing.assert_allclose(
            encoder.encode_collection(DOCUMENTS).cls[i], want[0].numpy(), atol=1e-5
        )
    assert encoder.settings.impact_scale == 255
    assert (config.ot, encoder.settings.ot) == ("lexical", "lexical")


def test_a_batch_and_single_texts_agree(encoder):
    together = encoder.encode_collection(DOCUMENTS)
    for i in (0, 1, 17):
        alone = encoder.encode_collection(DOCUMENTS[i : i + 1])
        np.testing.assert_allclose(alone.cls[0], together.cls[i], atol=1e-5)
        assert (alone.ot != together.ot[i]).nnz == 0


def test_parts(folder):
    only = TextEncoder.load(folder, parts=("ot",))
    both = TextEncoder.load(folder)
    assert only.encode_collection(DOCUMENTS).cls is None
    assert (only.encode_collection(DOCUMENTS).ot != both.encode_collection(DOCUMENTS).ot).nnz == 0
    assert TextEncoder.load(folder, parts=("cls",)).terms is None


def test_terms_and_their_names(encoder):
    assert len(encoder.terms) == len(set(encoder.terms)) == 512
    names = encoder.term_names("Running the runs, cats")
    assert names == {
        f"={bucket_of('run', 512):x}": "running/runs",
        f"={bucket_of('cat', 512):x}": "cats",
    }


def test_codes_of_frequencies():
    frequencies = np.array([0, 0.6, 1, 2, 17, 1000, 327_565])
    back = decode_frequencies(encode_frequencies(frequencies))
    assert back[0] == 0
    assert (np.abs(back[1:] / frequencies[1:] - 1) < 0.03).all()


def test_the_head_of_a_lexical_model_is_missing(folder):
    with pytest.raises(HeadMissing):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ot": "bm25"}, "ot must be one of mlm, token_weight, lexical, got 'bm25'"),
        ({"format": 3}, "format 3 is newer than this version reads (2)"),
        ({"lexical": {"buckets": 0}}, "lexical.buckets must be a positive whole number, got 0"),
        ({"lexical": {"bucket": 1}}, "unknown setting lexical.bucket. Did you mean"),
        ({"lexical": {"hash": "md5"}}, "lexical.hash is 'md5'; this version reads"),
        ({"lexical": {"buckets": 64}}, "expected 64 bytes"),
        ({"ot": "mlm"}, "has lexical settings, but ot is 'mlm'"),
    ],
)
def test_unusable_configurations(folder, tmp_path, change, message):
    copy = shutil.copytree(folder, tmp_path / "m")
    config = json.loads((copy / "dupmae_config.json").read_text())
    (copy / "dupmae_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError) as e:
        TextEncoder.load(copy)
    assert message in str(e.value)


def test_a_missing_or_damaged_lexicon(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "m")
    (copy / "lexicon.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not a readable lexicon"):
        TextEncoder.load(copy)
    (copy / "lexicon.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match="is missing; a model with a lexical OT part needs it"
    ):
        TextEncoder.load(copy)
    assert TextEncoder.load(copy, parts=("cls",)).dim == 8


def test_models_with_the_papers_form_keep_format_1(tiny_folder):
    stored = json.loads((tiny_folder / "dupmae_config.json").read_text())
    assert stored["format"] == 1
    assert not {"ot", "lexical"} & set(stored)
    assert read_config(tiny_folder).ot == "mlm"


def test_frequencies_are_stored_and_counted(tmp_path):
    with ForwardWriter(tmp_path, 70_000) as writer:
        writer.add(np.array([0, 2, 2, 4]), np.array([3, 69_999, 3, 5]), np.array([1, 2, 3, 4]))
    stored = Forward.open(tmp_path, 70_000).frequencies
    assert stored.sum() == 4
    assert stored[[3, 5, 69_999]].tolist() == [2, 1, 1]
    (tmp_path / FREQUENCIES).unlink()  # an index of an older version
    assert Forward.open(tmp_path, 70_000).frequencies.tolist() == stored.tolist()
    np.save(tmp_path / FREQUENCIES, np.zeros(70_000, np.int64))
    with pytest.raises(
        IndexMismatch, match=r"frequencies.npy of the forward index does not belong"
    ):
        _ = Forward.open(tmp_path, 70_000).frequencies


def test_terms_of_buckets_are_a_list_that_is_made_when_it_is_read() -> None:
    terms = BucketTerms(300)
    expected = [f"={number:x}" for number in range(300)]
    assert list(terms) == expected
    assert terms == expected
    assert terms == BucketTerms(300)
    assert terms != BucketTerms(299)
    assert terms != expected[:-1]
    assert (len(terms), terms[17], terms[-1], terms[5:8]) == (300, "=11", "=12b", expected[5:8])
    with pytest.raises(IndexError):
        _ = terms[300]
    assert list(terms_in_languages(terms)) == list(terms_in_languages(expected))
    assert list(terms_in_languages(["a", "b"])) == ["a", "b", "=2", "=3"]
    assert pickle.loads(pickle.dumps(terms)) == terms
    for number in (0, 9, 10, 255, 299):
        assert bucket_number(terms[number]) == number
    for other in ("", "=", "a", "=g", "=0a", "=A", "=-1", "=1_0", "= 1", "cat"):
        assert bucket_number(other) is None
