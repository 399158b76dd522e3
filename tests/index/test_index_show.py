"""``dupmae-ir index show``."""

from __future__ import annotations

import json

import pytest
from support import index_samples as samples

from dupmae_ir.index.__main__ import main

pytestmark = pytest.mark.jvm


def test_show(tmp_path, capsys):
    meta = samples.build(tmp_path / "I")
    assert main(["show", str(tmp_path / "I")]) == 0
    shown = capsys.readouterr().out
    assert "120 (12 without impacts)" in shown
    assert meta["digest"][:12] in shown
    assert main(["show", str(tmp_path / "I"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == meta
    assert main(["show", str(tmp_path / "I"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    with open(tmp_path / "I" / "cls" / "index", "r+b") as f:
        f.seek(-2, 2)
        f.write(b"xx")
    assert main(["show", str(tmp_path / "I")]) == 0
    assert main(["verify", str(tmp_path / "I")]) == 1


def test_show_lists_the_postings(tmp_path, capsys):
    samples.build(tmp_path / "I")
    where = str(tmp_path / "I")

    def shown():
        assert main(["show", where]) == 0
        return capsys.readouterr().out

    assert "\n  postings" not in shown()
    assert main(["postings", "--index", where, "--quiet"]) == 0
    assert "\n  postings          0." in shown()
    (samples.first_segment(tmp_path / "I") / "postings" / "meta.json").write_text("{}")
    assert "\n  postings          unusable: " in shown()


def test_postings_that_are_complete_are_not_written_again(tmp_path, capsys):
    samples.build(tmp_path / "I")
    command = ["postings", "--index", str(tmp_path / "I"), "--json"]

    def status():
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)["status"]

    assert status() == "complete"
    postings = samples.first_segment(tmp_path / "I") / "postings"
    before = postings.stat().st_ino
    assert status() == "already complete"
    assert postings.stat().st_ino == before
    (postings / "rows.npy").unlink()
    assert status() == "complete", "damaged postings are written again"
    assert [p.name for p in (tmp_path / "I").iterdir() if p.name.startswith(".")] == []


def test_help_and_mistakes(capsys):
    assert main([]) == 0
    assert "bm25" in capsys.readouterr().out
    assert main(["bm52"]) == 2
    assert "Did you mean 'bm25'?" in capsys.readouterr().err
    assert main(["show", "/no/such/index"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
