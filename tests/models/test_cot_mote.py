"""CoT-MoTE: what the experts share, who reads what, what each choice does, and the two folders."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import tiny_config, tiny_tokenizer
from torch.nn import functional as F

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints import ModelConfig, load_model
from dupmae_ir.models.cot_mote import CoTMoTE
from dupmae_ir.models.experts import Experts, load_experts, save_experts, with_experts


def bert(seed=0, **changes):
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(tiny_config(**{**still, **changes}))


def distilbert():
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    torch.manual_seed(0)
    return DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=29, dim=24, n_layers=2, n_heads=3, hidden_dim=48, max_position_embeddings=64,
                         dropout=0.0, attention_dropout=0.0, initializer_range=0.4, pad_token_id=0)
    )  # fmt: skip


def roberta():
    from transformers import RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(0)
    same = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).to_dict()
    return RobertaForMaskedLM(RobertaConfig(**{k: v for k, v in same.items() if k != "model_type"}))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)

    def ids(length):
        x = torch.randint(6, 29, (3, length), generator=generator)
        x[:, 0], x[:, -1] = 3, 4
        return x

    def labels(x):
        asked = torch.zeros_like(x, dtype=torch.bool)
        asked[:, 1:-1:2] = True
        return torch.where(asked, x, -100)

    passage, query = ids(11), ids(6)
    mask = torch.ones_like(passage)
    passage[2, 8], passage[2, 9:], mask[2, 9:] = 4, 0, 0
    asked = labels(passage)
    asked[2, 8:] = -100
    return {
        "input_ids": passage, "attention_mask": mask, "labels": asked,
        "query_input_ids": query, "query_attention_mask": torch.ones_like(query), "query_labels": labels(query),
        "dec_head_input_ids": query, "dec_head_attention_mask": torch.ones_like(query),
    }  # fmt: skip


@pytest.mark.parametrize("make", [bert, distilbert, roberta])
def test_experts_start_equal_and_share_their_attention(make):
    lm = make()
    alone = sum(p.numel() for p in lm.parameters())
    experts = with_experts(lm).train()
    ids = torch.tensor([[3, 8, 9, 4]])
    mask = torch.ones_like(ids)
    passage, query = (experts.encode(ids, mask, t) for t in ("passage", "query"))
    torch.testing.assert_close(passage, query, rtol=0, atol=0)
    # A feed-forward pair of 24 -> 48 -> 24 and a LayerNorm for each of two blocks.
    more = 2 * (24 * 48 + 48 + 48 * 24 + 24 + 2 * 24)
    assert sum(p.numel() for p in experts.parameters()) == alone + more
    assert query.shape == (1, 4, 24)
    query.square().sum().backward()
    named = dict(experts.passage.named_parameters())
    touched = {n for n, p in named.items() if p.grad is not None and p.grad.abs().sum() > 0}
    assert any("attention" in n for n in touched)
    assert not any(n.rpartition(".")[0].endswith(("intermediate.dense", "ffn.lin1")) for n in touched)


def test_a_step_on_queries_moves_their_expert_and_the_shared_attention_alone():
    experts = with_experts(bert()).train()
    before = {n: p.clone() for n, p in experts.state_dict().items()}
    optimizer = torch.optim.SGD(experts.parameters(), 0.1)
    ids = torch.tensor([[3, 8, 9, 4]])
    experts.encode(ids, torch.ones_like(ids), "query").square().sum().backward()
    optimizer.step()
    after = experts.state_dict()
    block = "bert.encoder.layer.0."
    assert not torch.equal(after[f"query.{block}output.dense.weight"], before[f"query.{block}output.dense.weight"])
    assert torch.equal(after[f"passage.{block}output.dense.weight"], before[f"passage.{block}output.dense.weight"])
    name = f"{block}attention.self.query.weight"
    assert not torch.equal(after[f"query.{name}"], before[f"query.{name}"])
    assert torch.equal(after[f"query.{name}"], after[f"passage.{name}"])
    embeddings = experts.query.bert.embeddings.word_embeddings.weight
    assert embeddings is experts.passage.cls.predictions.decoder.weight


def test_one_norm_or_two():
    def norm(experts, side):
        return getattr(experts, side).bert.encoder.layer[0].output.LayerNorm

    apart, shared = with_experts(bert()), with_experts(bert(), shared_norm=True)
    assert norm(apart, "query") is not norm(apart, "passage")
    assert norm(shared, "query") is norm(shared, "passage")
    dense = shared.query.bert.encoder.layer[0].output.dense
    assert dense is not shared.passage.bert.encoder.layer[0].output.dense


@pytest.mark.parametrize("text_type", ["", "queries", "auto", None])
def test_the_type_of_a_text_is_declared(text_type):
    with pytest.raises(ValueError, match="declare query or passage"):
        with_experts(bert()).encode(torch.tensor([[3, 4]]), torch.ones(1, 2), text_type)


def test_the_losses_are_the_formulas(batch):
    """Eq. 11 for both texts and Eq. 12 from h_0 and from SPR, written out plainly."""
    objective = CoTMoTE(bert(), window=0).double()
    nn_query = objective.experts.query.bert.encoder.layer[0].output.dense.weight
    nn_query.data += 0.1 * torch.randn(nn_query.shape, generator=torch.Generator().manual_seed(0)).double()
    loss, terms = objective(batch)
    lm = objective.experts.passage

    def hidden(model, prefix):
        mask = batch["attention_mask"] if prefix == "" else batch["query_attention_mask"]
        return model.bert(input_ids=batch[f"{prefix}input_ids"], attention_mask=mask).last_hidden_state

    passage, query = hidden(lm, ""), hidden(objective.experts.query, "query_")
    for name, h, labels in (("mlm_passage", passage, "labels"), ("mlm_query", query, "query_labels")):
        plain = F.cross_entropy(lm.cls(h).flatten(0, 1), batch[labels].flatten(), ignore_index=-100)
        assert terms[name].item() == pytest.approx(plain.item(), rel=1e-9)
    logits = lm.cls(passage)
    speaking = batch["attention_mask"].bool().clone()
    speaking[:, 0] = False
    speaking[[0, 1, 2], [10, 10, 8]] = False
    spr = torch.log1p(torch.relu(logits)).masked_fill(~speaking.unsqueeze(-1), 0).amax(1)
    torch.testing.assert_close(objective.spr(passage, batch["attention_mask"]), spr, rtol=1e-9, atol=1e-9)
    led = {"causal_den": passage[:, :1], "causal_spr": (spr @ lm.bert.embeddings.word_embeddings.weight).unsqueeze(1)}
    for name, first in led.items():
        x = torch.cat([first, lm.bert.embeddings(batch["dec_head_input_ids"])[:, 1:]], 1)
        triangle = torch.ones(6, 6).tril().bool().expand(3, 6, 6)
        h = objective.d_head_ln_f(objective.d_head[0](x, triangle))
        plain = F.cross_entropy(lm.cls(h)[:, :-1].flatten(0, 1), batch["dec_head_input_ids"][:, 1:].flatten())
        assert terms[name].item() == pytest.approx(plain.item(), rel=1e-9)
    assert loss.item() == pytest.approx(sum(t.item() for t in terms.values()), rel=1e-12)


def test_every_parameter_learns_in_a_default_step(batch):
    """Nothing lies idle, as several processes want it."""
    objective = CoTMoTE(bert())
    objective(batch)[0].backward()
    assert [n for n, p in objective.named_parameters() if p.grad is None] == []


def test_choices_matter(batch):
    def terms(**choices):
        torch.manual_seed(5)
        return {k: v.item() for k, v in CoTMoTE(bert(), **choices)(batch)[1].items()}

    usual = terms()
    assert set(usual) == {"mlm_passage", "mlm_query", "causal_den", "causal_spr"}
    assert set(terms(decode="den")) == set(usual) - {"causal_spr"}
    assert set(terms(decode="spr")) == set(usual) - {"causal_den"}
    assert terms(sparse_head="tied")["causal_spr"] != usual["causal_spr"]
    assert terms(spr_to_hidden="linear")["causal_spr"] != usual["causal_spr"]
    assert terms(window=1)["causal_den"] != usual["causal_den"]
    assert terms(layers=2)["causal_den"] != usual["causal_den"]
    for wrong in ({"decode": "all"}, {"sparse_head": "x"}, {"spr_to_hidden": "x"}):
        with pytest.raises(ValueError, match="is not known"):
            terms(**wrong)


def test_the_embeddings_do_not_learn_through_the_product_with_spr():
    objective = CoTMoTE(bert())
    spr = torch.rand(2, 29, requires_grad=True)
    objective.as_hidden(spr).sum().backward()
    assert spr.grad is not None
    assert objective.lm.bert.embeddings.word_embeddings.weight.grad is None


def test_a_text_without_ordinary_tokens_is_zero():
    objective = CoTMoTE(bert())
    spr = objective.spr(torch.randn(2, 4, 24), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]))
    assert (spr[0] == 0).all()
    assert torch.isfinite(spr).all()


@pytest.fixture
def trained():
    experts = with_experts(bert()).eval()
    for p in experts.query.bert.encoder.layer[1].output.parameters():
        p.data += 0.3
    return experts


def test_two_plain_folders(tmp_path, trained):
    from transformers import AutoModel, AutoModelForMaskedLM

    tokenizer = tiny_tokenizer()
    save_experts(tmp_path / "m", trained, tokenizer, ModelConfig(method="cot-mote", activation="log1p"))
    ids = tokenizer("the cat sat", return_tensors="pt")
    seen = {}
    for text_type in ("query", "passage"):
        folder = tmp_path / "m" / f"{text_type}_model"
        hidden = trained.encode(ids["input_ids"], ids["attention_mask"], text_type)
        plain = AutoModel.from_pretrained(folder, add_pooling_layer=False)(ids["input_ids"]).last_hidden_state
        torch.testing.assert_close(plain, hidden, rtol=1e-6, atol=1e-6)
        logits = AutoModelForMaskedLM.from_pretrained(folder)(ids["input_ids"]).logits
        torch.testing.assert_close(logits, trained.of(text_type)(ids["input_ids"]).logits, rtol=1e-5, atol=1e-5)
        own, _, config = load_model(folder)
        torch.testing.assert_close(own(ids["input_ids"], ids["attention_mask"])[0], hidden[:, 0], rtol=1e-6, atol=1e-6)
        assert config.activation == "log1p"
        seen[text_type] = hidden
    assert not torch.allclose(seen["query"], seen["passage"])


def test_the_folders_become_experts_again(tmp_path, trained):
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig(method="cot-mote"))
    again, _, config = load_experts(tmp_path / "m")
    assert isinstance(again, Experts)
    assert config.method == "cot-mote"
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    assert again.query.bert.embeddings is again.passage.bert.embeddings
    assert again.query.bert.encoder.layer[0].attention is again.passage.bert.encoder.layer[0].attention


def test_folders_that_do_not_belong_together_are_refused(tmp_path, trained):
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig(method="cot-mote"))
    path = tmp_path / "m" / "query_model" / "model.safetensors"
    state = load_file(path)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    save_file({**state, name: state[name] + 1}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"\A[^\n]*attention.self.query.weight differs[^\n]*\Z"):
        load_experts(tmp_path / "m")
