"""Similarities, dimensions, encoders and weights of a stage: each is what it says, in the loss and in the folder."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

import torch
from support.stage_samples import distilling, stage_flags, write_stage

from dupmae_ir.finetune.__main__ import main
from dupmae_ir.finetune.config import FinetuneConfig, Objective
from dupmae_ir.finetune.objective import BiEncoder, batch_loss
from dupmae_ir.finetune.setup import _grad_cache
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import read_config
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.retriever import Retriever
from dupmae_ir.training.trained import read_log

PLAIN = {"part_weight": 0.0, "query_flops": 0.0, "document_flops": 0.0}


@pytest.fixture
def folder(tmp_path):
    return write_stage(tmp_path)


def drawn(queries=3, documents=9, dim=4, vocabulary=11, seed=0):
    """(queries' parts, documents' parts, batch) of random representations; query i has two negatives of its own."""
    g = torch.Generator().manual_seed(seed)
    parts = [
        (
            torch.randn(n, dim, generator=g).double(),
            torch.randn(n, vocabulary, generator=g).double().relu(),
        )
        for n in (queries, documents)
    ]
    batch = {
        "group": torch.tensor([[i, queries + 2 * i, queries + 2 * i + 1] for i in range(queries)]),
        "query_keys": torch.arange(queries),
        "document_keys": torch.arange(documents),
        "answers": torch.arange(queries).unsqueeze(1),
        "teacher_scores": torch.randn(queries, 3, generator=g).double(),
    }
    return *parts, batch


def softmax(values):
    whole = sum(map(math.exp, values))
    return [math.exp(v) / whole for v in values]


@pytest.mark.parametrize("similarity", ["sum", "cls", "ot"])
@pytest.mark.parametrize("k", [2, 0])
def test_stage_3_is_equation_15_on_equation_12(similarity, k):
    """KL of the softmax over {d+} and D- alone, of <q,d> = cls.cls + sum over I_d, plus a share of Eq. 14."""
    queries, documents, batch = drawn()
    objective = Objective(
        similarity=similarity,
        top_k=k,
        contrastive_weight=0.2,
        distill="kl",
        teacher_temperature=2.0,
        **PLAIN,
    )
    loss, _ = batch_loss(queries, documents, batch, objective)
    total = 0.0
    for q in range(3):
        scores = []
        for d in range(9):
            kept = sorted(range(11), key=lambda v: -documents[1][d, v].item())[: k or 11]
            dense = sum(
                a * b for a, b in zip(queries[0][q].tolist(), documents[0][d].tolist(), strict=True)
            )
            impact = sum(queries[1][q, v].item() * documents[1][d, v].item() for v in kept)
            scores.append({"sum": dense + impact, "cls": dense, "ot": impact}[similarity])
        own = [scores[d] for d in batch["group"][q]]
        taught = softmax([t / 2.0 for t in batch["teacher_scores"][q].tolist()])
        total += sum(t * math.log(t / s) for t, s in zip(taught, softmax(own), strict=True)) / 3
        total -= 0.2 * math.log(softmax(scores)[q]) / 3
    assert loss.item() == pytest.approx(total, rel=1e-12)


def test_queries_are_cut_where_asked():
    """CoT-MoTE keeps the strongest words of both sides."""
    queries, documents, batch = drawn()
    cut = torch.where(queries[1] >= queries[1].topk(2).values[:, -1:], queries[1], 0.0)
    asked, _ = batch_loss(queries, documents, batch, Objective(top_k=3, query_top_k=2, **PLAIN))
    given, _ = batch_loss((queries[0], cut), documents, batch, Objective(top_k=3, **PLAIN))
    assert asked.item() == given.item()


def test_dense_training_leaves_the_documents_whole():
    queries, documents, batch = drawn()
    dense, _ = batch_loss(queries, documents, batch, Objective(top_k=2, train_top_k=False, **PLAIN))
    whole, _ = batch_loss(queries, documents, batch, Objective(top_k=0, **PLAIN))
    assert dense.item() == whole.item()
    assert (
        dense.item() != batch_loss(queries, documents, batch, Objective(top_k=2, **PLAIN))[0].item()
    )


def test_inner_products_are_exact_under_bfloat16():
    """At 300 bfloat16 knows steps of 2, which would be the whole margin between two passages."""
    queries, documents, batch = drawn(dim=64)
    queries, documents = (tuple(v.float() * 4 for v in parts) for parts in (queries, documents))
    objective = Objective(
        top_k=4,
        distill="margin-mse",
        contrastive_weight=1.0,
        part_weight=0.5,
        query_flops=0,
        document_flops=0,
    )
    exact, _ = batch_loss(queries, documents, batch, objective)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = batch_loss(queries, documents, batch, objective)
    assert found.item() == exact.item()


@pytest.mark.parametrize(
    ("distill", "given", "expected"),
    [
        (None, None, (1.0, 0.5)),
        ("kl", None, (0.0, 0.0)),
        ("kl", 1e-4, (1e-4, 5e-5)),
        ("soft-ce", 0.2, (0.2, 0.1)),
    ],
)
def test_the_parts_have_the_share_of_the_whole(distill, given, expected):
    """A contrastive share of 1e-4 must not bring the parts' contrastive losses along at full weight."""
    objective = Objective(distill=distill, contrastive_weight=given)
    assert (objective.contrastive, objective.part) == pytest.approx(expected)


