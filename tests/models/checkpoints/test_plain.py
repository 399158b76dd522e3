"""A plain BERT folder, read without transformers, encodes bit for bit as with it; others are left to transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from dupmae_ir.models.checkpoints import loading
from dupmae_ir.models.checkpoints.loading import PlainBert, read_plain
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer
from dupmae_ir.models.checkpoints.saving import write_compact
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.names import SMALL, embedded_folder

TEXTS = [
    "how do I wait for a thread to end",
    "",
    "  \t ",
    "na\u00efve \u00dcn\u00efcode \u6f22\u5b57 \U0001f600 don't [MASK] [SEP] ##x [unused1] e\u0301",
    "<mask> a </s>b<s> <pad>  <unk>",
    "x" * 300,
    "\x01 a\u200bb\u00a0c",
    "word " * 400,
]


@pytest.fixture(scope="module", params=["file", "8 bits"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, with its weights in float16 and in 8 bits."""
    if request.param == "file":
        return embedded_folder()
    if (embedded_folder() / "model.compact.safetensors").is_file():
        pytest.skip("the embedded model is in 8 bits itself")
    made = tmp_path_factory.mktemp("compact") / "model"
    write_compact(embedded_folder(), made)
    return made


def test_encodings_are_bit_identical(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = TextEncoder.load(folder)
    assert isinstance(ours.model.side("query").lm, PlainBert)
    monkeypatch.setattr(loading, "read_plain", lambda *_: None)
    theirs = TextEncoder.load(folder)
    assert not isinstance(theirs.model.side("query").lm, PlainBert)
    for one, two in ((ours.encode_documents(TEXTS), theirs.encode_documents(TEXTS)),
                     (ours.encode_queries(TEXTS), theirs.encode_queries(TEXTS)),
                     (ours.encode_queries(TEXTS[:1]), theirs.encode_queries(TEXTS[:1]))):  # fmt: skip
        assert one.cls is not None
        assert one.ot is not None
        np.testing.assert_array_equal(one.cls, two.cls)
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(one.ot, name), getattr(two.ot, name))
    assert ours.terms == theirs.terms
    assert (ours.settings, ours.digest, ours.running) == (
        theirs.settings,
        theirs.digest,
        theirs.running,
    )


def test_transformers_is_not_imported() -> None:
    code = (
        "import sys\nfrom dupmae_ir.models import load_encoder\n"
        "load_encoder(None).encode_queries(['a thread'])\n"
        "print([name for name in ('transformers', 'torch._dynamo', 'numba', 'jnius') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The embedded model, whose tokenizer is described by tokenizer.json alone."""
    return shutil.copytree(embedded_folder(), tmp_path / "model")


@pytest.fixture
def wordpiece(tmp_path: Path) -> Path:
    """The small model, whose tokenizer is BERT's."""
    return shutil.copytree(embedded_folder(SMALL), tmp_path / "small")


def changed(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps({**found, **values}), encoding="utf-8")

    return change


def lost(folder: Path) -> None:
    weights = next(folder.glob("model*.safetensors"))
    state = load_file(weights)
    del state[next(name for name in state if "layer.3" in name and name.endswith("bias"))]
    save_file(state, weights)


def normalizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    found["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(found), encoding="utf-8")


ADDED = {
    "content": "[X]",
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
}


@pytest.mark.parametrize(
    "change",
    [
        changed("config.json", hidden_act="relu"),
        changed("config.json", model_type="roberta"),
        changed("config.json", architectures=["BertForSequenceClassification"]),
        changed("config.json", position_embedding_type="relative_key"),
        changed("config.json", vocab_size=30_000),
        changed("tokenizer_config.json", tokenizer_class="ElectraTokenizer"),
        changed("tokenizer_config.json", additional_special_tokens=["[X]"]),
        changed("tokenizer_config.json", model_specific_special_tokens={"image_token": "[X]"}),
        changed(
            "tokenizer_config.json", added_tokens_decoder={"50265": {**ADDED, "special": True}}
        ),
        changed("tokenizer_config.json", bos_token="[X]"),
        changed("tokenizer_config.json", mask_token="the"),
        changed(
            "tokenizer_config.json",
            mask_token={**ADDED, "content": "<mask>", "__type": "AddedToken"},
        ),
        changed("tokenizer_config.json", split_special_tokens=True),
        changed("tokenizer_config.json", add_prefix_space=True),
        changed("tokenizer_config.json", truncation_side="left"),
        changed(
            "tokenizer.json",
            truncation={"direction": "Left", "max_length": 9, "strategy": "LongestFirst"},
        ),
        changed("tokenizer.json", added_tokens=[]),
        lost,
        lambda folder: (folder / "modules.json").write_text("[]"),
        lambda folder: (folder / "pooler.pt").write_bytes(b""),
        lambda folder: next(folder.glob("model*.safetensors")).write_bytes(b"damaged"),
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        lambda folder: (folder / "config.json").unlink(),
    ],
)
def test_everything_else_is_left_to_transformers(
    copy: Path, change: Callable[[Path], None]
) -> None:
    assert read_plain(copy, False) is not None
    change(copy)
    assert read_plain(copy, False) is None


@pytest.mark.parametrize(
    "change", [changed("tokenizer_config.json", do_lower_case=False), normalizer]
)
def test_a_tokenizer_that_is_not_berts_is_left_to_transformers(
    wordpiece: Path, change: Callable[[Path], None]
) -> None:
    assert read_plain(wordpiece, False) is not None
    change(wordpiece)
    assert read_plain(wordpiece, False) is None


def test_a_bare_encoder_has_no_ot_part(copy: Path) -> None:
    weights = next(copy.glob("model*.safetensors"))
    state = {
        name: value for name, value in load_file(weights).items() if not name.startswith("cls.")
    }
    if weights.name == "model.safetensors":
        save_file(state, weights, metadata={"format": "pt"})
        assert read_plain(copy, True) is None
        assert read_plain(copy, False) is not None


def test_a_tokenizer_serves_two_lengths() -> None:
    tokenizer = PlainTokenizer.read(embedded_folder())
    assert tokenizer is not None
    for length in (8, 5, 8):
        (ids,) = tokenizer(["a b c d e f g h i"], length)["input_ids"]
        assert len(ids) == length
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
