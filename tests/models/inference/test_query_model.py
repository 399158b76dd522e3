"""One query without torch: numbers of the packed encoder, and everything irregular left to it."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dupmae_ir import device
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models import load_lazy_encoder, load_text_encoder
from dupmae_ir.models.checkpoints.layout import COMPACT
from dupmae_ir.models.checkpoints.released import read_tensors
from dupmae_ir.models.checkpoints.saving import save_compact
from dupmae_ir.models.checkpoints.stored import StoredWeights
from dupmae_ir.models.inference import quantised_linear, query_model
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.inference.query_model import LazyTextEncoder, erf, gelu
from dupmae_ir.models.names import embedded_folder
from dupmae_ir.types import CollectionStatistics, Document, LexicalEncoder

TEXTS = [
    "how do I wait for a thread to end",
    "",
    "  \t ",
    "naïve Ünïcode 漢字 \U0001f600 don't [MASK] [SEP] ##x [unused1] <mask> </s> a<s>b <pad> é",
    "x" * 300,
    "\x01 a​b c",
    "word " * 400,
]
CLOSE = 1e-6
OF_16_BITS = 1e-4
"""Of the length of a vector, which is 1 for the embedded model. Float32 weights: sums of up to 1,536 products in
different orders; 7.2e-7 was seen, of which 6.5e-7 are torch's. 8-bit weights: inputs of products are rounded to 16
bits; 3.9e-5 was seen."""


@pytest.fixture(scope="module")
def both() -> tuple[LazyTextEncoder, TextEncoder]:
    lazy = load_lazy_encoder(None)
    assert isinstance(lazy, LazyTextEncoder)
    return lazy, lazy.whole()


def same(
    one: TextEncoder | LazyTextEncoder,
    two: TextEncoder | LazyTextEncoder,
    text: str,
    close: float = OF_16_BITS,
) -> None:
    a = one.encode_queries([text], 5)
    b = two.encode_queries([text], 5)
    if a.cls is None or b.cls is None:
        assert (a.cls, b.cls) == (None, None)
    else:
        assert (a.cls.shape, a.cls.dtype) == (b.cls.shape, b.cls.dtype)
        np.testing.assert_allclose(a.cls, b.cls, rtol=0, atol=close * float(np.linalg.norm(b.cls)))
    if a.ot is None or b.ot is None:
        assert (a.ot, b.ot) == (None, None)
    else:
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(a.ot, name), getattr(b.ot, name))


@pytest.mark.parametrize("text", TEXTS)
def test_query_model_has_the_numbers_of_the_whole_encoder(
    both: tuple[LazyTextEncoder, TextEncoder], text: str
) -> None:
    lazy, whole = both
    same(lazy, whole, text)
    assert lazy.term_names(text) == whole.term_names(text)
    assert lazy.term_spans(text) == whole.term_spans(text)
    first = lazy.encode_queries([text])
    second = lazy.encode_queries([text])
    np.testing.assert_array_equal(first.cls, second.cls)
    cls, rows = lazy.encode_rows([text])
    np.testing.assert_array_equal(cls, first.cls)
    assert rows is not None
    (row,) = rows
    for ours, expected in zip(row, (first.ot.indices, first.ot.data), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_query_is_encoded_without_torch_scipy_and_faiss() -> None:
    """Nor do the modules of search import them: each takes a tenth of a second or more."""
    code = """
