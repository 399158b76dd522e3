"""The device of a training job and its ``transformers.TrainingArguments``, built in one place for all commands."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
from accelerate import PartialState
from transformers import TrainingArguments

from dupmae_ir.device import pick_device, pick_dtype
from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.training.config import SERVICES, TrainerOptions

SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
"""What ``accelerate launch`` sets for FSDP and DeepSpeed."""


def training_device(device: str) -> torch.device:
    """The device of ``--device``; ``auto`` is a CUDA device if there is one, else the CPU.

    Raises :class:`UsageError` for a device that is absent, and for ``cuda:N``: processes are assigned to GPUs by rank.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen, _ = pick_device(device)
    if chosen.type == "cuda" and chosen.index is not None:
        raise UsageError(f"`device` {device}: use `device` cuda and set CUDA_VISIBLE_DEVICES={chosen.index}")
    return chosen


def process_state(options: TrainerOptions) -> PartialState:
    """This process's rank among the processes of ``torchrun``, if it was started by it.

    Raises, before anything is read, :class:`EnvironmentProblem` where a service of ``--report-to`` is not installed and
    :class:`UsageError` where ``accelerate launch`` asks for sharded weights.
    """
    for service in SERVICES:
        if service in options.report_to and importlib.util.find_spec(service) is None:
            raise EnvironmentProblem(f"`report_to` {service} needs the package {service}: pip install {service}")
    for name in SHARDING:
        if os.environ.get(name, "").lower() in ("1", "true", "yes"):
            raise UsageError(
                f"{name} is set: weights are not sharded among processes; encoders of this size fit on each device. "
                "Use torchrun, or accelerate launch with multi_gpu"
            )
    return PartialState(cpu=training_device(options.device).type == "cpu")


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
    return TrainingArguments(
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
        # The work folder of models/mine is models/.mine.work.
        run_name=Path(work).name.removeprefix(".").removesuffix(".work"),
        use_cpu=on_cpu,
        bf16=pick_dtype(options.dtype, device)[0] is torch.bfloat16,
        dataloader_num_workers=options.workers,
        ddp_backend="gloo" if on_cpu and PartialState().num_processes > 1 else None,
        logging_steps=options.log_steps,
        save_steps=options.save_steps,
        save_total_limit=options.keep,
        eval_steps=options.eval_steps,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        report_to=[name for name in options.report_to if name != "none"],
        disable_tqdm=True,
    )
