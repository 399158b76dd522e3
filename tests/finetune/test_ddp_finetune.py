"""A stage in processes of its own: killed without warning it goes on to the bit; two processes train as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

import torch
from support.rerank_samples import ROOT, kill_when
from support.stage_samples import distilling, stage_flags, write_pairs, write_stage

from dupmae_ir.finetune.__main__ import main
from dupmae_ir.models.checkpoints.loading import load_model

COMMAND = "import sys; from dupmae_ir.finetune.__main__ import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def folder(tmp_path):
    return write_stage(tmp_path)


def weights(output):
    return load_model(output)[0].state_dict()


def losses(output):
    log = json.loads((output / "training.json").read_text())["log"]
    return [{k: v for k, v in row.items() if k.startswith("loss")} for row in log if "loss" in row]


@pytest.mark.nightly
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_killed_and_resumed_is_the_undisturbed_run(stage, folder, tmp_path):
    changes = {"encoder": "mote", "grad_cache": 5}
    if stage == 1:
        changes = {"pairs": write_pairs(folder), "mined": None, "group_size": 3}
    if stage == 3:
        changes = {**distilling(folder), "encoder": "untied", "accumulate": 2}
    # Dropout, so that the state of the random numbers counts; many steps, so that the kill comes in time.
    changes |= {"dropout": 0.1, "steps": 40, "save_steps": 4, "log_steps": 4}
    assert main(stage_flags(folder, tmp_path / "whole", **changes)) == 0
    work = tmp_path / ".killed.work"
    kill_when(
        COMMAND, stage_flags(folder, tmp_path / "killed", **changes), lambda: reached(work, 8)
    )
    assert not (tmp_path / "killed").exists()
    assert main(stage_flags(folder, tmp_path / "killed", **changes)) == 0
    ours = weights(tmp_path / "whole")
    theirs = weights(tmp_path / "killed")
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


def reached(work, step):
    return any(
        int(p.parent.name[11:]) >= step for p in work.glob("checkpoint-*/trainer_state.json")
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("encoder", "chunk"), [("tied", 0), ("mote", 4), ("untied", 0)])
def test_two_processes_share_the_batches_of_one(encoder, chunk, folder, tmp_path):
    """Negatives, teacher's scores and FLOPS of both; the batches of two are the halves of one's."""
    changes = {**distilling(folder), "contrastive_weight": 0.3}
    if encoder == "untied":  # pairs, whose batches have neighbours, and two batches an update
        changes = {"pairs": write_pairs(folder), "mined": None, "group_size": 3, "accumulate": 2}
    changes |= {
        "encoder": encoder,
        "learning_rate": 1e-4,
        "grad_cache": chunk,
        "batch_size": 12,
        "device": "cpu",
    }
    assert main(stage_flags(folder, tmp_path / "one", **changes)) == 0
    command = [
        sys.executable,
        "-m",
        "dupmae_ir.finetune",
        *stage_flags(folder, tmp_path / "two", **changes),
    ]
    command += ["--processes", "2"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for one, two in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    one, two, base = (weights(tmp_path / n) for n in ("one", "two", "base"))
    # Adam divides a weight's gradient by its own size, so that rounding counts where it is nearly zero.
    starts = {k: base[name] for k in one if (name := k.removeprefix("document.")) in base}
    moved = max(float((one[k] - start).abs().max()) for k, start in starts.items())
    apart = [float((one[k] - two[k]).abs().mean()) for k in one]
    assert max(apart) < 0.02 * moved
