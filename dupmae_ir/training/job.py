"""The job of a training command, for all its processes: its device, its arguments for transformers, and its record.

The record is ``training.json`` inside the model folder.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from dupmae_ir.config import to_dict
from dupmae_ir.console import say
from dupmae_ir.device import keep_few_kernels, pick_device, pick_dtype
from dupmae_ir.errors import CheckpointError, EnvironmentProblem, InputError, UsageError
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import combined_digest, sha256_file
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.training.config import SERVICES, TrainerOptions
from dupmae_ir.training.launch import end_with_launcher
from dupmae_ir.training.report import push

RECORD = "training.json"


def deciding_settings(
    options: TrainerOptions, processes: int, paths: tuple[str, ...] = ()
) -> dict[str, object]:
    """The settings that decide the weights, for a :class:`~dupmae_ir.io.jobs.Job`, without those that are None.

    Args:
        options: the command's options.
        processes: number of processes, which share the examples of every update.
        paths: fields with files and folders, recorded by their last name, as the record travels with the model.
    """
    without_effect = set()
    for field in fields(options):
        if field.metadata["group"] in ("output", "compute"):
            without_effect.add(field.name)
    settings: dict[str, Any] = {}
    for name, value in to_dict(options).items():
        # Of the options of computing, the weights depend on the dtype.
        if name not in without_effect or name == "dtype":
            settings[name] = value
    for name in paths:
        value = settings[name]
        if isinstance(value, list):
            settings[name] = [Path(path).name for path in value]
        elif value:
            settings[name] = Path(value).name
    # `auto` is recorded as the dtype that this hardware has.
    dtype, _ = pick_dtype(options.dtype, training_device(options.device))
    settings["dtype"] = str(dtype).removeprefix("torch.")
    settings["processes"] = processes
    return {name: value for name, value in settings.items() if value is not None}


def input_digests(
    files: Mapping[str, str | tuple[str, ...] | None], folders: Mapping[str, str | Path | None]
) -> dict[str, str]:
    """One sha256 per field over the files that it names, or over the model folder; fields without a value are left out.

    Raises :class:`InputError` for a missing file, :class:`CheckpointError` for a missing folder.
    """
    digests = {}
    for name, value in files.items():
        paths = (value,) if isinstance(value, str) else value or ()
        for path in paths:
            if not Path(path).exists():
                raise InputError(f"{path}: no such file or folder")
        if paths:
            digests[name] = combined_digest(map(_contents_digest, paths))
    for name, folder in folders.items():
        if not folder:
            continue
        if not Path(folder).is_dir():
            raise CheckpointError(f"{folder}: no such model folder; nothing is downloaded")
        digests[name] = folder_digest(folder)
    return digests


def _contents_digest(path: str) -> str:
    """The digest of a file, or of all files in a folder, such as a saved dataset."""
    if not Path(path).is_dir():
        return sha256_file(path)
    files = sorted(file for file in Path(path).rglob("*") if file.is_file())
    return combined_digest(map(sha256_file, files))


def training_job(
    options: TrainerOptions,
    command: str,
    settings: Mapping[str, Any],
    inputs: Callable[[], Mapping[str, str]],
    state: PartialState,
) -> DistributedJob:
    """The job of a training command, to be entered by all of its processes.

    Args:
        options: the command's options.
        command: verb of the command.
        settings: what decides the weights (:func:`deciding_settings`).
        inputs: digests of what is read; a function, since only the main process needs them.
        state: this process among the others (:func:`process_state`).
    """
    keep_few_kernels()
    quiet = options.quiet or not state.is_main_process
    job = Job(options.output, command, settings, inputs, record=RECORD, quiet=quiet)
    return DistributedJob(job, state)


class DistributedJob:
    """A job that the main process enters, and whose results all processes receive.

    Used like a :class:`~dupmae_ir.io.jobs.Job`; an error in the main process ends the others through the launcher.
    """

    def __init__(self, job: Job, state: PartialState) -> None:
        self.job = job
        self.state = state

    def __enter__(self) -> DistributedJob:
        if self.state.is_main_process:
            self.job.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.state.is_main_process:
            self.job.__exit__(kind, error, trace)

    @property
    def quiet(self) -> bool:
        """Whether this process prints nothing."""
        return self.job.quiet

    def finished(self) -> dict[str, object] | None:
        """The result of an earlier job, in every process; see :meth:`Job.finished`."""
        result = None
        if self.state.is_main_process:
            result = self.job.finished()
        results = [result]
        # Replaced in place: the list of the other processes gets the first one's result.
        broadcast_object_list(results)
        return results[0]

    def begin(self) -> Path:
        """The work folder, ready in every process; see :meth:`Job.begin`."""
        if self.state.is_main_process:
            self.job.begin()
        # The main process creates the folder; the others read its checkpoints.
        self.state.wait_for_everyone()
        return self.job.work

    def publish(
        self, model_folder: Path, result: Mapping[str, Any], extra: Mapping[str, Any] | None = None
    ) -> dict[str, object] | None:
        """:meth:`Job.publish` in the main process; None in the others."""
        if not self.state.is_main_process:
            return None
        return self.job.publish(model_folder, result, extra)

    def deliver(
        self, result: dict[str, object] | None, repository: str | None
    ) -> dict[str, object] | None:
        """``result`` in the main process, after the output is pushed to ``repository``, if one is named.

        None in the other processes. An output that an earlier job made is pushed as well.
        """
        if not self.state.is_main_process or result is None:
            return None
        push(self.job.target, repository, self.quiet)
        return result


SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
"""Environment variables that ``accelerate launch`` sets for FSDP and DeepSpeed."""


def training_device(device: str) -> torch.device:
    """The device of ``--device``; ``auto`` is a CUDA device if there is one, else the CPU.

    Raises :class:`UsageError` for a device that is absent, and for ``cuda:N``: processes are assigned to GPUs by rank.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    picked, _ = pick_device(device)
    if picked.type == "cuda" and picked.index is not None:
        raise UsageError(
            f"`device` {device}: use `device` cuda and set CUDA_VISIBLE_DEVICES={picked.index}"
        )
    return picked


