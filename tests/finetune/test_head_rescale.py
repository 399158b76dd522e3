"""``head_rescale``: the logits of a masked-LM head of a large norm, as ModernBERT's, start at BERT's scale."""

from __future__ import annotations

import json

import pytest
import torch
from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.__main__ import main as finetune
from dupmae_ir.finetune.base import BERT_SPREAD, load_base, rescale_head
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.setup import starting_model
from dupmae_ir.models.heads.masked_lm import head_of


def modernbert():
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    sizes = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    special = {
        "pad_token_id": 0,
        "cls_token_id": 3,
        "sep_token_id": 4,
        "bos_token_id": 3,
        "eos_token_id": 4,
    }
    return ModernBertForMaskedLM(
        ModernBertConfig(vocab_size=29, max_position_embeddings=64, **sizes, **special)
    )


def bert():
    from transformers import BertForMaskedLM

    return BertForMaskedLM(tiny_config())


@pytest.fixture
def base(tmp_path):
    def save(model, norm):
        """``model`` with word embeddings of this norm."""
        rows = model.get_input_embeddings().weight.data
        rows.copy_(norm * torch.nn.functional.normalize(torch.randn_like(rows), dim=1))
        model.save_pretrained(tmp_path / "base")
        tiny_tokenizer().save_pretrained(tmp_path / "base")
        return tmp_path / "base"

    torch.manual_seed(0)
    return save


def logits(retriever, tokenizer):
    batch = tokenizer(["the quick brown fox", "cat"], padding=True, return_tensors="pt")
    side = retriever.side("document").eval()
    with torch.no_grad():
        hidden = side.hidden(batch["input_ids"], batch["attention_mask"])
        return side.head.transform(hidden) @ side.head.weight.T + side.head.bias


@pytest.mark.parametrize("family", [modernbert, bert])
@pytest.mark.parametrize(
    ("norm", "how", "factor"),
    [(20, "auto", 20 / 1.4), (3, "auto", 1), (3, "16", 16), (20, "none", 1)],
)
def test_logits_are_divided_and_embeddings_stay(base, capsys, family, norm, how, factor):
    folder = base(family(), norm)
    config = FinetuneConfig(
        pairs=("-",), output="-", model=str(folder), head_rescale=how, activation="none"
    )
    start = starting_model(config)
    retriever, tokenizer = load_base(start, [], quiet=True)
    before = logits(retriever, tokenizer)
    spread = head_of(retriever.side("document").lm).spread()
    assert spread == pytest.approx(norm, rel=1e-4)  # the gain of a new LayerNorm is 1
    record = rescale_head(retriever, start, quiet=False)
    torch.testing.assert_close(logits(retriever, tokenizer), before / factor, atol=1e-4, rtol=1e-4)
    embeddings = retriever.side("document").lm.get_input_embeddings().weight
    torch.testing.assert_close(embeddings.norm(dim=1), torch.full((29,), float(norm)))
    assert record == ({} if factor == 1 else {"head_rescale": pytest.approx(factor, abs=1e-3)})
    printed = capsys.readouterr().err
    assert ("divided by" in printed) == (factor != 1)
    if how == "auto" and factor != 1:
        assert head_of(retriever.side("document").lm).spread() == pytest.approx(
            BERT_SPREAD, rel=1e-4
        )


def test_both_encoders_of_an_untied_model_are_divided_once(base):
    folder = base(modernbert(), 20)
    config = FinetuneConfig(
        pairs=("-",), output="-", model=str(folder), encoder="untied", activation="none"
    )
    start = starting_model(config)
    retriever, _ = load_base(start, [], quiet=True)
    before = [head_of(retriever.side(side).lm).spread() for side in ("query", "document")]
    factor = rescale_head(retriever, start, quiet=True)["head_rescale"]
    after = [head_of(retriever.side(side).lm).spread() for side in ("query", "document")]
    assert after == pytest.approx([spread / factor for spread in before], rel=1e-3)


def test_the_factor_is_recorded(base, tmp_path, capsys):
    folder = base(modernbert(), 30)
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"query": word, "positive": {"id": word, "text": f"{word} dog"}} for word in WORDS[:8]]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "--pairs",
        str(pairs),
        "--model",
        str(folder),
        "--output",
        str(tmp_path / "m"),
        "--steps",
        "1",
    ]
    assert finetune([*words, "--batch-size", "4", "--group-size", "2", "--cls-dim", "0"]) == 0
    assert (
        "logits of the masked-LM head divided by 21.4: they spread 30, BERT's 1.4"
        in capsys.readouterr().err
    )
    assert json.loads((tmp_path / "m" / "training.json").read_text())["result"][
        "head_rescale"
    ] == pytest.approx(21.43, abs=0.01)


@pytest.mark.parametrize("value", ["0", "-2", "0.5", "many", "nan", "1e400"])
def test_anything_else_is_refused(value):
    with pytest.raises(
        UsageError, match=r"`head_rescale` must be auto, none or a number of at least 1"
    ):
        FinetuneConfig(pairs=("-",), output="-", head_rescale=value)
