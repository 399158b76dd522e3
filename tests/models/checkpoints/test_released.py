"""Folders with the keys of released checkpoints give the vectors that plain transformers computes from them."""

from __future__ import annotations

import argparse
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import load_padded, tiny_config, tiny_tokenizer

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import CONFIG, folder_digest
from dupmae_ir.models.checkpoints.loading import load_model

TEXT = "the quick dog runs over the lazy cats"


def seeded(make, *arguments, seed=0):
    torch.manual_seed(seed)
    return make(*arguments).eval()


def bert(seed=0):
    from transformers import BertModel

    return seeded(BertModel, tiny_config(), seed=seed)


def masked_lm(seed=0):
    from transformers import BertForMaskedLM

    return seeded(BertForMaskedLM, tiny_config(), seed=seed)


def save(folder, model, architecture=None):
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    if architecture:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    return folder


def add_keys(folder, keys):
    state = {**load_file(folder / "model.safetensors"), **keys}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def batch():
    return {
        k: v
        for k, v in tiny_tokenizer()([TEXT], return_tensors="pt").items()
        if k != "token_type_ids"
    }


def first_state(model):
    with torch.no_grad():
        return model(**batch()).last_hidden_state[0, 0]


def logits(model):
    with torch.no_grad():
        return model(**batch()).logits[0]


def dense(folder, text=TEXT, **settings):
    return load_encoder(folder, parts=("cls",), **settings).encode_documents([text]).cls[0]


def sparse(folder, **settings):
    return load_encoder(folder, parts=("ot",), **settings).encode_documents([TEXT]).ot.toarray()[0]


def close(got, want):
    np.testing.assert_allclose(got, np.asarray(want), atol=1e-5)


# ---------------------------------------------------------------- Hugging Face folders


def test_retromae_pretrained_has_both_parts(tmp_path):
    """Shitao/RetroMAE, Shitao/RetroMAE_MSMARCO: bert.* and cls.predictions.*, no pooler."""
    lm = masked_lm()
    folder = save(tmp_path / "retromae", lm)
    assert not any("pooler" in k for k in load_file(folder / "model.safetensors"))
    close(dense(folder), first_state(lm.bert))
    want = logits(lm)[1:-1].amax(0).clamp(min=0)
    want[:6] = 0
    close(sparse(folder), want)


def test_retromae_finetuned_has_only_cls(tmp_path):
    """Shitao/RetroMAE_MSMARCO_finetune: BertModel with a random pooler, which must not be used."""
    model = bert()
    folder = save(tmp_path / "finetuned", model)
    assert "pooler.dense.weight" in load_file(folder / "model.safetensors")
    close(dense(folder), first_state(model))
    with torch.no_grad():
        assert np.abs(dense(folder) - model(**batch()).pooler_output[0].numpy()).max() > 0.1
    with pytest.raises(CheckpointError, match=r"no trained masked-LM head.*`parts` cls"):
        load_encoder(folder)


def test_old_weights_in_a_bin_file(tmp_path):
    """Most were saved before safetensors existed, and with position ids."""
    model = bert()
    folder = save(tmp_path / "old", model)
    (folder / "model.safetensors").unlink()
    torch.save(
        {**model.state_dict(), "embeddings.position_ids": torch.arange(64)[None]},
        folder / "pytorch_model.bin",
    )
    torch.save(argparse.Namespace(lr=1.0), folder / "training_args.bin")
    close(dense(folder), first_state(model))


def test_cot_maes_decoder_is_ignored(tmp_path):
    """caskcsg/cotmae_base_uncased: the masked LM and c_head.*."""
    lm = masked_lm()
    folder = save(tmp_path / "cotmae", lm)
    plain = sparse(folder)
    add_keys(folder, {"c_head.0.attention.self.query.weight": torch.randn(24, 24)})
    close(sparse(folder), plain)
    close(dense(folder), first_state(lm.bert))