def process_state(options: TrainerOptions) -> PartialState:
    """This process's rank among those that a launcher started; from then on it ends with the launcher.

    Raises, before anything is read, :class:`EnvironmentProblem` if a service of ``--report-to`` is not installed, and
    :class:`UsageError` if another number of processes was started, if this machine has fewer GPUs than processes, or if
    ``accelerate launch`` asks for sharded weights.
    """
    started = int(os.environ.get("WORLD_SIZE", 1))
    if started != options.processes:
        raise UsageError(
            f"{started} processes were started (WORLD_SIZE), but `processes` is {options.processes}"
        )
    for service in SERVICES:
        if service in options.report_to and importlib.util.find_spec(service) is None:
            raise EnvironmentProblem(
                f"`report_to` {service} needs the package {service}: pip install {service}"
            )
    for name in SHARDING:
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            raise UsageError(
                f"{name} is set: weights are not sharded among processes; encoders of this size fit on each device. "
                "Use `processes`, or accelerate launch with multi_gpu"
            )
    device = training_device(options.device).type
    if device == "cuda":
        gpus = torch.cuda.device_count()
        local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if local_processes > gpus:
            raise UsageError(
                f"{local_processes} processes on a machine with {gpus} GPUs; use {gpus}, or `device` cpu"
            )
    end_with_launcher()
    return PartialState(cpu=device == "cpu")


def training_arguments(
    options: TrainerOptions,
    work: str | Path,
    *,
    batch_size: int,
    accumulate: int,
    learning_rate: float,
    steps: int,
    evaluate: bool = False,
    evaluate_first: bool = False,
    find_unused_parameters: bool | None = None,
) -> TrainingArguments:
    """Arguments of Hugging Face's Trainer for a run of ``steps`` updates with checkpoints in ``work``.

    Args:
        options: the command's options.
        work: folder of the checkpoints and the log.
        batch_size: examples per step and process.
        accumulate: batches per update.
        learning_rate: peak of the linear schedule.
        steps: number of updates.
        evaluate: call ``Trainer.evaluate`` every ``options.eval_steps`` updates.
        evaluate_first: evaluate before the first update as well.
        find_unused_parameters: passed to DistributedDataParallel; None = transformers' choice.
    """
    device = training_device(options.device)
    on_cpu = device.type == "cpu"
    dtype, _ = pick_dtype(options.dtype, device)
    # "mine" for models/.mine.work
    run_name = Path(work).name.removeprefix(".").removesuffix(".work")
    ddp_backend = None
    if on_cpu and PartialState().num_processes > 1:
        ddp_backend = "gloo"
    arguments = TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        max_steps=steps,
        learning_rate=learning_rate,
        warmup_steps=round(options.warmup * steps),
        lr_scheduler_type="linear",
        max_grad_norm=options.clip,
        weight_decay=options.weight_decay,
        seed=options.seed,
        eval_strategy="steps" if evaluate else "no",
        eval_on_start=evaluate_first,
        ddp_find_unused_parameters=find_unused_parameters,
        run_name=run_name,
        use_cpu=on_cpu,
        bf16=dtype is torch.bfloat16,
        dataloader_num_workers=options.workers,
        ddp_backend=ddp_backend,
        logging_steps=options.log_steps,
        save_steps=options.save_steps,
        save_total_limit=options.keep,
        eval_steps=options.eval_steps,
        # transformers would log a finite mean in the place of a loss that is not; it must be seen to be refused.
        logging_nan_inf_filter=False,
        # Examples are not rows of columns: the collators make the batches.
        remove_unused_columns=False,
        report_to=[name for name in options.report_to if name != "none"],
        disable_tqdm=True,
    )
    return _without_data_parallel(arguments, options.quiet)


def _without_data_parallel(arguments: TrainingArguments, quiet: bool) -> TrainingArguments:
    """``arguments`` for one GPU per process: torch.nn.DataParallel would gather terms of losses into lists."""
    if arguments.n_gpu > 1:
        say(
            f"{arguments.n_gpu} GPUs are visible and one is used; --processes {arguments.n_gpu} uses all",
            quiet,
        )
        arguments._n_gpu = 1
    return arguments
