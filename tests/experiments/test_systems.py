"""The driver as it is started: a row from text to record, killed and not, and rows that need no training."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from prepare import prepare, pseudo_query, write_scratch
from rows import Experiment
from support.experiment_samples import a_record, write_base, write_data
from systems import Driver, half_bytes
from tables import score_table

from dupmae_ir.errors import InputError
from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.names import embedded_folder
from dupmae_ir.search.fusion import interpolate, rrf
from dupmae_ir.types import Hit

ROOT = Path(__file__).resolve().parents[2]


def command(folder, output, *rows):
    return [
        sys.executable,
        ROOT / "experiments" / "systems.py",
        "--budget",
        "smoke",
        "--data",
        folder / "data",
        "--output",
        folder / output,
        "--base",
        folder / "tiny",
        "--quiet",
        "--rows",
        *rows,
    ]


def environment():
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def timeless(value):
    """A record without its times."""
    if isinstance(value, dict):
        return {
            k: timeless(v)
            for k, v in value.items()
            if k != "seconds" and not k.endswith("per_second")
        }
    return [timeless(v) for v in value] if isinstance(value, list) else value


@pytest.fixture
def shared(tmp_path):
    write_data(tmp_path / "data")
    write_base(tmp_path / "tiny")
    return tmp_path


def test_data_is_written_once_and_for_one_budget(shared):
    experiment = Experiment.read("smoke", str(shared / "tiny"))
    folder = shared / "out"
    made = prepare(shared / "data", experiment.budget, experiment.base, folder)
    assert made["counts"] == {"texts": 60}
    rows = [json.loads(line) for line in (folder / "pretrain.jsonl").read_text().splitlines()]
    assert len(rows) == 60
    assert all(row["queries"][0] in row["text"] for row in rows)
    assert len((folder / "pairs.jsonl").read_text().splitlines()) == 24
    assert (folder / "cacm" / "qrels" / "test.tsv").is_file()
    assert (folder / "base" / "model.safetensors").is_file()
    before = (folder / "pretrain.jsonl").stat().st_mtime_ns
    assert prepare(shared / "data", experiment.budget, experiment.base, folder) == made
    assert (folder / "pretrain.jsonl").stat().st_mtime_ns == before
    with gzip.open(shared / "data" / "pretrain" / "xquad.txt.gz", "at") as f:
        f.write("one more line\n")
    with pytest.raises(InputError, match="made from other data"):
        prepare(shared / "data", experiment.budget, experiment.base, folder)
    (shared / "data" / "pretrain" / "xquad.txt.gz").unlink()
    with pytest.raises(InputError, match=r"xquad\.txt\.gz: no such file"):
        prepare(shared / "data", experiment.budget, experiment.base, shared / "other")


def test_the_scratch_model_has_the_architecture_but_not_the_weights_of_the_base(shared):
    state = torch.random.get_rng_state()
    for name in ("scratch", "again"):
        # The tiny base is itself seed 0 of its shape.
        write_scratch(shared / "tiny", shared / name, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert folder_digest(shared / "scratch") == folder_digest(shared / "again")
    base, scratch = (load_model(shared / name)[0].lm.state_dict() for name in ("tiny", "scratch"))
    assert {k: v.shape for k, v in base.items()} == {k: v.shape for k, v in scratch.items()}
    # Biases and gains start at 0 and 1 wherever they start.
    drawn = [k for k, v in scratch.items() if v.dim() == 2]
    assert drawn
    assert not any(torch.equal(base[k], scratch[k]) for k in drawn)
    assert load_model(shared / "scratch")[0].projection is None


def test_a_pseudo_query_is_a_sentence_of_its_text():
    chance = random.Random(0)
    text = "The cat sat on the mat. A dog runs over it! Yes."
    assert {pseudo_query(text, chance) for _ in range(50)} == {
        "The cat sat on the mat.",
        "A dog runs over it!",
    }
    assert pseudo_query("word " * 40, chance, words=5) == "word word word word word"


def test_half_bytes_equal_the_published_size(tmp_path):
    from dupmae_ir.models.checkpoints.saving import save_model

    folder = write_base(tmp_path / "tiny")
    save_model(tmp_path / "half", *load_model(folder)[:2], load_model(folder)[2], half=True)
    size = sum(p.stat().st_size for p in (tmp_path / "half").iterdir())
    assert half_bytes(folder) == pytest.approx(size, rel=0.1)


def test_the_runs_of_two_references_are_fused(shared):
    """BM25 and the vectors are measured already: their run files and scores are read, and nothing is searched."""
    driver = Driver(Experiment.read("smoke"), shared / "home", quiet=True)
    queries = [f"q{n}" for n in range(6)]
    runs = {
        "bm25": {
            q: [Hit(f"p{n:03}", 9.0), Hit("p021", 8.0), Hit("p022", 1.0)]
            for n, q in enumerate(queries)
        },
        "dense": {
            q: [Hit("p022", 0.9), Hit(f"p{n:03}", 0.8), Hit("p023", 0.1)]
            for n, q in enumerate(queries)
        },
    }
    for name in ("dev", "cacm"):
        shutil.copytree(shared / "data" / "cacm", driver.home / "data" / name)
        for kind, home in (
            ("bm25", driver.home / "eval" / "bm25"),
            ("dense", driver._eval(embedded_folder())),
        ):
            (home / name).mkdir(parents=True)
            (home / name / "scores.json").write_text("{}")
            write_run(home / name / f"{kind}.trec", runs[kind], "x")
    for row, fused in (
        ("fused-rrf", lambda first, second: rrf([first, second], 60)),
        ("fused-min-max", lambda first, second: interpolate(first, second, 0.5, normalize=True)),
    ):
        assert driver.run(driver.experiment.rows[row], 0)
        found = read_run(driver.home / "eval" / row / "cacm" / "fused.trec")
        for query in queries:
            wanted = fused(runs["dense"][query], runs["bm25"][query])
            assert [h.docid for h in found[query]] == [h.docid for h in wanted]
        record = json.loads(driver.record_path(driver.experiment.rows[row], 0).read_text())
        assert set(record["sets"]) == {"dev", "cacm"}
        assert record["sets"]["cacm"]["scores"]["fused"]["nDCG@10"] > 0.5
        assert "BM25 + its vectors" in score_table([record], ("references",), None, "nDCG@10")


def test_stage3_requires_the_records_of_all_methods(tmp_path):
    driver = Driver(Experiment.read("smoke"), tmp_path, quiet=True)
    systems = [r for r in driver.experiment.rows.values() if r.table == "systems"]
    driver.records.mkdir()
    for place, row in enumerate(systems):
        with pytest.raises(InputError, match=f"first run .*{systems[-1].name}"):
            driver.placed(1)
        driver.record_path(row, 0).write_text(json.dumps(a_record(row.name, dev=0.3 + place / 100)))
    assert [driver.placed(k).name for k in (1, 2)] == [systems[-1].name, systems[-2].name]


@pytest.mark.nightly
def test_a_killed_row_ends_with_the_record_of_an_uninterrupted_one(shared):
    """kill -9 in pre-training and in the first stage; the same command ends with the same record."""
    quiet = {"env": environment(), "stdout": subprocess.DEVNULL}
    subprocess.run(command(shared, "whole", "dupmae"), check=True, **quiet)
    for sign in ("pretrained/*/.model.work/checkpoint-*", "rows/*/.stage1.work/checkpoint-*"):
        victim = subprocess.Popen(
            command(shared, "killed", "dupmae"), start_new_session=True, **quiet
        )
        while not list((shared / "killed" / "smoke").glob(sign)):
            assert victim.poll() is None, f"it ended before {sign}"
            time.sleep(0.02)
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    subprocess.run(command(shared, "killed", "dupmae"), check=True, **quiet)
    whole, killed = (
        json.loads((shared / name / "smoke" / "records" / "dupmae.seed0.json").read_text())
        for name in ("whole", "killed")
    )
    assert timeless(whole) == timeless(killed)
    assert whole["tokens"] > 0
    assert (whole["updates"], set(whole["sets"])) == (4, {"dev", "cacm"})
    for found in whole["sets"].values():
        assert set(found["scores"]) == {"dense", "impact", "hybrid"}
        assert len(found["per_query"]["hybrid"]["nDCG@10"]) == len(found["queries"])
        mean = sum(found["per_query"]["hybrid"]["nDCG@10"]) / len(found["queries"])
        assert found["scores"]["hybrid"]["nDCG@10"] == pytest.approx(mean, abs=1e-5)
        assert found["index_bytes"]["hybrid"] > found["index_bytes"]["dense"] > 0
    assert not any(
        str(shared) in line.replace(str(shared / "tiny"), "") for line in whole["commands"]
    )


@pytest.mark.nightly
def test_references_and_rows_without_training(shared):
    """BM25, mean pooling, the embedded model, a cap and fewer bits on one; what is done is not done again."""
    names = ("bm25", "minilm", "embedded", "cap-32", "level-4")
    quiet = {"env": environment(), "stdout": subprocess.DEVNULL}
    subprocess.run(command(shared, "out", *names), check=True, **quiet)
    folder = shared / "out" / "smoke" / "records"
    made = {p.stem.partition(".")[0]: json.loads(p.read_text()) for p in folder.iterdir()}
    assert set(made) == {*names, "dupmae"}
    assert set(made["bm25"]["sets"]["cacm"]["scores"]) == {"bm25"}
    assert set(made["minilm"]["sets"]["cacm"]["scores"]) == {"dense"}
    assert set(made["embedded"]["sets"]["cacm"]["scores"]) == {"dense", "impact", "hybrid"}
    # Word lists of the stand-in are short: a cap of 32 terms changes nothing, fewer bits change impacts alone.
    dupmae, cap, level = (
        made[name]["sets"]["cacm"]["per_query"] for name in ("dupmae", "cap-32", "level-4")
    )
    assert cap == dupmae
    assert level["dense"] == dupmae["dense"]
    records = [json.loads(p.read_text()) for p in (shared / "out").rglob("cacm/**/meta.json")]
    scales = [
        meta["scale"] for meta in records if meta.get("scale", 255) != 255
    ]  # 255 is the embedded model's own
    assert max(scales) / min(scales) == pytest.approx(255 / 15)
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    subprocess.run(command(shared, "out", *names), check=True, **quiet)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before