@pytest.mark.parametrize(
    "heads", [{"c_head.0.output.dense.weight": torch.zeros(2)}, {"query_head.w": torch.ones(2)}]
)
def test_the_pickles_of_master_and_bowdpr_are_ignored(tmp_path, heads):
    """MASTER's archive, bowdpr: the masked LM, model.pt (decoders), args.pt (a Namespace)."""
    lm = masked_lm()
    folder = save(tmp_path / "master", lm)
    digest = folder_digest(folder)
    torch.save(heads, folder / "model.pt")
    torch.save(argparse.Namespace(output_dir="x"), folder / "args.pt")
    close(dense(folder), first_state(lm.bert))
    assert folder_digest(folder) == digest


def test_normalize_comes_from_the_config_or_the_caller(tmp_path):
    """intfloat/simlm-base-msmarco-finetuned: BertModel, [CLS] scaled to unit length."""
    model = bert()
    folder = save(tmp_path / "simlm", model)
    want = torch.nn.functional.normalize(first_state(model), dim=0)
    close(dense(folder, normalize=True), want)
    (folder / CONFIG).write_text(json.dumps({"normalize": True}))
    close(dense(folder), want)
    assert load_encoder(folder, parts=("cls",)).settings.normalize
    close(dense(folder, normalize=False), first_state(model))


def test_padded_and_packed_both_normalise(tmp_path):
    folder = save(tmp_path / "simlm", bert())
    encoder = load_encoder(folder, parts=("cls",), normalize=True)
    packed = encoder.encode_queries([TEXT, "cat"]).cls
    assert encoder._packed is not None
    close(
        packed,
        load_padded(folder, parts=("cls",), normalize=True).encode_queries([TEXT, "cat"]).cls,
    )
    close((packed**2).sum(1), [1, 1])


