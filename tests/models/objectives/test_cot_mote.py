"""CoT-MoTE: shared and separate parameters of the experts, each choice of the objective, and the two folders."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import tiny_config, tiny_tokenizer
from torch.nn import functional as F

from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.experts import Experts, join_experts, load_experts, save_experts, with_experts
from dupmae_ir.models.objectives.cot_mote import CoTMoTE


def bert(seed=0, **changes):
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForMaskedLM(tiny_config(**{**still, **changes}))


def distilbert():
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    torch.manual_seed(0)
    return DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=29,
            dim=24,
            n_layers=2,
            n_heads=3,
            hidden_dim=48,
            max_position_embeddings=64,
            dropout=0.0,
            attention_dropout=0.0,
            initializer_range=0.4,
            pad_token_id=0,
        )
    )


def roberta():
    from transformers import RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(0)
    same = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).to_dict()
    return RobertaForMaskedLM(RobertaConfig(**{k: v for k, v in same.items() if k != "model_type"}))


def diverged(experts):
    """Experts whose feed-forward weights differ."""
    generator = torch.Generator().manual_seed(0)
    for name, p in experts.query.named_parameters():
        if "intermediate" in name or (".output." in name and "attention" not in name):
            p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return experts


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

    passage = ids(11)
    query = ids(6)
    mask = torch.ones_like(passage)
    passage[2, 8], passage[2, 9:], mask[2, 9:] = 4, 0, 0
    asked = labels(passage)
    asked[2, 8:] = -100
    return {
        "input_ids": passage,
        "attention_mask": mask,
        "labels": asked,
        "query_input_ids": query,
        "query_attention_mask": torch.ones_like(query),
        "query_labels": labels(query),
        "dec_head_input_ids": query,
        "dec_head_attention_mask": torch.ones_like(query),
    }


@pytest.mark.parametrize("make", [bert, distilbert, roberta])
def test_experts_start_equal_and_share_their_attention(make):
    lm = make()
    alone = sum(p.numel() for p in lm.parameters())
    ids = torch.tensor([[3, 8, 9, 4]])
    mask = torch.ones_like(ids)
    base = lm.train()(ids, attention_mask=mask).logits
    experts = with_experts(lm).train()
    torch.testing.assert_close(experts.query(ids, attention_mask=mask).logits, base, rtol=0, atol=0)
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
    assert not any(
        n.rpartition(".")[0].endswith(("intermediate.dense", "ffn.lin1")) for n in touched
    )


def test_a_step_on_queries_changes_only_their_expert_and_the_shared_attention():
    experts = with_experts(bert()).train()
    before = {n: p.clone() for n, p in experts.state_dict().items()}
    optimizer = torch.optim.SGD(experts.parameters(), 0.1)
    ids = torch.tensor([[3, 8, 9, 4]])
    experts.encode(ids, torch.ones_like(ids), "query").square().sum().backward()
    optimizer.step()
    after = experts.state_dict()
    block = "bert.encoder.layer.0."
    assert not torch.equal(
        after[f"query.{block}output.dense.weight"], before[f"query.{block}output.dense.weight"]
    )
    assert torch.equal(
        after[f"passage.{block}output.dense.weight"], before[f"passage.{block}output.dense.weight"]
    )
    name = f"{block}attention.self.query.weight"
    assert not torch.equal(after[f"query.{name}"], before[f"query.{name}"])
    assert torch.equal(after[f"query.{name}"], after[f"passage.{name}"])
    embeddings = experts.query.bert.embeddings.word_embeddings.weight
    assert embeddings is experts.passage.cls.predictions.decoder.weight


def test_siamese_is_one_encoder_and_separate_is_two(batch):
    torch.manual_seed(1)
    one, two, experts = (CoTMoTE(bert(), experts=kind).double() for kind in ("none", "all", "ffn"))
    assert one.experts.query is one.experts.passage
    encoder = sum(p.numel() for p in bert().parameters())
    assert (
        sum(p.numel() for n, p in two.named_parameters() if n.startswith(("lm.", "experts.")))
        == 2 * encoder
    )
    # All three start from the same weights, so that their first losses of the encoders are equal.
    terms = [objective(batch)[1] for objective in (one, two, experts)]
    for name in ("mlm_passage", "mlm_query"):
        assert terms[0][name].item() == pytest.approx(terms[1][name].item(), abs=1e-12)
        assert terms[0][name].item() == pytest.approx(terms[2][name].item(), abs=1e-12)
    # The query loss has no gradient in the passage encoder.
    terms[1]["mlm_query"].backward()
    assert all(p.grad is None for p in two.experts.passage.parameters())
    assert any(p.grad is not None for p in two.experts.query.parameters())


def test_switched_experts_read_each_others_texts(batch):
    lm = diverged(with_experts(bert())).double()
    torch.manual_seed(1)
    straight = CoTMoTE(lm)
    torch.manual_seed(1)
    switched = CoTMoTE(lm, switched=True).double()
    given = dict(batch)
    loss = switched(given)[1]["mlm_query"]
    hidden = lm.encode(batch["query_input_ids"], batch["query_attention_mask"], "passage")
    assert loss.item() == pytest.approx(
        switched.predict(hidden, batch["query_labels"]).item(), abs=1e-12
    )
    assert abs(loss.item() - straight.double()(given)[1]["mlm_query"].item()) > 1e-6


def test_a_step_changes_only_the_feed_forward_parts_differently(batch):
    objective = CoTMoTE(bert())
    optimizer = torch.optim.AdamW(objective.parameters(), 1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        objective(batch)[0].backward()
        optimizer.step()
    passage = objective.experts.passage.state_dict()
    query = objective.experts.query.state_dict()
    differ = {k for k in passage if not torch.equal(passage[k], query[k])}
    own = ("intermediate.dense", "output.dense", "output.LayerNorm")
    want = {
        k
        for k in passage
        if "encoder.layer" in k and "attention" not in k and any(o in k for o in own)
    }
    assert differ == want
    assert len(want) == 2 * 6


def test_the_norm_is_shared_or_separate():
    def norm(experts, side):
        return getattr(experts, side).bert.encoder.layer[0].output.LayerNorm

    apart = with_experts(bert())
    shared = with_experts(bert(), shared_norm=True)
    assert norm(apart, "query") is not norm(apart, "passage")
    assert norm(shared, "query") is norm(shared, "passage")
    dense = shared.query.bert.encoder.layer[0].output.dense
    assert dense is not shared.passage.bert.encoder.layer[0].output.dense
    for one in (False, True):
        experts = CoTMoTE(bert(), shared_norm=one).experts
        assert (norm(experts, "query") is norm(experts, "passage")) == one


@pytest.mark.parametrize("text_type", ["", "queries", "auto", None])
def test_the_text_type_must_be_declared(text_type):
    with pytest.raises(ValueError, match="declare query or passage"):
        with_experts(bert()).encode(torch.tensor([[3, 4]]), torch.ones(1, 2), text_type)


def plain_hidden(shared, experts, ids, mask):
    """Eq. 7 through the attention of one model, then Eq. 8 or 9 through the feed-forward part of another: (B, L, d)."""
    x = shared.bert.embeddings(ids)
    for block, expert in zip(shared.bert.encoder.layer, experts.bert.encoder.layer, strict=True):
        q, k, v = (
            getattr(block.attention.self, n)(x).unflatten(-1, (3, 8))
            for n in ("query", "key", "value")
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5
        scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        a = block.attention.output.LayerNorm(block.attention.output.dense(mixed) + x)
        inner = F.gelu(expert.intermediate.dense(a))
        x = expert.output.LayerNorm(expert.output.dense(inner) + a)
    return x


def plain_loss(objective, batch, decode, sparse_head, spr_to_hidden, window):
    """Eq. 3-4 and 11-12 implemented directly, with all logits: the terms by name."""
    lm = objective.experts.passage
    experts = objective.experts
    passage = plain_hidden(lm, lm, batch["input_ids"], batch["attention_mask"])
    query = plain_hidden(lm, experts.query, batch["query_input_ids"], batch["query_attention_mask"])
    context = batch["dec_head_input_ids"]
    words = lm.bert.embeddings.word_embeddings.weight

    def loss(hidden, labels):
        return F.cross_entropy(lm.cls(hidden).flatten(0, 1), labels.flatten(), ignore_index=-100)

    def causal(first):
        length = context.shape[1]
        rows = [
            [j <= i and (not window or j > i - window or j == 0) for j in range(length)]
            for i in range(length)
        ]
        visible = torch.tensor(rows) & batch["dec_head_attention_mask"].bool().unsqueeze(1)
        x = torch.cat([first, lm.bert.embeddings(context)[:, 1:]], 1)
        for block in objective.d_head:
            x = block(x, visible)
        asked = context.masked_fill(batch["dec_head_attention_mask"] == 0, -100)[:, 1:]
        return loss(objective.d_head_ln_f(x)[:, :-1], asked)

    terms = {
        "mlm_passage": loss(passage, batch["labels"]),
        "mlm_query": loss(query, batch["query_labels"]),
    }
    if decode != "spr":
        terms["causal_den"] = causal(passage[:, :1])
    if decode != "den":
        logits = passage @ words.t() if sparse_head == "tied" else lm.cls(passage)
        # The tokens between [CLS] and [SEP]; the third passage is shorter.
        spr = torch.stack(
            [x[1:end].relu().log1p().amax(0) for x, end in zip(logits, (10, 10, 8), strict=True)]
        )
        torch.testing.assert_close(
            objective.spr(passage, batch["attention_mask"]), spr, rtol=1e-9, atol=1e-9
        )
        to_hidden = (
            objective.spr_projection.weight.t() if spr_to_hidden == "linear" else words.detach()
        )
        terms["causal_spr"] = causal((spr @ to_hidden)[:, None])
    return terms


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("spr_to_hidden", ["embeddings", "linear"])
@pytest.mark.parametrize("sparse_head", ["mlm", "tied"])
@pytest.mark.parametrize("decode", ["den", "spr", "both"])
def test_losses_and_gradients_match_the_formulas(batch, decode, sparse_head, spr_to_hidden, window):
    """Against a direct float64 implementation, for every choice; the experts already differ."""
    torch.manual_seed(1)
    choices = {
        "decode": decode,
        "sparse_head": sparse_head,
        "spr_to_hidden": spr_to_hidden,
        "window": window,
    }
    objective = CoTMoTE(diverged(with_experts(bert(initializer_range=0.2))), **choices).double()
    batch["dec_head_attention_mask"] = batch["dec_head_attention_mask"].clone()
    batch["dec_head_attention_mask"][1, 4:] = 0
    loss, terms = objective(batch)
    plain = plain_loss(objective, batch, **choices)
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(
        {k: v.item() for k, v in plain.items()}, rel=1e-9
    )
    assert loss.item() == pytest.approx(sum(v.item() for v in plain.values()), rel=1e-12)
    names, parameters = zip(*objective.named_parameters(), strict=True)
    ours = torch.autograd.grad(loss, parameters, allow_unused=True)
    theirs = torch.autograd.grad(sum(plain.values()), parameters, allow_unused=True)
    for name, own, other in zip(names, ours, theirs, strict=True):
        assert own is not None, name
        torch.testing.assert_close(
            own, other, rtol=1e-7, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_every_parameter_learns_in_a_default_step(batch):
    """Distributed training requires a gradient for every parameter."""
    objective = CoTMoTE(bert())
    objective(batch)[0].backward()
    assert [n for n, p in objective.named_parameters() if p.grad is None] == []


def test_each_choice_changes_the_losses(batch):
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
    with pytest.raises(UsageError, match="`causal_layers` must be at least 1"):
        terms(layers=0)


def test_a_tied_sparse_head_uses_the_word_embeddings():
    """Also for a base model whose head is not tied to its embeddings."""
    objective = CoTMoTE(bert(tie_word_embeddings=False), sparse_head="tied")
    hidden = torch.randn(2, 5, 24)
    words = objective.lm.bert.embeddings.word_embeddings.weight
    assert not torch.equal(words, objective.lm.cls.predictions.decoder.weight)
    spr = (hidden[:, 1:-1] @ words.t()).relu().log1p().amax(1)
    torch.testing.assert_close(objective.spr(hidden, torch.ones(2, 5, dtype=torch.long)), spr)
    torch.testing.assert_close(objective.spr_as_hidden(spr), (spr @ words).unsqueeze(1))


def test_the_embeddings_do_not_learn_through_the_product_with_spr():
    objective = CoTMoTE(bert())
    spr = torch.rand(2, 29, requires_grad=True)
    objective.spr_as_hidden(spr).sum().backward()
    assert spr.grad is not None
    assert objective.lm.bert.embeddings.word_embeddings.weight.grad is None


def test_a_text_without_ordinary_tokens_is_zero():
    objective = CoTMoTE(bert())
    spr = objective.spr(torch.randn(2, 4, 24), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]))
    assert (spr[0] == 0).all()
    assert torch.isfinite(spr).all()


@pytest.fixture
def trained():
    return diverged(with_experts(bert())).eval()


def test_experts_are_saved_as_two_plain_folders(tmp_path, trained):
    from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

    tokenizer = tiny_tokenizer()
    save_experts(tmp_path / "m", trained, tokenizer, ModelConfig(activation="log1p"))
    assert read_config(tmp_path / "m").method == "cot-mote"
    ids = tokenizer("the cat sat", return_tensors="pt")
    both, _, _ = load_model(tmp_path / "m")
    seen = {}
    for text_type, side in (("query", both.query), ("passage", both.document)):
        folder = tmp_path / "m" / f"{text_type}_model"
        hidden = trained.encode(ids["input_ids"], ids["attention_mask"], text_type)
        plain = AutoModel.from_pretrained(folder, add_pooling_layer=False)(
            ids["input_ids"]
        ).last_hidden_state
        torch.testing.assert_close(plain, hidden, rtol=1e-6, atol=1e-6)
        logits = AutoModelForMaskedLM.from_pretrained(folder)(ids["input_ids"]).logits
        torch.testing.assert_close(
            logits, trained.of(text_type)(ids["input_ids"]).logits, rtol=1e-5, atol=1e-5
        )
        own, _, config = load_model(folder)
        cls, ot = own(ids["input_ids"], ids["attention_mask"])
        torch.testing.assert_close(cls, hidden[:, 0], rtol=1e-6, atol=1e-6)
        spr = CoTMoTE(trained).spr(hidden, ids["attention_mask"])
        torch.testing.assert_close(ot, spr * own.term_mask, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((cls, ot), side(ids["input_ids"], ids["attention_mask"]))
        assert (config.method, config.activation) == ("cot-mote", "log1p")
        assert (
            AutoTokenizer.from_pretrained(folder)("the cat sat")["input_ids"]
            == ids["input_ids"][0].tolist()
        )
        seen[text_type] = hidden
    assert not torch.allclose(seen["query"], seen["passage"])


def test_sentence_transformers_opens_the_folders(tmp_path, trained):
    st = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig(document_length=64))
    texts = ["the quick brown fox jumps over the lazy dog", "cat"]
    ours = load_encoder(tmp_path / "m", parts=("cls",))
    for name, want in (
        ("query", ours.encode_queries(texts).cls),
        ("passage", ours.encode_documents(texts).cls),
    ):
        body = modules.Transformer(str(tmp_path / "m" / f"{name}_model"))
        theirs = st.SentenceTransformer(
            modules=[body, modules.Pooling(24, "cls")], device="cpu"
        ).encode(texts)
        assert theirs == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("shared_norm", [False, True])
def test_saved_experts_load_with_shared_modules(tmp_path, shared_norm):
    trained = diverged(with_experts(bert(), shared_norm))
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig())
    again, _, config = load_experts(tmp_path / "m", shared_norm)
    assert isinstance(again, Experts)
    assert config.method == "cot-mote"
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    passage = again.passage.bert
    query = again.query.bert
    assert query.embeddings is passage.embeddings
    assert again.query.cls is again.passage.cls
    assert query.encoder.layer[0].attention is passage.encoder.layer[0].attention
    norms = query.encoder.layer[0].output.LayerNorm, passage.encoder.layer[0].output.LayerNorm
    assert (norms[0] is norms[1]) == shared_norm
    count = sum(p.numel() for p in trained.parameters())
    assert sum(p.numel() for p in again.parameters()) == count
    # They can be trained further.
    assert sum(p.numel() for p in CoTMoTE(again).experts.parameters()) == count


def test_a_failed_write_keeps_the_previous_folder(tmp_path, trained):
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig())
    before = {p: p.read_bytes() for p in (tmp_path / "m").rglob("*.*")}

    class Full:
        def __getattr__(self, name):
            return getattr(tiny_tokenizer(), name)

        def save_pretrained(self, folder):
            raise OSError(28, f"no space left for {folder}")

    with pytest.raises(OSError, match="no space"):
        save_experts(tmp_path / "m", diverged(trained), Full(), ModelConfig())
    assert {p: p.read_bytes() for p in (tmp_path / "m").rglob("*.*")} == before
    load_experts(tmp_path / "m")


def change_a_weight(folder):
    path = folder / "query_model" / "model.safetensors"
    state = load_file(path)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    save_file({**state, name: state[name] + 1}, path, metadata={"format": "pt"})
    return "layer.0.attention.self.query.weight differs"


def change_the_vocabulary(folder):
    path = folder / "query_model" / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"fox"', '"fax"'), encoding="utf-8")
    return "different vocabularies"


def remove_one_side(folder):
    (folder / "query_model").rename(folder / "elsewhere")
    return "has only one of"


@pytest.mark.parametrize("damage", [change_a_weight, change_the_vocabulary, remove_one_side])
def test_inconsistent_folders_are_refused(tmp_path, trained, damage):
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig())
    match = damage(tmp_path / "m")
    with pytest.raises(CheckpointError, match=match) as e:
        load_experts(tmp_path / "m")
    assert "\n" not in str(e.value)


def test_a_folder_with_one_encoder_is_refused(tmp_path, trained):
    save_experts(tmp_path / "m", trained, tiny_tokenizer(), ModelConfig())
    with pytest.raises(
        CheckpointError,
        match="contains one encoder; experts are two, in query_model and passage_model",
    ):
        load_experts(tmp_path / "m" / "passage_model")


def longer():
    """The same model with one more block."""
    lm = bert(num_hidden_layers=3)
    lm.load_state_dict(bert().state_dict(), strict=False)
    return lm


def wider():
    """The same attention with feed-forward parts of another size."""
    lm = bert(intermediate_size=32)
    body = bert().state_dict()
    alike = {k: v for k, v in body.items() if lm.state_dict()[k].shape == v.shape}
    lm.load_state_dict(alike, strict=False)
    return lm


@pytest.mark.parametrize(
    ("passage", "query", "key"),
    [
        (bert, longer, "layer.2"),
        (longer, bert, "layer.2"),
        (bert, wider, "intermediate.dense"),
        (bert, roberta, "bert.embeddings"),
        (bert, lambda: bert(seed=1), "word_embeddings"),
    ],
)
def test_models_that_differ_in_shared_parts_are_refused(passage, query, key):
    with pytest.raises(CheckpointError, match=rf"\Athe base: \S*{key}\S* differs between[^\n]*\Z"):
        join_experts(passage(), query(), "the base")


def test_different_norms_cannot_be_shared(trained):
    with pytest.raises(CheckpointError, match=r"output.LayerNorm.\w+ differs"):
        join_experts(trained.passage, trained.query, "the base", shared_norm=True)


def test_a_family_without_known_blocks_is_refused():
    from transformers import ElectraForMaskedLM

    with pytest.raises(CheckpointError, match="experts need the layers of a BERT"):
        with_experts(
            ElectraForMaskedLM(
                ElectraForMaskedLM.config_class(
                    num_hidden_layers=1,
                    hidden_size=24,
                    num_attention_heads=3,
                    intermediate_size=48,
                    embedding_size=24,
                    vocab_size=29,
                )
            )
        )