def test_the_regulariser_warms_up_quadratically(folder, tmp_path):
    """Among losses that are the same: the regulariser's share is what remains."""
    changes = {
        "learning_rate": 1e-12,
        "steps": 6,
        "log_steps": 1,
        "save_steps": 1,
        "document_flops": 1000,
        "query_flops": 0,
        "regularizer": "l1",
        "regularizer_warmup": 0.67,
        "part_weight": 0,
    }
    assert main(stage_flags(folder, tmp_path / "out", **changes)) == 0
    log = [
        r
        for r in json.loads((tmp_path / "out" / "training.json").read_text())["log"]
        if "loss" in r
    ]
    shares = [(r["loss"] - r["loss_contrastive"]) / (1000 * r["loss_l1_d"]) for r in log]
    assert shares == pytest.approx([(n / 4) ** 2 for n in (1, 2, 3, 4)] + [1, 1], rel=1e-3)


ROWS = {
    "CLS:768": ({"similarity": "cls", "cls_dim": 0}, 24),
    "OT:768": ({"similarity": "ot", "cls_dim": 0, "top_k": 16}, 24),
    "OT:V": ({"similarity": "ot", "cls_dim": 0, "top_k": 0}, 24),
    "384+384": ({"cls_dim": 12, "top_k": 12}, 12),
    "384+260": ({"cls_dim": 12, "top_k": 8}, 12),
    "DEN+SPR": ({"cls_dim": 0, "activation": "log1p", "query_top_k": 5, "encoder": "mote"}, 24),
    "no activation": ({"activation": "none", "no_train_top_k": True}, 8),
}


BY_NIGHT = ("OT:V", "384+260", "no activation")
"""Rows that are like others, with another number or without a part."""


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.nightly) if row in BY_NIGHT else row for row in ROWS],
)
def test_the_rows_of_the_ablation(row, folder, tmp_path):
    """The paper's dimensions at the tiny model's scale: trained, stored, and encoded as they were trained."""
    changes, dim = ROWS[row]
    assert (
        main(
            stage_flags(folder, tmp_path / "out", query_flops=0.01, document_flops=0.01, **changes)
        )
        == 0
    )
    config = read_config(tmp_path / "out")
    assert config.activation == changes.get("activation", "relu")
    assert config.top_k == (changes.get("top_k", 6) or 29)
    encoder = TextEncoder.load(tmp_path / "out")
    documents = encoder.encode_documents(
        ["the quick brown fox jumps over the lazy dog", "tree graph list heap"]
    )
    assert documents.cls.shape == (2, dim)
    assert 0 < documents.ot.getnnz(axis=1).max() <= config.top_k


def sides(output):
    model, _, _ = load_model(output)
    return model.query.lm.state_dict(), model.document.lm.state_dict()


