"""``--estimate``: the sizes it predicts are those of the index, and the arithmetic is restated."""

from __future__ import annotations

import json

import pytest
from support.encode_runs import arguments, write_corpus

from dupmae_ir.encode.__main__ import main
from dupmae_ir.encode.planning import Machine, Measured, plan, read_machines

MEASURED = Measured(
    rate=10.0, read_rate=5000.0, build_seconds=0.001, bytes={"cls": 64.0}, postings=5.0, dim=16, words=20.0
)


def test_the_plan_restated():
    """Devices share the encoding, one process reads and one indexes."""
    made = plan(MEASURED, 3_600_000, Machine("m", devices=4, times=25.0, price=2.0))
    assert (made.documents_per_second, made.bound_by) == (1000.0, "")
    assert (made.encode_hours, made.index_hours) == (1.0, 1.0)
    assert made.dollars == 4.0
    reading = plan(MEASURED, 3_600_000, Machine("m", 8, 100.0, 0.0))
    assert (reading.documents_per_second, reading.bound_by) == (5000.0, "reading")
    host = plan(MEASURED, 3_600_000, Machine("m", 2, 100.0, 0.0, host=500.0))
    assert (host.documents_per_second, host.bound_by) == (1000.0, "host")


@pytest.mark.jvm
def test_an_estimate_has_the_bytes_of_the_index_and_writes_nothing(tmp_path, capsys):
    corpus, index = write_corpus(tmp_path / "corpus.jsonl", 4000), tmp_path / "I"
    asked = arguments(corpus, index, "--estimate", "--sample", 600, "--json")
    assert main(asked) == 0
    result = json.loads(capsys.readouterr().out)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]
    assert (result["documents"], result["exact"], result["encoded"]) == (4000, True, 600)
    assert main([*arguments(corpus, index), "--quiet"]) == 0
    for part in ("cls", "forward", "texts", "digests.bin"):
        path = index / part
        real = sum(f.stat().st_size for f in [path, *path.rglob("*")] if f.is_file())
        assert result["bytes"][part] == pytest.approx(real, rel=0.1), part
    assert result["machines"][0]["machine"] == "this machine"
    assert {row["machine"] for row in result["machines"][1:]} == {machine.name for machine in read_machines()}
    assert main(asked[:-1]) == 0
    shown = capsys.readouterr().out
    assert "4,000 documents of" in shown
    assert "8 x H100" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[machine]]\nname = 'a'\n", "no 'devices'; expected [[machine]] with name, devices, times and price"),
        ("machine = 3", "expected [[machine]]"),
        ("[[machine]\n", "expected [[machine]]"),
        ("[[machine]]\nname='a'\ndevices=0\ntimes=1\nprice=1", "machine 'a': devices, times and host must be positive"),
    ],
)
def test_a_list_of_machines_of_another_form(tmp_path, encode, text, message):
    corpus, machines = write_corpus(tmp_path / "c.jsonl", 10), tmp_path / "machines.toml"
    machines.write_text(text)
    status, said = encode(corpus, tmp_path / "I", "--estimate", "--machines", machines)
    assert status == 2
    assert message in said
    assert said.count("\n") == 1


def test_a_collection_of_one_document_cannot_be_extrapolated(tmp_path, encode):
    status, said = encode(write_corpus(tmp_path / "c.jsonl", 1), tmp_path / "I", "--estimate")
    assert (status, "has 1 document; --estimate needs two" in said) == (2, True)


def test_options_of_the_plan_need_it(tmp_path, encode, corpus):
    assert "--sample applies only with --estimate" in encode(corpus, tmp_path / "I", "--sample", 9)[1]
