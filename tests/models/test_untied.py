"""One encoder for queries and another for documents: loaded, encoded, indexed and searched as one model."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.index_samples import write_edited
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import CheckpointError, IndexMismatch
from dupmae_ir.io.runs import read_run
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import CONFIG, PROJECTION, folder_digest
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.plain_files import vocabulary_gap
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.run import run as search

DOCUMENTS = [
    "the quick brown fox",
    "the lazy dog sat on the mat",
    "heap queue sorts list",
    "cat",
    "tree graph the fox",
]
QUERIES = ["quick fox", "dog runs", "the list"]
SETTINGS = ModelConfig(document_length=32, query_length=16, top_k=6, activation="log1p")


def side(seed: int, width: int | None = 8) -> Retriever:
    from transformers import BertForMaskedLM

    from dupmae_ir.models.heads.masked_lm import excluded_ids

    torch.manual_seed(seed)
    lm = BertForMaskedLM(tiny_config())
    projection = torch.nn.Linear(24, width, bias=False) if width else None
    return Retriever(lm, projection, *excluded_ids(tiny_tokenizer()), "log1p").eval()


@pytest.fixture(scope="module")
def sides():
    return side(1), side(2)


@pytest.fixture
def folder(sides, tmp_path):
    return save_model(tmp_path / "untied", UntiedRetriever(*sides), tiny_tokenizer(), SETTINGS)


def plain(model, text):
    """(cls, ot before top-k) of a text, from the retriever's forward pass."""
    batch = tiny_tokenizer()([text], return_tensors="pt")
    with torch.no_grad():
        cls, ot = model(batch["input_ids"], batch["attention_mask"])
    return cls[0].numpy(), ot[0].numpy()


def test_each_side_is_encoded_by_its_own_encoder(sides, folder):
    encoder = load_encoder(folder)
    queries = encoder.encode_queries(QUERIES)
    documents = encoder.encode_documents(DOCUMENTS)
    for i, text in enumerate(QUERIES):
        cls, ot = plain(sides[0], text)
        np.testing.assert_allclose(queries.cls[i], cls, atol=1e-5)
        np.testing.assert_allclose(queries.ot[i].toarray()[0], ot, atol=1e-5)
    for i, text in enumerate(DOCUMENTS):
        cls, ot = plain(sides[1], text)
        np.testing.assert_allclose(documents.cls[i], cls, atol=1e-5)
        kept = documents.ot[i]
        assert kept.nnz <= 6
        np.testing.assert_allclose(kept.data, ot[kept.indices], atol=1e-5)
    padded = load_encoder(folder)
    assert padded._packed is not None
    padded._packed = None
    np.testing.assert_allclose(padded.encode_queries(QUERIES).cls, queries.cls, atol=1e-5)
    np.testing.assert_allclose(padded.encode_documents(DOCUMENTS).cls, documents.cls, atol=1e-5)


def test_the_folder_is_two_model_folders(folder, sides):
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == [
        "passage_model",
        "query_model",
    ]
    for name, model in zip(("query_model", "passage_model"), sides, strict=True):
        alone = load_encoder(folder / name)
        assert alone.settings.top_k == 6
        np.testing.assert_allclose(
            alone.encode_documents(["cat"]).cls[0], plain(model, "cat")[0], atol=1e-5
        )


def test_round_trip(folder, sides, tmp_path):
    loaded, tokenizer, config = load_model(folder)
    assert config == SETTINGS
    for name, value in UntiedRetriever(*sides).state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)
    half = save_model(tmp_path / "half", loaded, tokenizer, config, half=True)
    assert load_encoder(half).encode_queries(["cat"]).cls == pytest.approx(
        plain(sides[0], "cat")[0][None], abs=0.02
    )


def test_a_side_is_one_retriever_of_the_same_width(sides):
    model = UntiedRetriever(*sides)
    batch = tiny_tokenizer()(["the cat"], return_tensors="pt")
    ids = batch["input_ids"]
    mask = batch["attention_mask"]
    with torch.no_grad():
        got = model.side("query")(ids, mask)
        torch.testing.assert_close(got, sides[0](ids, mask))
    with pytest.raises(ValueError, match="8 dimensions and the document side 24"):
        UntiedRetriever(sides[0], side(3, None))


