"""Every method on every family of encoders: pre-trained, fine-tuned, encoded, and a text found by its own words."""

from __future__ import annotations

import json
import math

import pytest
import torch
import transformers
from support.pretraining import flags, tiny_corpus
from support.tiny_models import WORDS, tiny_tokenizer

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import CheckpointError
from dupmae_ir.finetune.__main__ import main as finetune
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.calibration import add_head
from dupmae_ir.models.heads.masked_lm import encoder_of, head_of, shape_of
from dupmae_ir.models.objectives.decoders import turned
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.pretrain.__main__ import main as pretrain
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.training.trained import LOG, read_log

FAMILIES = ("Bert", "DistilBert", "Roberta", "XLMRoberta", "MPNet", "ModernBert")
COMMON = {"Bert": False, "ModernBert": True}
"""Tested in every run, without a masked-LM head or with one, as sentence encoders and language models are saved."""
METHODS = ("mlm", "retromae", "dupmae", "master", "cot-mae", "cot-mote")
CHOICES = {"cot-mae": {"context": "nearby", "causal-layers": 1}}
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "initializer_range": 0.2,
}
LENGTH = 60
TEXTS = [
    "cat sat on the mat",
    "dog runs fast over fox",
    "heap queue sorts list",
    "quick brown fox jumps",
    "graph tree",
]


def tiny_model(family: str) -> transformers.PreTrainedModel:
    """A masked LM with random weights. ModernBERT has seven layers, most of which see four tokens on each side."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    cls = getattr(transformers, f"{family}ForMaskedLM")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls")}
    ids |= {"sep_token_id": tokenizer.sep_token_id, "eos_token_id": tokenizer.sep_token_id}
    sizes = SIZES
    if family == "DistilBert":
        sizes = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 48, "initializer_range": 0.2}
    elif family == "ModernBert":
        sizes = {
            **SIZES,
            "num_hidden_layers": 7,
            "local_attention": 8,
            "global_attn_every_n_layers": 3,
        }
    config = cls.config_class(
        vocab_size=len(tokenizer), max_position_embeddings=66, bos_token_id=0, **ids, **sizes
    )
    return cls(config)


def saved(model: transformers.PreTrainedModel, folder) -> None:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with a corpus for pre-training, pairs for fine-tuning, and documents."""
    folder = tmp_path_factory.mktemp("data")
    tiny_corpus(folder / "corpus.jsonl", rows=200)
    pairs = []
    for text in TEXTS:
        words = text.split()
        for query in (" ".join(words[:2]), " ".join(words[-2:]), text):
            pairs.append({"query": query, "positive": text, "kind": "x"})
    write_lines(folder / "pairs.jsonl", pairs)
    write_lines(
        folder / "documents.jsonl", [{"_id": str(n), "text": text} for n, text in enumerate(TEXTS)]
    )
    return folder


def is_in_every_run(method: str, family: str, without_head: bool) -> bool:
    """DupMAE's parts are those of the others, too; those, CoT-MoTE and other encoders are tested by night."""
    return method == "dupmae" and COMMON.get(family) is without_head


def cells():
    for method in METHODS:
        for family in FAMILIES:
            for without_head in (False, True):
                often = is_in_every_run(method, family, without_head)
                marks = () if often else (pytest.mark.nightly,)
                name = f"{family}-{'without-head-' * without_head}{method}"
                yield pytest.param(family, method, without_head, marks=marks, id=name)


@pytest.mark.parametrize(("family", "method", "without_head"), list(cells()))
def test_a_trained_model_finds_a_text_by_its_words(family, method, without_head, data, tmp_path):
    model = tiny_model(family)
    base = tmp_path / "base"
    saved(encoder_of(model) if without_head else model, base)
    choices = {**CHOICES.get(method, {}), "add-head": without_head}
    pretrained = tmp_path / "pretrained"
    words = flags(
        method, base, data / "corpus.jsonl", pretrained, steps=3, length=LENGTH, **choices
    )
    assert pretrain(words) == 0
    losses = [row["loss"] for row in read_log(pretrained / "pretraining" / LOG) if "loss" in row]
    assert losses
    assert all(map(math.isfinite, losses))

    tuned = tmp_path / "tuned"
    words = ["--pairs", data / "pairs.jsonl", "--model", pretrained, "--output", tuned]
    words += ["--batch-size", 5, "--group-size", 1, "--cls-dim", 16, "--steps", 120, "--quiet"]
    words += ["--learning-rate", 0.003]
    if method == "cot-mote":
        words += ["--encoder", "mote"]
    assert finetune(list(map(str, words))) == 0

    index = tmp_path / "index"
    words = ["--corpus", data / "documents.jsonl", "--model", tuned, "--index", index]
    assert encode([*map(str, words), "--quiet"]) == 0
    hits = Searcher.open(index).search(TEXTS, 1)
    assert [found[0].docid for found in hits] == [str(number) for number in range(len(TEXTS))]