def test_an_electra_loads_as_an_encoder(tmp_path):
    """simlm-base: an ELECTRA discriminator; no head for the OT part."""
    from transformers import ElectraConfig, ElectraForPreTraining

    config = ElectraConfig(
        vocab_size=29,
        hidden_size=24,
        embedding_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    model = seeded(ElectraForPreTraining, config)
    folder = save(tmp_path / "electra", model)
    close(dense(folder), first_state(model.electra))
    with pytest.raises(CheckpointError, match="no trained masked-LM head"):
        load_encoder(folder)


def test_the_head_of_an_electra_generator_is_not_supported(tmp_path):
    from transformers import ElectraConfig, ElectraForMaskedLM

    config = ElectraConfig(
        vocab_size=29,
        hidden_size=24,
        embedding_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    model = seeded(ElectraForMaskedLM, config)
    folder = save(tmp_path / "electra", model)
    close(dense(folder), first_state(model.electra))
    with pytest.raises(CheckpointError, match="the head of ElectraForMaskedLM is not supported"):
        load_encoder(folder)


def test_a_headless_distilbert(tmp_path):
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=29, dim=24, n_layers=1, n_heads=3, hidden_dim=48, max_position_embeddings=64
    )
    model = seeded(DistilBertModel, config)
    close(dense(save(tmp_path / "distil", model)), first_state(model))


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_splade_is_log1p_pooled_over_all_tokens(tmp_path, family):
    """naver/splade*: max over all tokens of log(1 + ReLU(logits)), without the dimensions of special tokens."""
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = DistilBertConfig(
        vocab_size=29,
        dim=24,
        n_layers=1,
        n_heads=3,
        hidden_dim=48,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    lm = masked_lm() if family == "bert" else seeded(DistilBertForMaskedLM, config)
    folder = save(tmp_path / "splade", lm)
    all_tokens = torch.log1p(logits(lm).clamp(min=0)).amax(0)
    ordinary = torch.log1p(logits(lm)[1:-1].clamp(min=0)).amax(0)
    all_tokens[:6] = ordinary[:6] = 0
    close(sparse(folder, activation="log1p"), ordinary)
    (folder / CONFIG).write_text(
        json.dumps({"activation": "log1p", "include_cls": True, "include_sep": True})
    )
    close(sparse(folder), all_tokens)
    assert (all_tokens - ordinary).abs().max() > 0.01


def test_a_reranker_is_refused(tmp_path):
    """caskcsg/cotmae_base_msmarco_reranker, intfloat/simlm-msmarco-reranker."""
    from transformers import BertForSequenceClassification

    model = seeded(BertForSequenceClassification, tiny_config(num_labels=1))
    with pytest.raises(CheckpointError, match=r"is a reranker .*teacher"):
        load_encoder(save(tmp_path / "reranker", model), parts=("cls",))


# ---------------------------------------------------------------- Tevatron


def pooler(folder, *, bias=True, tied=True, dim=8, config=None):
    """Write what DensePooler.save_pooler writes; returns the two layers."""
    torch.manual_seed(3)
    q = torch.nn.Linear(24, dim, bias=bias)
    p = q if tied else torch.nn.Linear(24, dim, bias=bias)
    state = {
        f"linear_{s}.{k}": v for s, m in (("q", q), ("p", p)) for k, v in m.state_dict().items()
    }
    torch.save(state, folder / "pooler.pt")
    (folder / "pooler_config.json").write_text(
        json.dumps(config or {"input_dim": 24, "output_dim": dim, "tied": tied})
    )
    return q, p


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_tevatron_folder_with_a_pooler(tmp_path, bias, tied):
    lm = masked_lm()
    folder = save(tmp_path / "tevatron", lm)
    before = folder_digest(folder)
    q, p = pooler(folder, bias=bias, tied=tied)
    assert folder_digest(folder) != before
    encoder = load_encoder(folder)
    assert encoder.dim == 8
    with torch.no_grad():
        close(encoder.encode_queries([TEXT]).cls[0], q(first_state(lm.bert)))
        close(encoder.encode_documents([TEXT]).cls[0], p(first_state(lm.bert)))
    # One encoder: the OT part is the same on both sides, with one copy of the weights.
    model, _, _ = load_model(folder)
    assert model.side("query").lm is model.side("document").lm
    assert (model.side("query") is model.side("document")) == tied


def test_invalid_poolers_are_refused(tmp_path):
    folder = save(tmp_path / "tevatron", bert())

    def refused(match):
        with pytest.raises(CheckpointError, match=match) as e:
            load_model(folder, need_ot=False)
        assert "\n" not in str(e.value)

    pooler(folder, config={"input_dim": 24, "output_dim": 99})
    refused(r"pooler_config\.json: declares 24 to 99 dimensions but pooler\.pt has 24 to 8")
    torch.save(
        {"linear_q.weight": torch.ones(8, 7), "linear_p.weight": torch.ones(8, 7)},
        folder / "pooler.pt",
    )
    refused(r"linear_q: expected a weight of shape \(d', 24\), got \(8, 7\)")
    torch.save({"linear_q.weight": torch.ones(8, 24)}, folder / "pooler.pt")
    refused("linear_p: expected a weight .* got None")
    torch.save({"token_weights.weight": torch.ones(1, 24)}, folder / "pooler.pt")
    refused(r"expected only linear_q\.\* and linear_p\.\*, found token_weights\.weight")
    torch.save({"linear_q.weight": argparse.Namespace()}, folder / "pooler.pt")
    refused(r"contains more than tensors \(argparse\.Namespace\)")
    (folder / "pooler.pt").write_bytes(b"not torch")
    refused(r"pooler\.pt: not readable")
    pooler(folder)
    save_file({"weight": torch.ones(8, 24)}, folder / "cls_projection.safetensors")
    refused(r"has both pooler\.pt and cls_projection\.safetensors")


@pytest.mark.parametrize("with_pooler", [True, False])
def test_an_untied_tevatron_folder(tmp_path, with_pooler):
    """query_model and passage_model contain weights and config.json; tokenizer and pooler are in the parent folder."""
    folder = tmp_path / "untied"
    query = bert(1)
    passage = bert(2)
    query.save_pretrained(folder / "query_model")
    passage.save_pretrained(folder / "passage_model")
    tiny_tokenizer().save_pretrained(folder)
    q, p = pooler(folder, tied=False) if with_pooler else (torch.nn.Identity(), torch.nn.Identity())
    encoder = load_encoder(folder, parts=("cls",))
    with torch.no_grad():
        close(encoder.encode_queries([TEXT]).cls[0], q(first_state(query)))
        close(encoder.encode_documents([TEXT]).cls[0], p(first_state(passage)))


# ---------------------------------------------------------------- DPR files (MASTER fine-tuned)


def dpr(path, query, document, **more):
    """What MASTER's _save_checkpoint writes: the dict of a CheckpointState."""
    state = {f"question_model.{k}": v for k, v in query.state_dict().items()}
    state |= {f"ctx_model.{k}": v for k, v in document.state_dict().items()}
    optimizer = torch.optim.AdamW(query.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    whole = {
        "model_dict": state,
        "optimizer_dict": optimizer.state_dict(),
        "scheduler_dict": scheduler.state_dict(),
        "offset": 20000,
        "epoch": 0,
        "encoder_params": {},
    }
    torch.save({**whole, **more}, path)
    return path


@pytest.fixture
def beside(tmp_path):
    """The folder of the pre-trained model, beside the fine-tuned file; its own weights must not be used."""
    return save(tmp_path / "master", masked_lm(9))


def test_a_dpr_file_is_loaded_by_its_path(beside):
    query = bert(1)
    document = bert(2)
    path = dpr(beside / "checkpoint-20000", query, document)
    encoder = load_encoder(path, parts=("cls",))
    close(encoder.encode_queries([TEXT]).cls[0], first_state(query))
    close(encoder.encode_documents([TEXT]).cls[0], first_state(document))
    with pytest.raises(CheckpointError, match="no masked-LM head"):
        load_encoder(path)


def test_the_digest_of_a_dpr_file_ignores_other_weights_beside_it(beside):
    path = dpr(beside / "checkpoint-1", bert(1), bert(2))
    digest = folder_digest(path)
    torch.save({}, beside / "model.pt")
    (beside / "model.safetensors").unlink()
    assert folder_digest(path) == digest
    assert folder_digest(dpr(beside / "checkpoint-1", bert(1), bert(3))) != digest


def test_equal_sides_share_their_weights(beside):
    model = bert(1)
    loaded, _, _ = load_model(dpr(beside / "checkpoint-1", model, model), need_ot=False)
    assert loaded.side("query") is loaded.side("document")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"encoder_params": argparse.Namespace(lr=1)},
            r"contains more than tensors \(argparse\.Namespace\)",
        ),
        ({"model_dict": None}, "has no model_dict"),
        (
            {"model_dict": {"question_model.embeddings.word_embeddings.weight": 3}},
            "expected only names and tensors",
        ),
        (
            {"model_dict": {"model.weight": torch.ones(1)}},
            r"expected question_model\.\* and ctx_model\.\*",
        ),
        (
            {"model_dict": {"question_model.a": torch.ones(1), "ctx_model.a": torch.ones(1)}},
            r"does not match .*\.json",
        ),
    ],
)
def test_invalid_dpr_files_are_refused(beside, change, match):
    path = dpr(beside / "checkpoint-1", bert(1), bert(2), **change)
    with pytest.raises(CheckpointError, match=match) as e:
        load_model(path, need_ot=False)
    assert "\n" not in str(e.value)
    assert str(path) in str(e.value)


def test_code_in_a_dpr_file_does_not_run(beside):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    path = dpr(beside / "checkpoint-1", bert(1), bert(2), encoder_params=Trap())
    with pytest.raises(CheckpointError, match=r"contains more than tensors .*exec"):
        load_model(path, need_ot=False)


def test_a_dpr_file_alone_or_beside_another_architecture(beside, tmp_path):
    path = dpr(beside / "checkpoint-1", bert(1), bert(2))
    alone = shutil.copy(path, tmp_path / "checkpoint-1")
    with pytest.raises(CheckpointError, match=r"config\.json and the tokenizer are not beside it"):
        load_model(alone, need_ot=False)
    config = json.loads((beside / "config.json").read_text())
    (beside / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(
        CheckpointError, match=r"does not match the config\.json beside it \(16 keys, first: "
    ):
        load_model(path, need_ot=False)


def test_an_archive_is_for_the_user_to_unpack(tmp_path):
    (tmp_path / "MASTER-MARCO.tar.gz").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is an archive; unpack it"):
        load_model(tmp_path / "MASTER-MARCO.tar.gz")
