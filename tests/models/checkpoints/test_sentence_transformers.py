"""Exported models open in sentence-transformers with its own modules only, and give equal vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.errors import UsageError
from dupmae_ir.export import ExportConfig, main, run
from dupmae_ir.io.jobs import Job
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.names import embedded_folder
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

st = pytest.importorskip("sentence_transformers")

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "cat",
    "heap queue sorts list",
    "",
    "the the the dog | é",
    "zebra unknown",
    "tree graph list heap the cat sat on the mat over lazy dogs",
]
SETTINGS = {"document_length": 16, "query_length": 8, "top_k": 6}


def retriever(
    seed=0, *, width=8, bias=False, family="bert", activation="relu", normalize=False, **include
):
    from transformers import (
        BertForMaskedLM,
        DistilBertConfig,
        DistilBertForMaskedLM,
        RobertaConfig,
        RobertaForMaskedLM,
    )

    torch.manual_seed(seed)
    small = {"vocab_size": 29, "max_position_embeddings": 64, "initializer_range": 0.4}
    lm = {
        "bert": lambda: BertForMaskedLM(tiny_config()),
        "distilbert": lambda: DistilBertForMaskedLM(
            DistilBertConfig(dim=24, n_layers=1, n_heads=3, hidden_dim=48, **small)
        ),
        "roberta": lambda: RobertaForMaskedLM(
            RobertaConfig(
                hidden_size=24,
                num_hidden_layers=1,
                num_attention_heads=3,
                intermediate_size=48,
                pad_token_id=0,
                **small,
            )
        ),
    }[family]()
    projection = torch.nn.Linear(24, width, bias=bias) if width else None
    return Retriever(
        lm, projection, *excluded_ids(tiny_tokenizer(), **include), activation, normalize
    ).eval()


def saved(folder, model, **settings):
    side = model.side("document")
    config = ModelConfig(
        activation=side.activation, normalize=side.normalize, **{**SETTINGS, **settings}
    )
    return save_model(folder, model, tiny_tokenizer(), config)


def export(model, output, part):
    return run(ExportConfig(model=str(model), output=str(output), part=part, quiet=True))


def dense(folder):
    return st.SentenceTransformer(str(folder), device="cpu")


def sparse(folder):
    return st.SparseEncoder(str(folder), device="cpu")


def rows(tensor):
    return tensor.to_dense().numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {"width": None},
        {},
        {"bias": True},
        {"normalize": True},
        {"width": None, "normalize": True},
        {"family": "distilbert"},
        {"family": "roberta"},
    ],
    ids=str,
)
def test_dense_vectors_are_equal(tmp_path, settings):
    folder = saved(tmp_path / "model", retriever(**settings))
    export(folder, tmp_path / "dense", "cls")
    theirs = dense(tmp_path / "dense")
    ours = load_encoder(folder)
    np.testing.assert_allclose(
        theirs.encode_document(TEXTS), ours.encode_documents(TEXTS).cls, atol=1e-5
    )
    theirs.max_seq_length = 8
    np.testing.assert_allclose(
        theirs.encode_query(TEXTS), ours.encode_queries(TEXTS).cls, atol=1e-5
    )
    assert theirs.similarity_fn_name == "dot"


@pytest.mark.parametrize("activation", ["relu", "log1p"])
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_sparse_vectors_are_equal(tmp_path, activation, family):
    """[CLS] and [SEP] are not pooled, special tokens have no weight, and documents are cut to the top k."""
    folder = saved(tmp_path / "model", retriever(family=family, activation=activation))
    export(folder, tmp_path / "sparse", "ot")
    theirs = sparse(tmp_path / "sparse")
    ours = load_encoder(folder)
    documents = ours.encode_documents(TEXTS).ot.toarray()
    got = theirs.encode_document(TEXTS, max_active_dims=6)
    np.testing.assert_allclose(rows(got), documents, atol=1e-5)
    assert ((rows(got) != 0) == (documents != 0)).all()
    assert rows(got)[TEXTS.index("")].sum() == 0
    theirs.max_seq_length = 8
    queries = ours.encode_queries(TEXTS).ot.toarray()
    assert (queries != 0).sum(1).max() > 6
    np.testing.assert_allclose(
        rows(theirs.encode_query(TEXTS, max_active_dims=1024)), queries, atol=1e-5
    )


def test_opening_a_model_without_export_gives_other_vectors(tmp_path):
    folder = saved(tmp_path / "model", retriever(activation="log1p"))
    export(folder, tmp_path / "sparse", "ot")
    want = rows(sparse(tmp_path / "sparse").encode(TEXTS, max_active_dims=29))
    naive = rows(sparse(folder).encode(TEXTS))
    assert naive[:, :6].max() > 0.1
    assert want[:, :6].max() == 0
    assert (naive - want)[:, 6:].max() > 0.1


@pytest.mark.parametrize(
    ("include", "activation"),
    [
        ({"include_sep": True}, "relu"),
        ({"include_cls": True}, "relu"),
        ({"include_sep": True, "include_cls": True}, "log1p"),
    ],
)
def test_include_sep_and_include_cls_are_respected(tmp_path, include, activation):
    folder = saved(tmp_path / "model", retriever(activation=activation, **include), **include)
    export(folder, tmp_path / "sparse", "ot")
    documents = load_encoder(folder).encode_documents(TEXTS).ot.toarray()
    got = sparse(tmp_path / "sparse").encode_document(TEXTS, max_active_dims=6)
    np.testing.assert_allclose(rows(got), documents, atol=1e-5)


@pytest.mark.parametrize("part", ["cls", "ot"])
def test_two_encoders_become_a_router(tmp_path, part):
    model = UntiedRetriever(retriever(1, activation="log1p"), retriever(2, activation="log1p"))
    folder = saved(tmp_path / "model", model)
    assert export(folder, tmp_path / "routed", part)["routed"]
    ours = load_encoder(folder)
    # Each side has its own length here, so max_seq_length need not be set.
    queries = ours.encode_queries(TEXTS)
    documents = ours.encode_documents(TEXTS)
    if part == "cls":
        theirs = dense(tmp_path / "routed")
        np.testing.assert_allclose(theirs.encode_query(TEXTS), queries.cls, atol=1e-5)
        np.testing.assert_allclose(theirs.encode_document(TEXTS), documents.cls, atol=1e-5)
        return
    theirs = sparse(tmp_path / "routed")
    # Version 5 ignores each side's length when max_active_dims is given, so use short texts only.
    short = [i for i, text in enumerate(TEXTS) if len(text.split()) < 6]
    got = rows(theirs.encode_query([TEXTS[i] for i in short], max_active_dims=1024))
    np.testing.assert_allclose(got, queries.ot[short].toarray(), atol=1e-5)
    got = rows(theirs.encode_document(TEXTS, max_active_dims=6))
    np.testing.assert_allclose(got, documents.ot.toarray(), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_an_export_has_all_weights_and_needs_no_arguments(tmp_path, family):
    """The ONNX backend refuses arguments of the model's class, and transformers reports weights that are missing."""
    from transformers import AutoModel

    export(saved(tmp_path / "model", retriever(family=family)), tmp_path / "dense", "cls")
    assert "model_args" not in json.loads(
        (tmp_path / "dense" / "sentence_bert_config.json").read_text()
    )
    _, info = AutoModel.from_pretrained(tmp_path / "dense", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
@pytest.mark.parametrize(
    ("backend", "package"), [("onnx", "onnxruntime"), ("openvino", "intel.openvino")]
)
@pytest.mark.filterwarnings("ignore")  # of optimum and the tracer
def test_vectors_are_equal_under_the_other_backends(tmp_path, backend, package, family):
    """optimum requires an older transformers than the pinned one, so this runs in an environment of its own."""
    pytest.importorskip(f"optimum.{package}")
    folder = saved(tmp_path / "model", retriever(family=family, activation="log1p"))
    want = load_encoder(folder).encode_documents(TEXTS)
    for part in ("cls", "ot"):
        export(folder, tmp_path / part, part)
    exact = (
        {"model_kwargs": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}}
        if backend == "openvino"
        else {}
    )
    one = st.SentenceTransformer(str(tmp_path / "cls"), device="cpu", backend=backend, **exact)
    np.testing.assert_allclose(one.encode_document(TEXTS), want.cls, atol=1e-5)
    other = st.SparseEncoder(str(tmp_path / "ot"), device="cpu", backend=backend, **exact)
    np.testing.assert_allclose(
        rows(other.encode_document(TEXTS, max_active_dims=6)), want.ot.toarray(), atol=1e-5
    )


