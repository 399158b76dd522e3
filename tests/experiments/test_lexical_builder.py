"""experiments/lexical.py and granite.py: [CLS] is centred, the lexicon counts documents, equal bytes every time."""

from __future__ import annotations

import gzip
import json

import granite
import lexical as module
import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer
from transformers import BertModel, RobertaConfig, RobertaModel

from dupmae_ir.models.heads.lexical import bucket_of, decode_frequencies
from dupmae_ir.models.inference.encoder import TextEncoder

PASSAGES = [
    {"_id": "a", "title": "The cat", "text": "sat on the mat"},
    {"_id": "b", "text": "cats and a dog"},
    {"_id": "held", "text": "a lazy dog"},
]
TEXTS = ["the quick brown fox jumps over the lazy dog", "cat", "list heap queue tree graph"]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as f:
        f.writelines(line + "\n" for line in lines)


@pytest.fixture
def data(tmp_path):
    for name in module.PRETRAIN:
        write(
            tmp_path / "data" / "pretrain" / f"{name}.txt.gz",
            ["dogs run", "", "the tree"] * (name == "xquad"),
        )
    write(tmp_path / "data" / "pairs" / "corpus.jsonl.gz", map(json.dumps, PASSAGES))
    write(
        tmp_path / "data" / "pairs" / "dev.jsonl.gz",
        [json.dumps({"query": "dog", "positive": {"id": "held"}})],
    )
    return tmp_path / "data"


@pytest.fixture
def start(monkeypatch):
    """A tiny encoder in the place of the package's."""

    def load():
        torch.manual_seed(1)
        return granite.Granite(
            BertModel(tiny_config(), add_pooling_layer=False).eval(), tiny_tokenizer()
        )

    monkeypatch.setattr(granite, "load", load)
    return load


def test_the_model_folder(data, start, tmp_path, capsys):
    flags = ["--data", str(data)]
    assert module.main([*flags, "--output", str(tmp_path / "m")]) == 0
    assert module.main([*flags, "--output", str(tmp_path / "again")]) == 0
    files = {p.name: p.read_bytes() for p in (tmp_path / "m").iterdir()}
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()}
    assert json.loads(files["training.json"])["documents"] == 4
    assert module.main([*flags, "--output", str(tmp_path / "m")]) == 2
    assert "exists already" in capsys.readouterr().err


def states(encoder, tokenizer, texts):
    with torch.inference_mode():
        return torch.stack(
            [encoder(**tokenizer(t, return_tensors="pt")).last_hidden_state[0, 0] for t in texts]
        )


def test_cls_is_centred_and_of_unit_length(data, start, tmp_path):
    module.make(data, tmp_path / "m", 4.5)
    encoder, (plain, tokenizer) = TextEncoder.load(tmp_path / "m"), start()
    mean = states(plain, tokenizer, ["The cat sat on the mat", "cats and a dog"]).mean(0)
    wanted = states(plain, tokenizer, TEXTS) - mean
    found = encoder.encode_documents(TEXTS).cls
    np.testing.assert_allclose(
        found, 4.5**0.5 * torch.nn.functional.normalize(wanted, dim=1), atol=1e-5
    )


def test_the_lexicon_counts_documents(data, start, tmp_path):
    module.make(data, tmp_path / "m", 4.5)
    rates = TextEncoder.load(tmp_path / "m")._lexicon.rates
    # Of four documents, without the held-out one: "cat" in both passages, "dog" in one and in a line.
    assert rates[bucket_of("cat", 1 << 17)] == pytest.approx(0.5, rel=0.03)
    assert rates[bucket_of("dog", 1 << 17)] == pytest.approx(0.5, rel=0.03)
    assert rates[bucket_of("lazi", 1 << 17)] == 0
    assert len(rates) == 1 << 17
    assert decode_frequencies(np.array([0], np.uint8))[0] == 0


def test_missing_text_is_one_line(start, tmp_path, capsys):
    assert module.main(["--data", str(tmp_path), "--output", str(tmp_path / "m")]) == 2
    assert "dev.jsonl.gz is missing; --data names the folder" in capsys.readouterr().err


def a_pack(roberta, path):
    """A pack of a RoBERTa whose matrices are whole numbers of a 64th, which 8 bits store exactly; and its tokenizer."""
    state = roberta.state_dict()
    config = roberta.config
    names = {
        "word_emb": "word_embeddings",
        "pos_emb": "position_embeddings",
        "type_emb": "token_type_embeddings",
    }
    tensors = {short: state[f"embeddings.{name}.weight"] for short, name in names.items()}
    tensors |= {
        f"emb_ln.{kind[0]}": state[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")
    }
    for number in range(config.num_hidden_layers):
        home = f"encoder.layer.{number}"
        for kind in ("weight", "bias"):
            parts = [
                state[f"{home}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")
            ]
            tensors[f"l{number}.qkv.{kind[0]}"] = torch.cat(parts)
            for short, name in granite.LAYER.items():
                tensors[f"l{number}.{short}.{kind[0]}"] = state[f"{home}.{name}.{kind}"]
    described = []
    blocks = []
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        kind = "f32"
        if name.endswith(".w") and tensor.dim() == 2:
            factors = np.full(tensor.numel() // 64, 1 / 64, "<f4")
            raw = (tensor * 64).to(torch.int8).numpy().tobytes() + factors.tobytes()
            kind = "i8"
        described.append(
            {"name": name, "dtype": kind, "shape": list(tensor.shape), "len": len(raw)}
        )
        blocks.append(raw)
    tokenizer = tiny_tokenizer().backend_tokenizer.to_str().encode()
    arch = {
        "hidden": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "intermediate": config.intermediate_size,
        "vocab": config.vocab_size,
        "max_positions": config.max_position_embeddings,
        "layer_norm_eps": config.layer_norm_eps,
    }
    header = json.dumps(
        {"arch": arch, "tokenizer_len": len(tokenizer), "tensors": described}
    ).encode()
    path.write_bytes(
        granite.MAGIC + len(header).to_bytes(8, "little") + header + tokenizer + b"".join(blocks)
    )
    return path


def test_a_packed_roberta_is_the_same_as_a_bert(tmp_path, monkeypatch):
    torch.manual_seed(2)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = RobertaConfig(
        vocab_size=40, max_position_embeddings=34, layer_norm_eps=1e-12, pad_token_id=1, **sizes
    )
    roberta = RobertaModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, parameter in roberta.named_parameters():
            if parameter.dim() == 2 and name.startswith("encoder"):
                parameter.copy_((parameter * 64 * 8).round().clamp(-127, 127) / 64)
    file = a_pack(roberta, tmp_path / granite.NAME)
    monkeypatch.setattr(granite, "pack", lambda: file)
    monkeypatch.setattr(
        granite, "SPECIAL", {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]"}
    )
    encoder, _ = granite.load()
    ids = torch.tensor([[0, 7, 9, 30, 2]])
    with torch.inference_mode():
        wanted = roberta(ids).last_hidden_state
        found = encoder(ids).last_hidden_state
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    file.write_bytes(b"something else")
    with pytest.raises(granite.InputError, match="not a pack"):
        granite.load()