FAMILIES = {
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 48},
    "roberta": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 48,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_of_like_length_are_the_padded_batch_in_every_family(family):
    """Also where positions are counted from the ids, as RoBERTa does."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=29, max_position_embeddings=64, pad_token_id=0, **FAMILIES[family]
    )
    model = (
        Retriever(AutoModelForMaskedLM.from_config(config), None, [0, 1, 2, 3, 4], [0, 3, 4])
        .double()
        .eval()
    )
    lengths = torch.tensor([9, 3, 60, 4, 30, 3])
    mask = (torch.arange(60) < lengths.unsqueeze(1)).long()
    ids = torch.randint(6, 29, mask.shape) * mask
    for grouped, padded in zip(
        BiEncoder(model).encode(ids, mask, "document"), model(ids, mask), strict=True
    ):
        torch.testing.assert_close(grouped, padded, rtol=1e-9, atol=1e-9)


def test_two_encoders_grow_apart(folder, tmp_path):
    assert main(stage_flags(folder, tmp_path / "out", encoder="untied")) == 0
    query, document = sides(tmp_path / "out")
    assert {
        k
        for k in query
        if "attention" in k and "weight" in k and not torch.equal(query[k], document[k])
    }


def test_experts_share_all_but_their_feed_forward_parts(folder, tmp_path):
    assert main(stage_flags(folder, tmp_path / "out", encoder="mote")) == 0
    query, document = sides(tmp_path / "out")
    apart = {k for k in query if not torch.equal(query[k], document[k])}
    assert apart
    assert all(".intermediate." in k or (".output." in k and ".attention." not in k) for k in apart)
    # Experts go on as experts, and one encoder cannot be made of two.
    again = stage_flags(folder, tmp_path / "again", model=tmp_path / "out", encoder="mote", steps=2)
    assert main(again) == 0
    assert main(stage_flags(folder, tmp_path / "tied", model=tmp_path / "out")) == 2


@pytest.mark.parametrize(
    "encoder", ["mote", *(pytest.param(e, marks=pytest.mark.nightly) for e in ("tied", "untied"))]
)
def test_every_encoder_learns_by_distillation_in_small_memory(encoder, folder, tmp_path):
    changes = {
        **distilling(folder),
        "encoder": encoder,
        "grad_cache": 4,
        "steps": 40,
        "learning_rate": 3e-3,
        "log_steps": 4,
        "save_steps": 40,
    }
    assert main(stage_flags(folder, tmp_path / "out", **changes)) == 0
    log = [
        r
        for r in json.loads((tmp_path / "out" / "training.json").read_text())["log"]
        if "loss_distill" in r
    ]
    assert log[-1]["loss_distill"] < 0.6 * log[0]["loss_distill"]


def test_dev_queries_are_judged_on_documents_cut_as_in_search(folder, tmp_path):
    """Also where training was dense."""
    dev = tmp_path / "dev.jsonl"
    dev.write_text(
        '{"query": "cat on", "positive": "the cat sorts"}\n{"query": "dog", "positive": "sorts dog mat"}\n'
    )
    from dupmae_ir.finetune import lexical

    seen = []
    real = lexical.keep_top_k

    def noted(weights, k):
        seen.append(k)
        return real(weights, k)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(lexical, "keep_top_k", noted)
        changes = {"no_train_top_k": True, "dev": dev, "top_k": 3, "steps": 2}
        assert main(stage_flags(folder, tmp_path / "out", **changes)) == 0
    assert set(seen) == {3}


def test_a_bare_encoder_is_enough_for_the_cls_part(folder, tmp_path):
    from support.tiny_models import tiny_config
    from transformers import BertModel

    BertModel(tiny_config()).save_pretrained(folder / "base")
    assert main(stage_flags(folder, tmp_path / "out", similarity="cls", cls_dim=0)) == 0
    assert TextEncoder.load(tmp_path / "out", parts=("cls",)).encode_queries(["cat"]).cls.shape == (
        1,
        24,
    )


def test_queries_without_negatives_are_left_out_and_counted(folder, tmp_path, capsys):
    rows = [json.loads(line) for line in (folder / "mined.jsonl").read_text().splitlines()]
    for row in rows[:3]:
        row |= {"negatives": [], "scores": [], "ranks": []}
    (folder / "mined.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert main(stage_flags(folder, tmp_path / "out", quiet=None)) == 0
    assert "21 queries; 3 more have no negative" in capsys.readouterr().err


def test_a_changed_base_of_the_same_name_is_refused(folder, tmp_path, capsys):
    flags = stage_flags(folder, tmp_path / "out", steps=2)
    assert main(flags) == 0
    assert main(flags) == 0
    write_stage(folder)
    weights = folder / "base" / "config.json"
    weights.write_text(
        weights.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-11')
    )
    assert main(flags) == 2
    assert "the contents of --model" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(
    folder, tmp_path, capsys
):
    # Good for some steps, then at a rate at which nothing holds.
    changes = {"learning_rate": 1e30, "warmup": 0.5, "steps": 12, "save_steps": 1, "log_steps": 1}
    with pytest.MonkeyPatch.context() as m:
        from dupmae_ir.finetune import trainer

        real = trainer.batch_loss

        def breaks(*args, **kwargs):
            loss, terms = real(*args, **kwargs)
            breaks.calls += 1
            return (loss * float("nan"), terms) if breaks.calls > 4 else (loss, terms)

        breaks.calls = 0
        m.setattr(trainer, "batch_loss", breaks)
        assert (
            main(stage_flags(folder, tmp_path / "out", **{**changes, "learning_rate": 1e-4})) == 1
        )
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in ("step 5", "loss is nan", "checkpoint-4", "lower --learning-rate"):
        assert word in error
    work = tmp_path / ".out.work"
    assert not (work / "checkpoint-5").exists()
    assert not (tmp_path / "out").exists()
    assert all(math.isfinite(r["loss"]) for r in read_log(work / "log.jsonl"))
    # Repaired, the same command resumes from there.
    assert main(stage_flags(folder, tmp_path / "out", **{**changes, "learning_rate": 1e-4})) == 0


def test_grad_cache_is_off_where_a_process_has_no_more_passages(capsys):
    def chosen(**changes):
        config = FinetuneConfig(mined="m", output="o", batch_size=128, negatives=15, **changes)
        return _grad_cache(config, quiet=False)

    assert chosen(grad_cache=256) == 256
    assert "2,048 passages of a batch in parts of 256" in capsys.readouterr().err
    assert chosen(grad_cache=256, processes=4) == 256
    assert chosen(grad_cache=256, processes=8) == 0
    assert chosen() == 0
    assert not capsys.readouterr().err.count("2,048")
