"""Fine-tuning from a lexical base: training, encoding, the fast path and the export compute the same OT weights."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from support.lexical_models import make_lexical
from support.tiny_models import WORDS, load_padded

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.export import main as export
from dupmae_ir.finetune.__main__ import main
from dupmae_ir.finetune.config import FinetuneConfig, Objective
from dupmae_ir.finetune.examples import Example, ExampleCollator
from dupmae_ir.finetune.lexical import LexicalBatches, cut, with_lexical
from dupmae_ir.finetune.objective import BiEncoder, batch_loss
from dupmae_ir.finetune.pairs import Pair
from dupmae_ir.finetune.trainer import encoder_mrr, mrr, ranks
from dupmae_ir.models.checkpoints.layout import LEXICON
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import read_config
from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.inference.packed import PackedRetriever
from dupmae_ir.models.retriever import similarity
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document

RNG = random.Random(2)
TEXTS = [" ".join(RNG.choices([*WORDS, "running", "Cats"], k=4 + i % 9)) for i in range(300)]
DOCUMENTS = [
    Document(f"d{i}", text, "lazy dogs" * (i % 3 == 0)) for i, text in enumerate(TEXTS[:24])
]
QUERIES = [" ".join(text.split()[:3]) for text in TEXTS[:24]]
TRAINING = [
    "--steps",
    3,
    "--batch-size",
    6,
    "--log-steps",
    1,
    "--top-k",
    9,
    "--query-length",
    12,
    "--group-size",
    2,
]
TRAINING += [
    "--document-length",
    16,
    "--learning-rate",
    0.001,
    "--query-flops",
    0,
    "--device",
    "cpu",
    "--threads",
    1,
    "--quiet",
]


def train(base, output, *more):
    folder = output.parent
    rows = [
        {"query": " ".join(t.split()[:3]), "positive": {"title": "mat" * (i % 2), "text": t}}
        for i, t in enumerate(TEXTS)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = [
        "--pairs",
        folder / "pairs.jsonl",
        "--dev",
        folder / "pairs.jsonl",
        "--model",
        base,
        "--output",
        output,
    ]
    return main([*map(str, [*flags, *TRAINING, *more])])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The base, and models trained from it in both lexical forms."""
    folder = tmp_path_factory.mktemp("lexical")
    base = make_lexical(folder)
    assert train(base, folder / "lexical") == 0
    assert train(base, folder / "mixed", "--ot", "lexical+mlm", "--head-scale", 0.3) == 0
    return {"base": base, "lexical": folder / "lexical", "mixed": folder / "mixed"}


def test_a_base_that_reads_the_embedded_lexicon(tmp_path):
    base = make_lexical(tmp_path, buckets=131072)
    settings = json.loads((base / "dupmae_config.json").read_text())
    (base / "dupmae_config.json").write_text(json.dumps({**settings, "embedded_lexicon": True}))
    (base / LEXICON).unlink()
    assert train(base, tmp_path / "trained") == 0
    before = TextEncoder.load(base).encode_documents(TEXTS).ot
    assert (TextEncoder.load(tmp_path / "trained").encode_documents(TEXTS).ot != before).nnz == 0


def as_in_training(folder, documents=DOCUMENTS, top_k=9):
    """(parts of the queries, parts of the documents) by the code of training, the documents' OT part cut."""
    config = read_config(folder)
    model, tokenizer, _ = load_model(folder, need_ot=config.has_head)
    lexicon = Lexicon.load(folder / LEXICON, config.lexical, 29)
    lexical = LexicalBatches(lexicon)
    collator = ExampleCollator(tokenizer, 12, 16, config.title_separator, lexical)
    examples = [Example(q, d, (), frozenset()) for q, d in zip(QUERIES, documents, strict=True)]
    batch = collator([e._replace(answers=frozenset([1])) for e in examples])
    encoder = BiEncoder(model.eval(), (True, config.has_head))
    with torch.no_grad():
        parts = encoder(batch)
    whole = {
        side: (cls, with_lexical(ot, batch, side, len(examples)))
        for side, (cls, ot) in parts.items()
    }
    kept = whole["document"][0], cut(whole["document"][1], top_k, batch)
    return whole["query"], kept, (parts, batch)


@pytest.mark.parametrize("form", ["lexical", "mixed"])
def test_training_and_encoding_have_the_same_scores(models, form):
    encoder = TextEncoder.load(models[form], document_length=16, query_length=12)
    queries = encoder.encode_queries(QUERIES)
    documents = encoder.encode_collection(DOCUMENTS)
    of_queries, of_documents, _ = as_in_training(models[form])
    np.testing.assert_allclose(queries.cls, of_queries[0].numpy(), atol=1e-5)
    impact = similarity((None, of_queries[1]), (None, of_documents[1])).numpy()
    # float32; the closed form itself is compared exactly below
    np.testing.assert_allclose(
        (queries.ot @ documents.ot.T).toarray(), impact, rtol=1e-5, atol=1e-5
    )
    weights = [np.sort(row[row > 0]) for row in of_documents[1].numpy()]
    for row, wanted in zip(documents.ot, weights, strict=True):
        assert len(wanted) <= 9
        np.testing.assert_allclose(np.sort(row.data), wanted, atol=0 if form == "lexical" else 1e-6)