def test_the_model_is_not_modified(tmp_path):
    folder = saved(tmp_path / "model", retriever())
    before = load_encoder(folder).digest
    export(folder, tmp_path / "sparse", "ot")
    assert load_encoder(folder).digest == before


def test_the_command(tmp_path, capsys):
    folder = saved(tmp_path / "model", retriever())
    words = ["--model", str(folder), "--output", str(tmp_path / "out")]
    assert main([*words, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["modules"] == ["Transformer", "Pooling", "Dense"]
    assert main([*words, "--json"]) == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["status"] == "already complete"
    assert "already complete" in again.err
    assert main([*words, "--part", "ot"]) == 2
    assert '--part "cls" (requested "ot")' in capsys.readouterr().err
    assert main([*words, "--part", "ot", "--overwrite"]) == 0
    assert "SparseEncoder of MLMTransformer, WordWeights, Pooling" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "made.json").read_text())["inputs"] == {
        "model": folder_digest(folder)
    }
    assert sparse(tmp_path / "out").encode_document(["cat"]).shape == (1, 29)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    assert main(["--model", str(folder), "--output", str(tmp_path / "mine"), "--overwrite"]) == 2
    assert "exists without its record" in capsys.readouterr().err
    assert main(["--model", str(tmp_path / "none"), "--output", str(tmp_path / "x")]) == 2
    assert "no such model folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model", "out"]