def test_one_digest_covers_both_sides(folder, sides, tmp_path):
    before = folder_digest(folder)
    swapped = save_model(
        tmp_path / "swapped", UntiedRetriever(*reversed(sides)), tiny_tokenizer(), SETTINGS
    )
    assert folder_digest(swapped) != before
    for name in ("query_model", "passage_model"):
        other = shutil.copytree(folder, tmp_path / name)
        save_file({"weight": torch.zeros(8, 24)}, other / name / PROJECTION)
        assert folder_digest(other) != before
    assert load_encoder(folder).digest == before


def test_encode_and_search(folder, sides, tmp_path):
    """The commands on one model folder: scores are inner products of query-side and document-side vectors."""
    corpus = tmp_path / "corpus.jsonl"
    topics = tmp_path / "topics.tsv"
    index = tmp_path / "I"
    corpus.write_text(
        "".join(json.dumps({"_id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(DOCUMENTS))
    )
    topics.write_text("".join(f"q{i}\t{t}\n" for i, t in enumerate(QUERIES)))
    encode(
        EncodeConfig(
            corpus=str(corpus),
            index=str(index),
            model=str(folder),
            device="cpu",
            scale=40.0,
            quiet=True,
        )
    )
    output = tmp_path / "run.trec"
    search(
        SearchConfig(
            index=str(index), topics=str(topics), output=str(output), device="cpu", quiet=True
        )
    )
    run = read_run(output)
    encoder = load_encoder(folder)
    documents = encoder.encode_documents(DOCUMENTS)
    impacts = np.minimum(np.rint(documents.ot.toarray() * 40), 255)
    for i, text in enumerate(QUERIES):
        cls, ot = plain(sides[0], text)
        want = documents.cls @ cls + impacts @ np.minimum(np.rint(ot * 40), 255) / 1600
        got = {hit.docid: hit.score for hit in run[f"q{i}"]}
        # Scores in run files are rounded.
        np.testing.assert_allclose([got[f"d{j}"] for j in range(len(DOCUMENTS))], want, atol=1e-4)
        by_document_side = documents.cls @ plain(sides[1], text)[0]
        assert np.abs(want - by_document_side).max() > 0.1
    stock = DupmaeQueryEncoder.for_index(index)
    np.testing.assert_allclose(
        stock.dense.encode(QUERIES[0]), plain(sides[0], QUERIES[0])[0], atol=1e-5
    )
    swapped = save_model(
        tmp_path / "swapped", UntiedRetriever(*reversed(sides)), tiny_tokenizer(), SETTINGS
    )
    with pytest.raises(IndexMismatch, match="digest"):
        search(
            SearchConfig(
                index=str(index),
                topics=str(topics),
                output=str(output),
                model=str(swapped),
                quiet=True,
            )
        )


def test_an_index_records_normalize(sides, tmp_path):
    folder = save_model(tmp_path / "tied", sides[0], tiny_tokenizer(), SETTINGS)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "the cat"}\n')
    settings = {
        "corpus": str(tmp_path / "corpus.jsonl"),
        "model": str(folder),
        "parts": "cls",
        "quiet": True,
    }
    encode(EncodeConfig(**settings, index=str(tmp_path / "unit"), normalize=True))
    encode(EncodeConfig(**settings, index=str(tmp_path / "raw")))
    assert np.linalg.norm(
        DupmaeQueryEncoder.for_index(tmp_path / "unit").dense.encode("dog")
    ) == pytest.approx(1)
    assert np.linalg.norm(DupmaeQueryEncoder.for_index(tmp_path / "raw").dense.encode("dog")) > 1.1
    output = str(tmp_path / "r.trec")
    search(
        SearchConfig(
            index=str(tmp_path / "unit"), topics=_topics(tmp_path), output=output, quiet=True
        )
    )
    [hit] = read_run(output)["q"]
    encoder = load_encoder(folder, parts=("cls",))
    raw = np.array(
        [encoder.encode_queries(["dog"]).cls[0], encoder.encode_documents(["the cat"]).cls[0]]
    )
    assert hit.score == pytest.approx(
        raw[0] @ raw[1] / np.prod(np.linalg.norm(raw, axis=1)), abs=1e-5
    )
    again = encode(EncodeConfig(**settings, index=str(tmp_path / "unit"), normalize=True))
    assert again["status"] == "already complete"
    with pytest.raises(IndexMismatch, match=r"`normalize` True \(requested none\)"):
        encode(EncodeConfig(**settings, index=str(tmp_path / "unit")))


def _topics(folder):
    (folder / "topics.tsv").write_text("q\tdog\n")
    return str(folder / "topics.tsv")


def test_an_index_recorded_without_normalize_stays_valid(sides, tmp_path):
    folder = save_model(tmp_path / "tied", sides[0], tiny_tokenizer(), SETTINGS)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "the cat"}\n')
    index = tmp_path / "I"
    config = EncodeConfig(
        corpus=str(tmp_path / "corpus.jsonl"), model=str(folder), index=str(index), quiet=True
    )
    encode(config)
    meta = json.loads((index / "meta.json").read_text())
    del meta["encoder"]["normalize"], meta["settings"]["normalize"]
    write_edited(index, meta)
    assert encode(config)["status"] == "already complete"
    search(
        SearchConfig(
            index=str(index), topics=_topics(tmp_path), output=str(tmp_path / "r.trec"), quiet=True
        )
    )
    assert len(read_run(tmp_path / "r.trec")) == 1


# ---------------------------------------------------------------- refused models


def test_a_tokenizer_that_lost_tokens_is_refused(sides, tmp_path):
    folder = save_model(tmp_path / "tied", sides[0], tiny_tokenizer(), SETTINGS)
    load_model(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    del tokenizer["model"]["vocab"]["cat"]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(
        CheckpointError, match=r"lacks 1 of the ids up to its highest, \d+; restore the tokenizer"
    ):
        load_model(folder)


def test_padding_of_word_embeddings_is_not_a_lost_token():
    assert vocabulary_gap(range(1000), 1024) is None
    assert "more than padding explains" in (vocabulary_gap(range(30322), 30522) or "")


def damage_one_side(folder):
    shutil.rmtree(folder / "query_model")
    return "has only one of query_model and passage_model"


def damage_weights(folder):
    (folder / "query_model" / "model.safetensors").unlink()
    return "query_model: no weights"


def damage_width(folder):
    save_file({"weight": torch.zeros(5, 24)}, folder / "query_model" / PROJECTION)
    return "query side has 5 dimensions .* document side 8"


def damage_vocabulary(folder):
    path = folder / "query_model" / "tokenizer.json"
    path.write_text(path.read_text().replace('"fox"', '"fax"'))
    return "different vocabularies"


def damage_configs(folder):
    (folder / CONFIG).unlink()
    (folder / "query_model" / CONFIG).write_text(json.dumps({"activation": "relu"}))
    return f"two sides have different {CONFIG}"


@pytest.mark.parametrize(
    "damage", [damage_one_side, damage_weights, damage_width, damage_vocabulary, damage_configs]
)
def test_sides_that_do_not_match_are_refused(folder, damage):
    match = damage(folder)
    with pytest.raises(CheckpointError, match=match) as e:
        load_model(folder)
    assert "\n" not in str(e.value)


def test_the_config_of_the_sides_is_used_without_one_in_the_parent_folder(folder):
    (folder / CONFIG).unlink()
    assert load_model(folder)[2] == SETTINGS


def test_shared_modules_are_stored_once(sides):
    """One encoder, two projections: Tevatron's tied model with an untied pooler."""
    one = sides[0]
    other = Retriever(one.lm, copy.deepcopy(one.projection), [0], [0])
    model = UntiedRetriever(one, other)
    assert (
        sum(p.numel() for p in model.parameters())
        == sum(p.numel() for p in one.parameters()) + 8 * 24
    )


def test_with_settings_keeps_the_sides(folder):
    encoder = TextEncoder.load(folder)
    other = encoder.with_settings(document_length=4)
    np.testing.assert_array_equal(
        other.encode_queries(QUERIES).cls, encoder.encode_queries(QUERIES).cls
    )
    assert (
        np.abs(
            other.encode_documents(DOCUMENTS).cls - encoder.encode_documents(DOCUMENTS).cls
        ).max()
        > 0.01
    )