def test_the_sum_is_the_closed_form_and_the_scaled_head(models):
    """Exact: float32 additions of the two shares, the head's from the module itself."""
    encoder = TextEncoder.load(models["mixed"], document_length=16, top_k=10_000)
    scale = read_config(models["mixed"]).lexical.head_scale
    assert scale > 0
    assert abs(scale - 0.3) > 1e-4  # it has learned
    model, tokenizer, _ = load_model(models["mixed"])
    packed = PackedRetriever(model)
    lexicon = encoder._lexicon
    positive = 0
    documents = [Document("", text, "mat" * (i % 2)) for i, text in enumerate(TEXTS)]
    for document, row in zip(documents, encoder.encode_collection(documents).ot, strict=True):
        ids = tokenizer(document.joined(), truncation=True, max_length=16)["input_ids"]
        with torch.inference_mode():
            alone = packed([ids])[2][0].numpy()
            model.head_scale = None
            bare = packed([ids])[2][0]
            model.head_scale = torch.nn.Parameter(torch.tensor(scale))
        np.testing.assert_array_equal(alone, (bare * torch.tensor(scale)).numpy())
        weights = lexicon.document(document.title, document.text)
        assert weights
        assert min(weights) >= 29  # word pieces have the head's weights alone
        wanted = np.concatenate([alone, np.zeros(512, np.float32)])
        wanted[list(weights)] = list(weights.values())
        np.testing.assert_allclose(
            row.toarray()[0], wanted, atol=1e-6
        )  # another batch, other float32 rounding
        positive += int((bare > 0).sum())
        stems = {d: np.float32(w) for d, w in weights.items()}
        assert {d: row[0, d] for d in stems} == stems
    assert positive > 30


def test_the_fast_path_and_padded_batches_agree(models):
    encoder = TextEncoder.load(models["mixed"])
    other = load_padded(models["mixed"])
    assert encoder._packed is not None
    packed = encoder.encode_collection(DOCUMENTS)
    packed_queries = encoder.encode_queries(QUERIES)
    padded = other.encode_collection(DOCUMENTS)
    padded_queries = other.encode_queries(QUERIES)
    for ours, theirs in ((packed, padded), (packed_queries, padded_queries)):
        np.testing.assert_allclose(ours.ot.toarray(), theirs.ot.toarray(), atol=1e-5)
        np.testing.assert_allclose(ours.cls, theirs.cls, atol=1e-5)


def test_a_scale_of_zero_is_the_closed_form(models):
    """Training without a head changes [CLS] and no OT weight."""
    lengths = {"document_length": 16, "query_length": 12}
    base, trained = (TextEncoder.load(models[name], **lengths) for name in ("base", "lexical"))
    one = base.encode_collection(DOCUMENTS)
    other = trained.encode_collection(DOCUMENTS)
    assert (one.ot != other.ot).nnz == 0
    assert (base.encode_queries(QUERIES).ot != trained.encode_queries(QUERIES).ot).nnz == 0
    assert np.abs(one.cls - other.cls).max() > 1e-3
    assert (
        "head_scale"
        not in json.loads((models["lexical"] / "dupmae_config.json").read_text())["lexical"]
    )
    assert (models["lexical"] / LEXICON).read_bytes() == (models["base"] / LEXICON).read_bytes()


def test_the_factor_gets_a_gradient_through_the_sum(models):
    _, _, (_, batch) = as_in_training(models["mixed"])
    model, _, _ = load_model(models["mixed"])
    with torch.no_grad():
        model.lm.get_output_embeddings().bias += 3.0  # queries and documents share word pieces
    trained = BiEncoder(model.requires_grad_(True))(batch)
    settings = {"query_flops": 0.0, "document_flops": 0.0, "part_weight": 0.0, "top_k": 30}
    loss, _ = batch_loss(trained["query"], trained["document"], batch, Objective(**settings))
    loss.backward()
    queries, documents = (
        (trained[side][0], with_lexical(trained[side][1], batch, side, len(QUERIES)))
        for side in ("query", "document")
    )
    scores = similarity(queries, (documents[0], cut(documents[1], 30, batch)))
    wanted = torch.nn.functional.cross_entropy(scores, torch.arange(len(QUERIES)))
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert model.head_scale.grad.abs().item() > 0


