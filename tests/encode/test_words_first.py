"""An index of words that can be searched while the vectors of a long collection are encoded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.lexical_models import make_lexical

from dupmae_ir import Searcher
from dupmae_ir.encode import EncodeConfig
from dupmae_ir.encode import run as run_module
from dupmae_ir.encode.changes import run_add
from dupmae_ir.encode.executors import ThisProcess
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.config import AddConfig
from dupmae_ir.index.format import unread
from dupmae_ir.index.format.unread import MeaningProgress, share_read
from dupmae_ir.index.index import Index
from dupmae_ir.io.jobs import work_folder
from dupmae_ir.search.__main__ import main as search_main
from dupmae_ir.serve.api import index_info
from dupmae_ir.serve.batch_handler import certificate
from dupmae_ir.serve.catalogue import OpenIndexes
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.servers.config import LoadConfig
from dupmae_ir.servers.load import run as load_into_server
from dupmae_ir.types import Query

WORDS = ["boiler", "error", "water", "pipe", "bees", "sun", "clouds"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_lexical(tmp_path_factory.mktemp("words_first")))


@pytest.fixture(autouse=True)
def every_progress(monkeypatch):
    monkeypatch.setattr(unread, "_SECONDS", 0.0)


@pytest.fixture
def config(tmp_path, model):
    corpus = tmp_path / "corpus.jsonl"
    with corpus.open("w") as f:
        for number in range(20):
            text = f"The {WORDS[number % 7]} and the {WORDS[number % 5]} are here."
            f.write(json.dumps({"id": f"d{number}", "text": text}) + "\n")
    return EncodeConfig(
        corpus=str(corpus), index=str(tmp_path / "I"), model=model, window=4, quiet=True
    )


@pytest.fixture
def stopped(config, monkeypatch):
    """The encoding of vectors ends after two of five windows."""
    plain = ThisProcess.encode

    def stop_after_two(self, missing):
        for number, result in enumerate(plain(self, missing)):
            if number == 2 and self.encoder.dim is not None:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(ThisProcess, "encode", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        encode(config)
    monkeypatch.undo()
    return config


def test_words_can_be_searched_and_it_is_said_what_is_missing(stopped, capsys):
    searcher = Searcher.open(stopped.index)
    index = searcher.index
    assert index.documents == 20
    assert index.parts == ("ot",)
    assert index.missing == "meaning 80% read"
    (answer,) = searcher.answers([Query("q", "boiler")], 3)
    assert len(answer.hits) == 3
    assert not answer.report.exact
    assert certificate(answer.report, index.missing).why_not == "meaning 80% read"

    assert search_main(["--index", stopped.index, "--query", "boiler"]) == 0
    printed = capsys.readouterr()
    assert "words, better ones may be missed (meaning 80% read)" in printed.err + printed.out
    assert index_main(["show", stopped.index]) == 0
    assert "adds the vectors" in capsys.readouterr().out


def test_the_complete_index_is_the_one_that_is_made_at_once(stopped, tmp_path, monkeypatch):
    encode(stopped)
    complete = Index.open(stopped.index)
    assert complete.missing is None
    assert not work_folder(stopped.index).exists()
    monkeypatch.setattr(run_module._Run, "_words_come_first", lambda self, job: False)
    encode(dataclasses.replace(stopped, index=str(tmp_path / "J")))
    at_once = Index.open(tmp_path / "J")
    assert complete.digest == at_once.digest
    assert complete.parts == ("cls", "ot")
    (answer,) = Searcher.open(stopped.index).answers([Query("q", "boiler")], 3)
    assert answer.report.exact
    # Encoding it again finds it complete.
    assert encode(stopped)["status"] == "already complete"


def test_words_have_the_scores_of_the_complete_index(stopped):
    words = Searcher.open(stopped.index).search("boiler water", 20)
    encode(stopped)
    assert Searcher.open(stopped.index).search("boiler water", 20, "impact") == words


def test_it_cannot_be_changed_before_it_is_complete(stopped, tmp_path):
    change = AddConfig(index=stopped.index, corpus=stopped.corpus, quiet=True)
    with pytest.raises(IndexMismatch, match="meaning is 80% read; run the encode command"):
        run_add(change)
    with pytest.raises(IndexMismatch, match="meaning is 80% read"):
        load_into_server(LoadConfig(index=stopped.index, to=f"milvus:{tmp_path}/m.db", quiet=True))
    with pytest.raises(IndexMismatch, match=r"begun with other settings: .*document_length"):
        encode(dataclasses.replace(stopped, document_length=8))
    encode(stopped)
    run_add(change)


def test_a_run_that_is_killed_while_it_reads_words_begins_them_again(config, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "move_into_place", die)
    with pytest.raises(KeyboardInterrupt):
        encode(config)
    monkeypatch.undo()
    assert not Path(config.index).exists()
    encode(config)
    assert Index.open(config.index).parts == ("cls", "ot")


def test_a_service_takes_the_vectors_in_when_they_are_there(stopped):
    catalogue = OpenIndexes(ServeConfig(index=(f"docs={stopped.index}",)))
    catalogue.open_all()
    before = index_info(catalogue.get())
    assert before.missing == "meaning 80% read"
    assert before.modes == ["impact"]
    encode(stopped)
    assert [change.what for change in catalogue.reload()] == ["opened"]
    after = index_info(catalogue.get())
    assert after.missing is None
    assert "hybrid" in after.modes
    (answer,) = catalogue.get().searcher.answers([Query("q", "boiler")], 3)
    assert answer.report.exact
    catalogue.close()


@pytest.mark.parametrize(
    "settings",
    [{"parts": "cls"}, {"parts": "ot"}, {"shard": "0/2"}, {"window": 64}],
    ids=["vectors", "words", "shard", "one window"],
)
def test_what_is_made_at_once(config, monkeypatch, settings):
    monkeypatch.setattr(run_module, "move_into_place", None)
    encode(dataclasses.replace(config, **settings))


def test_an_older_index_stays_until_the_new_one_is_complete(config, monkeypatch):
    encode(config)
    monkeypatch.setattr(run_module, "move_into_place", None)
    encode(dataclasses.replace(config, document_length=8, overwrite=True))
    assert Index.open(config.index).meta["encoder"]["document_length"] == 8


def test_progress_counts_the_part_of_a_window(tmp_path):
    work_folder(tmp_path / "I").mkdir()
    assert share_read(tmp_path / "I") == 0
    MeaningProgress(work_folder(tmp_path / "I"), 200).at(25)
    assert share_read(tmp_path / "I") == 0.125