def test_a_killed_export_starts_over(tmp_path):
    folder = saved(tmp_path / "model", retriever())
    config = ExportConfig(model=str(folder), output=str(tmp_path / "out"), quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(config)
    assert (tmp_path / ".out.work" / "export").is_dir()
    assert run(config)["status"] == "complete"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_models_without_an_equivalent_are_refused(tmp_path):
    both = {"include_sep": True, "include_cls": True}
    folder = saved(tmp_path / "model", retriever(**both), **both)
    with pytest.raises(UsageError, match="has no equivalent"):
        export(folder, tmp_path / "sparse", "ot")
    assert not (tmp_path / "sparse").exists()
    with pytest.raises(UsageError, match="choose from cls, ot"):
        export(folder, tmp_path / "sparse", "dense")


@pytest.mark.nightly
def test_the_default_model(tmp_path):
    passages = [
        "Threads wait for each other with join().",
        "def f(x): return x",
        "Heap queue algorithm, also known as the priority queue algorithm." * 40,
        "what is a decorator",
    ]
    ours = load_encoder()
    export(embedded_folder(), tmp_path / "cls", "cls")
    expected = (
        ours.encode_documents(passages).cls / ours.settings.normalize
    )  # the exported model has unit vectors
    np.testing.assert_allclose(
        dense(tmp_path / "cls").encode_document(passages), expected, atol=1e-5
    )
    with pytest.raises(UsageError, match="its OT part is lexical, without an equivalent"):
        export(embedded_folder(), tmp_path / "ot", "ot")
    assert not (tmp_path / "ot").exists()