def batch_with_padding():
    """A text of 60 tokens and one of three, for DupMAE."""
    tokenizer = tiny_tokenizer()
    rows = [" ".join(WORDS * 3)[:400], "cat"]
    batch = tokenizer(rows, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    ids = batch["input_ids"]
    mask = batch["attention_mask"]
    assert mask.sum(1).tolist() == [LENGTH, 3]
    encoder_ids = ids.clone()
    encoder_ids[:, 1] = tokenizer.mask_token_id
    encoder_labels = torch.full_like(ids, -100)
    encoder_labels[:, 1] = ids[:, 1]
    return {
        "ids": ids,
        "attention_mask": mask,
        "encoder_ids": encoder_ids,
        "encoder_labels": encoder_labels,
        "decoder_labels": ids.masked_fill(mask == 0, -100),
        "decoder_visible": ~torch.eye(LENGTH, dtype=torch.bool) & mask.bool().unsqueeze(1),
        "bow_ids": ids[:, 1:2],
        "bow_weights": torch.ones(2, 1),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_finite_beside_padding(family, dtype):
    """Of a short text, most windows of ModernBERT hold nothing but padding."""
    objective = DupMAE(tiny_model(family)).train()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss, terms = objective(batch_with_padding())
    assert all(map(torch.isfinite, terms.values()))
    loss.backward()
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name
    # The decoder's share reaches the encoder.
    assert objective.lm.get_input_embeddings().weight.grad.abs().sum() > 0


def test_decoders_turn_queries_and_keys_as_modernbert_does():
    from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

    lm = tiny_model("ModernBert")
    base = shape_of(lm.config).rotary_base
    q, k = torch.randn(2, 1, 3, LENGTH, 8).double()
    positions = torch.arange(LENGTH).unsqueeze(0)
    cosines, sines = encoder_of(lm).rotary_emb(q, positions, "full_attention")
    expected = apply_rotary_pos_emb(q, k, cosines, sines)
    for ours, theirs in zip((turned(q, base), turned(k, base)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert turned(q, None) is q


def test_a_rotary_decoder_knows_the_positions_of_its_context():
    """Without position embeddings, only the angles tell one order of the words from another."""
    objective = RetroMAE(tiny_model("ModernBert")).eval()
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.normal_(std=0.3)
    batch = batch_with_padding()
    texts = {name: value[:1] for name, value in batch.items()}
    states = torch.randn(1, LENGTH, 24)
    with torch.no_grad():
        in_order = objective.terms(states, texts)["decoder"]
        ids = texts["ids"].clone()
        ids[:, 1:30] = ids[:, 1:30].flip(1)
        # The words to predict stay where they were.
        turned_round = objective.terms(states, {**texts, "ids": ids})["decoder"]
    assert not torch.isclose(in_order, turned_round)


def test_a_new_head_is_tied_to_the_embeddings_and_survives_saving(tmp_path):
    for family in FAMILIES:
        encoder = encoder_of(tiny_model(family))
        passages = [" ".join(WORDS[n % 9 : n % 9 + 6]) for n in range(300)]
        model = add_head(encoder, tiny_tokenizer(), passages, cls_dim=None)
        folder = tmp_path / family
        saved(model.lm, folder)
        again, _, _ = load_model(folder)
        ids = torch.tensor([tiny_tokenizer()(passages[0])["input_ids"]])
        states = model.hidden(ids, torch.ones_like(ids))
        with torch.no_grad():
            for found in (model, again):
                head = head_of(found.lm)
                assert head.weight is found.lm.get_input_embeddings().weight
                logits = head.transform(states) @ head.weight.t() + head.bias
                if found is model:
                    expected = logits
            torch.testing.assert_close(logits, expected)
            assert head.bias.std() > 0


def test_a_new_head_for_pretraining_predicts_the_frequencies_of_words():
    """On average over the masked tokens; logits are determined up to a constant."""
    tokenizer = tiny_tokenizer()
    passages = [" ".join(WORDS[n % 9 : n % 9 + 6]) for n in range(300)]
    model = add_head(
        encoder_of(tiny_model("Bert")), tokenizer, passages, cls_dim=None, for_pretraining=True
    )
    inputs = tokenizer(passages, padding=True, return_tensors="pt")
    ids = inputs["input_ids"]
    counts = torch.bincount(ids.flatten(), minlength=len(tokenizer))
    masked = (torch.arange(ids.shape[1]) % 3 == 1).expand(ids.shape) & model.pooled_mask[ids]
    with torch.no_grad():
        states = model.hidden(
            ids.masked_fill(masked, tokenizer.mask_token_id), inputs["attention_mask"]
        )
        logits = model.head.transform(states[masked]) @ model.head.weight.t() + model.head.bias
    words = tokenizer.convert_tokens_to_ids(WORDS[:15])
    # Each count is one higher, so that words that do not occur have a frequency.
    difference = logits.mean(0)[words] - torch.log(counts[words] + 1)
    torch.testing.assert_close(difference, difference[:1].expand(15), rtol=0, atol=1e-4)


def test_another_family_is_refused_in_one_line(data, tmp_path, capsys):
    base = tmp_path / "electra"
    config = transformers.ElectraConfig(vocab_size=29, embedding_size=24, **SIZES)
    saved(transformers.ElectraForMaskedLM(config), base)
    from_config = {"from-config": base / "config.json", "tokenizer": base}
    for number, (model, choices) in enumerate(
        [(base, {}), (base, {"add-head": True}), (None, from_config)]
    ):
        output = tmp_path / f"made{number}"
        assert pretrain(flags("dupmae", model, data / "corpus.jsonl", output, **choices)) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert lines[-1].startswith("dupmae-ir pretrain: ")
        assert "Traceback" not in "".join(lines)


def test_a_head_is_not_added_to_another_kind_of_model():
    config = transformers.GPT2Config(vocab_size=29, n_embd=24, n_layer=1, n_head=2)
    with pytest.raises(CheckpointError, match="GPT2Model; use a BERT"):
        add_head(transformers.GPT2Model(config), tiny_tokenizer(), ["cat"] * 300)
