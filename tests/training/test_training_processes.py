"""Several processes of one training: how they share an update, how they are started, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

import torch
from safetensors.torch import load_file
from support.rerank_samples import ROOT
from support.stage_samples import stage_flags, write_stage
from transformers import TrainingArguments

from dupmae_ir.errors import TrainingFailed, UsageError
from dupmae_ir.finetune.__main__ import main
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.training.config import TrainingOptions, share_of
from dupmae_ir.training.job import process_state
from dupmae_ir.training.launch import _report
from dupmae_ir.training.trainer import CheckedTrainer, SharedBatches, Sums


@pytest.mark.parametrize(
    ("sizes", "joint", "share"),
    [
        ((32, 8, 8), False, (32, 1)),  # RetroMAE's pre-training on eight GPUs
        ((1, 16, 8), False, (1, 2)),  # its teacher
        ((16, 6, 4), False, (8, 3)),  # two batches at a time, each divided among two
        ((16, 1, 4), False, (4, 1)),
        ((128, 4, 8), True, (16, 4)),  # in-batch negatives: batches stay what they are
    ],
)
def test_the_examples_of_an_update_stay_the_same(sizes, joint, share):
    batch_size, accumulate, processes = sizes
    own = share_of(batch_size, accumulate, processes, joint)
    assert own == share
    assert own.batch_size * own.accumulate * processes == batch_size * accumulate


@pytest.mark.parametrize(("joint", "possible"), [(False, "1, 2, 3, 4, 6, 12"), (True, "1, 2, 4")])
def test_an_update_that_cannot_be_shared_names_numbers_that_can(joint, possible):
    with pytest.raises(UsageError, match=f"`processes` 8 .*use one of {possible}$"):
        share_of(4, 3, 8, joint)


def test_the_commands_share_by_what_their_losses_compare():
    assert TrainingOptions(output="o", batch_size=8, accumulate=4, processes=4).share == (8, 1)
    assert FinetuneConfig(
        output="o", pairs=("p",), batch_size=8, accumulate=4, processes=4
    ).share == (2, 4)
    release = PretrainConfig(output="o", method="mlm", corpus=("c",), model="m", processes=2)
    assert release.share.batch_size * release.share.accumulate * 2 == release.recipe.batch_size * (
        release.recipe.accumulate or 1
    )


class Batches:
    batch_size = 4

    def __len__(self) -> int:
        return 3

    def __iter__(self):
        return iter([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])


def test_consecutive_processes_get_consecutive_pieces():
    pieces = SharedBatches(Batches(), 2)
    assert list(pieces) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert len(pieces) == 6


@pytest.mark.parametrize(("size", "fits"), [(4, True), (2, False)])
def test_the_effective_batch_is_printed_and_checked(size, fits, tmp_path, capsys):
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=size, max_steps=3, use_cpu=True
    )
    settings = {"model": torch.nn.Linear(2, 2), "args": arguments}
    if fits:
        CheckedTrainer(batches=Batches(), **settings)
        assert "4 examples per update = processes 1 x 4 x 1" in capsys.readouterr().err
    else:
        with pytest.raises(TrainingFailed, match="2 examples per update"):
            CheckedTrainer(batches=Batches(), **settings)


def test_losses_of_several_devices_are_averaged():
    """A wrapper that gathers gives a term one value per device."""
    sums = Sums()
    sums.add({"loss": torch.tensor([1.0, 3.0])})
    sums.add({"loss": torch.tensor(4.0)})
    assert sums.means()["loss"] == 3


@pytest.mark.parametrize(("started", "processes"), [("2", 1), ("2", 4), (None, 2)])
def test_another_number_of_processes_is_refused(started, processes, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if started:
        monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(
        UsageError, match=f"{started or 1} processes were started .*`processes` is {processes}"
    ):
        process_state(TrainingOptions(output="o", device="cpu", processes=processes))


def test_each_process_needs_a_gpu(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UsageError, match="2 processes on a machine with 1 GPUs"):
        process_state(TrainingOptions(output="o", processes=2))


def test_a_command_is_launched_with_its_own_words_once(monkeypatch, tmp_path):
    """A process of the launcher is not launched again: it trains, and there refuses a model that is not there."""
    launched = []
    monkeypatch.setattr(
        "dupmae_ir.training.launch.launch", lambda *words: launched.append(words) or 5
    )
    words = [
        "--pairs",
        "p",
        "--model",
        str(tmp_path),
        "--output",
        str(tmp_path / "o"),
        "--processes",
        "2",
    ]
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(words) == 5
    assert launched == [("finetune", words, 2)]
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(words) == 2
    assert len(launched) == 1


def test_errors_are_reported_once(tmp_path, capsys):
    for rank, last in ((1, "dupmae-ir finetune: no such file"), (2, "out of memory")):
        path = tmp_path / "run" / "attempt_0" / str(rank) / "stderr.log"
        path.parent.mkdir(parents=True)
        path.write_text(f"a warning\n{last}\n")
    assert _report({0: 2, 1: 2}, tmp_path) == 2
    assert capsys.readouterr().err == ""
    assert _report({0: 1, 2: 1}, tmp_path) == 1
    assert _report({1: -9}, tmp_path) == 1
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "out of memory",
        "no such file",
    ]


def trained(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.nightly
def test_signals_reach_all_processes_and_the_job_resumes(tmp_path):
    """Ctrl-C, then a kill of the launcher that leaves it no time; the third start trains to the undisturbed weights."""
    write_stage(tmp_path)
    alike = {
        "dropout": 0.1,
        "steps": 60,
        "save_steps": 4,
        "log_steps": 4,
        "device": "cpu",
        "processes": 2,
    }
    command = [sys.executable, "-m", "dupmae_ir.finetune"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = tmp_path / "whole"
    output = tmp_path / "stopped"
    work = tmp_path / ".stopped.work"
    subprocess.run(
        [*command, *stage_flags(tmp_path, whole, **alike)], cwd=ROOT, env=environment, check=True
    )
    words = [*command, *stage_flags(tmp_path, output, **alike)]
    for number, (sign, status) in enumerate(((signal.SIGINT, 130), (signal.SIGKILL, -9)), 1):
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda n=number: saved(work) >= 8 * n)
        children = workers(process.pid)
        assert len(children) == 2
        process.send_signal(sign)
        _, err = process.communicate(timeout=60)
        assert process.returncode == status
        assert err.count("interrupted") == (1 if sign == signal.SIGINT else 0)
        wait_until(lambda pids=children: not any(alive(pid) for pid in pids))
    assert not output.exists()
    subprocess.run(words, cwd=ROOT, env=environment, check=True)
    ours = trained(whole)
    theirs = trained(output)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def saved(work: Path) -> int:
    return max(
        (int(p.parent.name[11:]) for p in work.glob("checkpoint-*/trainer_state.json")), default=0
    )


def workers(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.is_file() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(ready) -> None:
    end = time.monotonic() + 100
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)
