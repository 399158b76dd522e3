"""The commands ``collections list``, ``show``, ``get`` and ``check``: output, exit status and messages."""

from __future__ import annotations

import json

import pytest
from support.fakes import put_licensed

from dupmae_ir.collections import GROUPS, Cache, find, load
from dupmae_ir.collections.__main__ import main

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
def flags(mirror, tmp_path) -> list[str]:
    """Flags of every command, to use the stand-ins."""
    return ["--cache", str(tmp_path / "cache"), "--catalogue", str(mirror.catalogue)]


def test_list_shows_every_collection_and_its_state(flags, mirror, capsys):
    assert main(["get", "beir-scifact", "--mirror", mirror.url, "--quiet", *flags]) == 0
    capsys.readouterr()
    assert main(["list", "--json", *flags]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["beir-scifact"]["state"] == "ready"
    assert rows["beir-nq"]["state"] == "missing"
    assert rows["beir-robust04"]["state"] == "licensed"
    assert rows["msmarco-passage"]["tests"] == ["dev", "dl19", "dl20"]
    assert main(["list", *flags]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == len(rows) + 2
    assert len({len(line) for line in lines}) == 1
    assert "stand-ins of" in err
    assert "beir-cqadupstack (12)" in err


def test_show_prints_everything_and_breaks_no_address(flags, mirror, capsys):
    assert main(["show", "beir-arguana", *flags]) == 0
    out = capsys.readouterr().out
    for part in (
        "datasets/arguana.zip",
        "md5 ",
        "sha256 ",
        "--remove-query",
        "queries 512",
        "30 queries, 30",
    ):
        assert part in out
    assert (
        str(
            Cache.of(load(mirror.catalogue), flags[1]).download(
                find("beir-arguana").sources["archive"]
            )
        )
        in out
    )
    assert main(["show", "msmarco-passage-titled"]) == 0
    out = capsys.readouterr().out
    assert "no checksum is published" in out
    assert "--title-separator sep" in out
    assert main(["show", "beir-bioasq"]) == 0
    assert "register at http://www.bioasq.org" in " ".join(capsys.readouterr().out.split())
    assert main(["show", "beir-nq", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["sources"]["archive"]["md5"] == "d4d3d2e48787a744b6f6e691ff534307"
    assert shown["downloads"]["archive"].endswith("/BEIR/datasets/nq.zip")
    assert (shown["tests"]["test"]["queries"], "state" in shown) == (3452, True)


def test_a_group_gets_its_public_members_and_lists_the_licensed(flags, mirror, capsys, tmp_path):
    assert main(["get", "beir-18", "--mirror", mirror.url, *flags]) == 0
    out, err = capsys.readouterr()
    assert out.count("STAND-IN") == 13 + 12
    assert (
        "skipped because they are licensed: beir-bioasq, beir-signal1m, beir-trec-news, beir-robust04"
        in err
    )
    put_licensed(mirror.folder, tmp_path / "cache")
    assert main(["get", "beir-18", "--json", "--quiet", *flags]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 13 + 12 + 3
    assert err == ""


def test_a_second_get_is_already_complete(flags, mirror, capsys):
    words = ["get", "beir-scifact", "--json", "--quiet", "--mirror", mirror.url, *flags]
    results = []
    for _ in range(2):
        assert main(words) == 0
        results += json.loads(capsys.readouterr().out)
    assert [result.pop("status") for result in results] == ["complete", "already complete"]
    assert results[0] == results[1]


def test_a_licensed_collection_named_itself_fails_in_one_line(flags, capsys):
    assert main(["get", "beir-robust04", *flags]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "TREC disks 4 and 5" in err


def test_a_failed_download_is_one_line_and_status_1(flags, capsys):
    assert main(["get", "beir-nq", "--mirror", UNREACHABLE, "--quiet", *flags]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "put nq.zip" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "no command named 'lst'; known: list, show, get. Did you mean 'list'?"),
        (["get", "beir-scifakt"], "Did you mean 'beir-scifact'?"),
        (["get", "mote-15"], "Did you mean 'mote-14'?"),
        (["show", "beir-cqadupstack"], "beir-cqadupstack is a group of beir-cqadupstack-android"),
        (["show", "beir-cqadupstack-andoid"], "Did you mean 'beir-cqadupstack-android'?"),
        (["list", "--catalogue", "/nowhere.toml"], "/nowhere.toml: no such catalogue"),
    ],
)
def test_misuse_is_one_line_and_status_2(words, message, capsys, tmp_path):
    assert main([*words, *(["--cache", str(tmp_path)] if len(words) > 1 else [])]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_all_names_are_checked_before_downloading(flags, mirror, capsys):
    assert main(["get", "beir-scifact", "beir-nope", "--mirror", mirror.url, *flags]) == 2
    assert mirror.requested == []


def test_help_lists_the_groups(capsys):
    with pytest.raises(SystemExit):
        main(["get", "--help"])
    out = capsys.readouterr().out
    assert [name for name in GROUPS if name not in out] == []
