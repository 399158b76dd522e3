"""Decoder blocks against transformers' layers, and the masks against their definition."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_config

from dupmae_ir.models.objectives.decoders import CausalBlock, DecoderLayer, causal


@pytest.fixture
def config():
    """A BERT configuration without dropout."""
    return tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def test_a_decoder_layer_equals_a_bert_layer_on_one_stream(config):
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    theirs = BertLayer(config).double().eval()
    theirs.attention.self.config._attn_implementation = "eager"
    ours = DecoderLayer(config).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    added = torch.where(mask.bool(), 0.0, -1e30)[:, None, None].double()
    out = theirs(x, attention_mask=added)
    want = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(ours(x, x, mask.unsqueeze(1)), want, rtol=1e-9, atol=1e-9)


def test_a_causal_block_equals_a_gpt2_block_with_bert_settings(config):
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    torch.manual_seed(0)
    gpt2 = GPT2Config(
        n_embd=24,
        n_head=config.num_attention_heads,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        activation_function=config.hidden_act,
        layer_norm_epsilon=config.layer_norm_eps,
    )
    gpt2._attn_implementation = "eager"
    theirs = GPT2Block(gpt2, layer_idx=0).double().eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.3)
    ours = CausalBlock(config).double()
    kept = ours.state_dict().keys()
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if k in kept})
    x = torch.randn(2, 6, 24, dtype=torch.float64)
    visible = causal(torch.ones(2, 6, dtype=torch.long))
    added = torch.where(visible, 0.0, -1e30).unsqueeze(1).double()
    out = theirs(x, attention_mask=added)
    want = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(ours(x, visible), want, rtol=1e-9, atol=1e-9)


def test_the_causal_mask_and_its_window():
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    whole = causal(mask)[0]
    assert whole.tolist() == [[c <= r and c < 5 for c in range(6)] for r in range(6)]
    near = causal(mask, window=3)[0]
    assert near[4].tolist() == [True, False, True, True, True, False]
    assert near[1].tolist() == [True, True, False, False, False, False]


def test_a_row_without_visible_columns_is_finite(config):
    layer = DecoderLayer(config)
    x = torch.randn(1, 4, 24, requires_grad=True)
    visible = torch.zeros(1, 4, 4, dtype=torch.bool)
    visible[0, 0, 1] = True
    out = layer(x, x, visible)
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