def test_the_bases_weights_of_the_parts_stay_and_measure_the_start(tmp_path):
    base = make_lexical(tmp_path, dense_weight=4.0, impact_weight=0.5, normalize=True)
    assert train(base, tmp_path / "made") == 0
    stored = read_config(tmp_path / "made")
    assert (stored.dense_weight, stored.impact_weight, stored.normalize) == (4.0, 0.5, True)
    before = json.loads((tmp_path / "made" / "training.json").read_text())["result"]["before"]
    encoder = TextEncoder.load(base, document_length=16, query_length=12, top_k=9)
    documents = [Document("", text, "mat" * (i % 2)) for i, text in enumerate(TEXTS)]
    queries = encoder.encode_queries([" ".join(text.split()[:3]) for text in TEXTS])
    found = encoder.encode_collection(documents)
    dense = queries.cls @ found.cls.T
    impact = (queries.ot @ found.ot.T).toarray()
    joined = [document.joined() for document in documents]
    right, other = (
        mrr(ranks(torch.from_numpy(s), joined)) for s in (4 * dense + 0.5 * impact, dense + impact)
    )
    assert before["start"] == pytest.approx(right, abs=1e-6)
    assert abs(right - other) > 1e-3


@pytest.mark.parametrize("weight", [0.1, 5.0])
def test_a_model_is_measured_as_a_search_would_rank(tmp_path, weight):
    encoder = TextEncoder.load(make_lexical(tmp_path, dense_weight=weight, normalize=True))
    corpus = tmp_path / "corpus.jsonl"
    pairs = [Pair(q, d) for q, d in zip(QUERIES, DOCUMENTS, strict=True)]
    corpus.write_text(
        "".join(
            json.dumps({"_id": d.docid, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS
        )
    )
    index = str(tmp_path / "index")
    encode(EncodeConfig(corpus=str(corpus), index=index, model=str(tmp_path / "model"), quiet=True))
    searcher = Searcher.open(index)
    ranking = []
    for pair in pairs:
        ids = [hit.docid for hit in searcher.search(pair.query, 10)]
        ranking.append(1 + ids.index(pair.positive.docid) if pair.positive.docid in ids else 11)
    assert encoder_mrr(encoder, pairs) == pytest.approx(mrr(torch.tensor(ranking)), abs=1e-6)


def test_the_index_records_the_form_and_the_export_keeps_it(models, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(
            json.dumps({"_id": d.docid, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS
        )
    )
    encode(
        EncodeConfig(
            corpus=str(corpus),
            index=str(tmp_path / "index"),
            model=str(models["mixed"]),
            quiet=True,
        )
    )
    made = json.loads((tmp_path / "index" / "meta.json").read_text())["encoder"]
    scale = read_config(models["mixed"]).lexical.head_scale
    assert (made["ot"], made["head_scale"]) == ("lexical", scale)
    small = tmp_path / "small"
    assert (
        export(
            ["--model", str(models["mixed"]), "--to", "compact", "--output", str(small), "--quiet"]
        )
        == 0
    )
    assert read_config(small).lexical == read_config(models["mixed"]).lexical
    whole, stored = (
        TextEncoder.load(f, top_k=10_000).encode_collection(DOCUMENTS).ot
        for f in (models["mixed"], small)
    )
    np.testing.assert_array_equal(
        whole[:, 29:].toarray(), stored[:, 29:].toarray()
    )  # stems are not in the weights
    np.testing.assert_allclose(whole.toarray(), stored.toarray(), atol=0.05)  # a head in 8 bits
    assert (
        export(["--model", str(models["mixed"]), "--part", "ot", "--output", str(tmp_path / "ot")])
        == 2
    )


def test_the_papers_form_of_a_lexical_base(models, tmp_path):
    assert train(models["base"], tmp_path / "mlm", "--ot", "mlm") == 0
    config = read_config(tmp_path / "mlm")
    assert (config.ot, config.lexical) == ("mlm", None)
    assert not (tmp_path / "mlm" / LEXICON).exists()
    assert TextEncoder.load(tmp_path / "mlm").encode_documents(TEXTS[:3]).ot.shape == (3, 29)


def test_what_cannot_be_trained_is_one_line(models, tmp_path, capsys):
    assert train(models["base"], tmp_path / "ot", "--similarity", "ot") == 2
    assert "nothing to train; use --ot lexical+mlm" in capsys.readouterr().err
    assert (
        train(models["base"], tmp_path / "cls", "--similarity", "cls", "--ot", "lexical+mlm") == 2
    )
    assert "trains no head" in capsys.readouterr().err
    plain = tmp_path / "plain"
    assert train(models["base"], plain, "--ot", "mlm") == 0
    assert train(plain, tmp_path / "no", "--ot", "lexical") == 2
    assert "has no lexicon; start from a model with a lexical OT part" in capsys.readouterr().err
    with pytest.raises(Exception, match="`head_scale` applies only with `ot` lexical"):
        FinetuneConfig(output="o", pairs=("p",), head_scale=0.5)