import sys
import dupmae_ir.search.run
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models import load_lazy_encoder
from dupmae_ir.search.query.encoder import QueryEncodings
encoder = load_lazy_encoder(None)
(query,) = QueryEncodings(encoder, 1.0, 1024, ["a thread waits"]).take(["a thread waits"])
assert query.cls.any() and len(query.ot.ids)
print(sorted({"torch", "scipy", "faiss", "transformers", "jnius"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_it_is_the_same_encoder(both: tuple[LazyTextEncoder, TextEncoder]) -> None:
    lazy, whole = both
    assert isinstance(lazy, LexicalEncoder)
    assert (lazy.name, lazy.digest, lazy.dim, lazy.settings) == (
        whole.name,
        whole.digest,
        whole.dim,
        whole.settings,
    )
    assert lazy.terms == whole.terms


def test_statistics_of_a_collection_change_its_weights_too(
    both: tuple[LazyTextEncoder, TextEncoder],
) -> None:
    lazy, whole = both
    assert lazy.terms is not None
    statistics = CollectionStatistics(1000, np.arange(len(lazy.terms)) % 900)
    changed = lazy.for_collection(statistics)
    same(changed, whole.for_collection(statistics), TEXTS[0])
    assert (changed.encode_queries(TEXTS[:1]).ot != lazy.encode_queries(TEXTS[:1]).ot).nnz
    several = changed.encode_queries(TEXTS[:3])
    expected = whole.for_collection(statistics).encode_queries(TEXTS[:3])
    length = float(np.linalg.norm(expected.cls[0]))
    np.testing.assert_allclose(several.cls, expected.cls, rtol=0, atol=OF_16_BITS * length)
    assert (several.ot != expected.ot).nnz == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 5, 16, 40])
def test_a_text_has_the_same_bits_alone_and_with_others(
    both: tuple[LazyTextEncoder, TextEncoder], threads: int, size: int
) -> None:
    lazy, _ = both
    rng = random.Random(size)
    words = " ".join(TEXTS).split()
    texts = [" ".join(rng.choices(words, k=rng.randrange(60))) for _ in range(size)]
    assert lazy.is_quick(len(texts))
    together = lazy.encode_rows(texts, threads=threads)
    alone = [lazy.encode_rows([text]) for text in texts]
    np.testing.assert_array_equal(together.cls, np.concatenate([rows.cls for rows in alone]))
    np.testing.assert_array_equal(together.cls, lazy.encode_queries(texts).cls)
    assert together.ot is not None
    for (ids, weights), rows in zip(together.ot, alone, strict=True):
        np.testing.assert_array_equal(ids, rows.ot[0][0])
        np.testing.assert_array_equal(weights, rows.ot[0][1])


def test_the_compiled_loops_and_numpy_join_texts_alike(
    both: tuple[LazyTextEncoder, TextEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy, _ = both
    compiled = lazy.encode_rows(TEXTS).cls
    monkeypatch.setattr(quantised_linear, "pays", lambda _: False)
    monkeypatch.setattr(query_model, "pays", lambda _: False)
    np.testing.assert_array_equal(lazy.encode_rows(TEXTS).cls, compiled)


def test_words_alone_need_no_model(both: tuple[LazyTextEncoder, TextEncoder]) -> None:
    for encoder in both:
        words = encoder.without_vectors()
        assert words is not None
        found = words.encode_queries(TEXTS)
        assert found.cls is None
        assert (found.ot != encoder.encode_queries(TEXTS).ot).nnz == 0
    _, rows = both[0].without_vectors().encode_rows(TEXTS[:2])
    assert len(rows) == 2


def test_documents_are_for_the_whole_encoder(both: tuple[LazyTextEncoder, TextEncoder]) -> None:
    lazy, whole = both
    assert lazy.encode_queries([]).cls.shape == (0, whole.dim)
    documents = [Document("1", TEXTS[0], "threads")]
    np.testing.assert_array_equal(
        lazy.encode_collection(documents).cls, whole.encode_collection(documents).cls
    )
    np.testing.assert_array_equal(
        lazy.encode_documents(TEXTS[:1]).cls, whole.encode_documents(TEXTS[:1]).cls
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"parts": ("cls",)},
        {"parts": ("ot",)},
        {"normalize": True},
        {"query_length": 5},
        {"activation": "log1p"},
        {"dtype": "mixed"},
    ],
)
def test_settings_mean_the_same(settings: dict[str, Any]) -> None:
    lazy = load_lazy_encoder(None, **settings)
    whole = load_text_encoder(None, **settings)
    assert isinstance(lazy, LazyTextEncoder)
    assert lazy.settings == whole.settings
    same(lazy, whole, TEXTS[0])


def test_torch_is_not_imported() -> None:
    code = (
        "import sys\nfrom dupmae_ir.models import load_lazy_encoder\n"
        "load_lazy_encoder(None).encode_queries(['a thread'])\n"
        "print([name for name in ('torch', 'transformers', 'numba', 'scipy.special') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[]\n"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(embedded_folder(), tmp_path / "model")
    return tmp_path / "model"


def in_float32(folder: Path, prefix: str = "") -> None:
    state = read_tensors(folder / "model.compact.safetensors")
    (folder / "model.compact.safetensors").unlink()
    save_file(
        {prefix + name: value.contiguous() for name, value in state.items()},
        folder / "model.safetensors",
    )


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_weights_in_float32_are_read_too(copy: Path, prefix: str) -> None:
    in_float32(copy, prefix)
    (copy / "cls_projection.safetensors").unlink()
    lazy = load_lazy_encoder(copy)
    assert isinstance(lazy, LazyTextEncoder)
    same(lazy, load_text_encoder(copy), TEXTS[0], CLOSE)


def changed(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps({**found, **values}), encoding="utf-8")

    return change


def without_a_bias(folder: Path) -> None:
    weights = folder / "model.compact.safetensors"
    state = load_file(weights)
    del state["encoder.layer.3.intermediate.dense.bias"]
    save_file(state, weights, {"format": "pt", "dupmae_ir.compact": "2"})


def of_another_width(folder: Path) -> None:
    weights = folder / "model.compact.safetensors"
    state = load_file(weights)
    state["encoder.layer.3.intermediate.dense.bias"] = torch.zeros(7)
    save_file(state, weights, {"format": "pt", "dupmae_ir.compact": "2"})


@pytest.mark.parametrize(
    "change",
    [
        changed("config.json", hidden_act="relu"),
        changed("config.json", vocab_size=30_000),
        changed("dupmae_config.json", pooling="last"),
        changed("tokenizer_config.json", split_special_tokens=True),
        without_a_bias,
        of_another_width,
        lambda folder: (folder / "modules.json").write_text("[]"),
        lambda folder: (folder / "model.compact.safetensors").write_bytes(b"damaged"),
        lambda folder: (folder / "cls_projection.safetensors").write_bytes(b"damaged"),
        lambda folder: (folder / "lexicon.safetensors").unlink(),
        lambda folder: shutil.rmtree(folder),
    ],
)
def test_everything_else_is_left_to_torch(
    copy: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(load_lazy_encoder(copy), LazyTextEncoder)
    change(copy)
    monkeypatch.setattr(TextEncoder, "load", lambda *_, **__: "the whole encoder")
    assert load_lazy_encoder(copy) == "the whole encoder"


@pytest.mark.parametrize(
    "settings", [{"dtype": "bfloat16"}, {"device": "cuda"}, {"activation": "x"}, {"parts": ()}]
)
def test_other_settings_are_left_to_torch(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextEncoder, "load", lambda *_, **__: "the whole encoder")
    assert load_lazy_encoder(None, **settings) == "the whole encoder"


def test_a_machine_with_an_accelerator_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device.is_plain_cpu("cpu")
    monkeypatch.setattr(device, "_ACCELERATORS", [str(tmp_path / "nvidia0")])
    assert device.is_plain_cpu("auto") == (sys.platform == "linux")
    (tmp_path / "nvidia0").touch()
    assert not device.is_plain_cpu("auto")
    assert device.is_plain_cpu("cpu")


def test_stored_weights_are_those_that_torch_reads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {
        "matrix": torch.randn(4, 70).half(),
        "value.weight": torch.randn(4, 70),
        "diagonal": torch.randn(6).diag(),
        "bias": torch.randn(6).half(),
        "zeros": torch.zeros(5, 5),
    }
    save_compact(state, tmp_path / COMPACT, keep=["value"])
    stored = StoredWeights(tmp_path / COMPACT, compact=True)
    expected = read_tensors(tmp_path / COMPACT)
    assert set(stored) == set(expected)
    assert len(stored) == len(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(stored[name], value.numpy())
    np.testing.assert_array_equal(stored.rows("matrix", [2, 0]), expected["matrix"].numpy()[[2, 0]])
    with pytest.raises(CheckpointError, match="version 2 of 8-bit weights"):
        StoredWeights(tmp_path / COMPACT)


def test_the_error_function_and_gelu() -> None:
    points = np.concatenate([np.linspace(-7, 7, 20_001), [0.0, -0.0, 1e-30, 1e30, -1e30]])
    np.testing.assert_allclose(erf(points), [math.erf(x) for x in points], rtol=0, atol=1e-10)
    x = torch.linspace(-7, 7, 20_001)
    np.testing.assert_allclose(
        gelu(x.numpy()), torch.nn.functional.gelu(x.double()).numpy(), rtol=0, atol=5e-7
    )


@pytest.mark.parametrize("size", [1, 511, 512, 513, 30_000])
def test_compiled_gelu_returns_the_bits_of_numpy(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = np.random.default_rng(size).normal(0, 3, size)
    edges = [0.0, -0.0, 1e-30, 1e30, -1e30, 6 * 2**0.5, -6 * 2**0.5, 1e-45]
    x = np.concatenate([drawn, edges]).astype(np.float32)
    results = []
    for loops in (False, True):
        monkeypatch.setattr(query_model, "pays", lambda _, loops=loops: loops)
        # Neither the shape nor the order in memory matters.
        results.append(gelu(x.reshape(-1, 1)[::-1]))
    assert results[0].shape == results[1].shape == (len(x), 1)
    np.testing.assert_array_equal(results[1].view(np.int32), results[0].view(np.int32))


def test_threads_compute_the_same_numbers_as_one_alone(
    both: tuple[LazyTextEncoder, TextEncoder],
) -> None:
    lazy, _ = both
    texts = [text for text in TEXTS if text.strip()] * 12
    alone = [lazy.encode_queries([text]).cls for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: lazy.encode_queries([text]).cls, texts))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
