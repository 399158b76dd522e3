"""What a training job leaves besides the weights: the model card, the log with its plots, and an upload to the hub."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dupmae_ir import __version__, tables
from dupmae_ir.console import one_line, say
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, UsageError
from dupmae_ir.io.jobs import Job
from dupmae_ir.training.trained import LOG, TENSORBOARD, read_log

CARD = "README.md"
PUBLIC_NAMES = {
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "default": "dupmae_ir/default_model",
}
"""Names of English models that come with packages -> what a card calls them."""
KEPT = "training"
"""Folder inside a trained model with its log and plots."""
RETRIEVER_USE = (
    "```sh\ndupmae-ir encode --corpus my-docs --index my-index --model FOLDER\n"
    'dupmae-ir search --index my-index --query "how do I rotate the logs?"\n```'
)
PLOT_TITLES = {"loss": "loss: sum of all terms", "mrr": "MRR@10 on dev pairs"}
NO_SCORES: Mapping[str, float] = MappingProxyType({})


def write_report(
    output_dir: Path,
    job: Job,
    result: Mapping[str, object],
    title: str,
    what: str,
    use: str = RETRIEVER_USE,
    log_folder: str = KEPT,
) -> None:
    """Write the model card, the log and its plots into ``output_dir``, a model that ``job`` is about to publish.

    Args:
        output_dir: the model folder.
        job: the job, with its log in the work folder.
        result: counts and scores.
        title: heading of the card.
        what: one sentence that describes the model.
        use: Markdown: how it is used; FOLDER stands for its folder.
        log_folder: folder in ``output_dir`` for the log and the plots.
    """
    work = job.work
    folder = output_dir / log_folder
    plot = folder / "losses.png"
    folder.mkdir(parents=True, exist_ok=True)
    if (work / LOG).is_file():
        shutil.copy(work / LOG, folder / LOG)
    if (work / TENSORBOARD).is_dir():
        shutil.copytree(work / TENSORBOARD, folder / TENSORBOARD, dirs_exist_ok=True)
    before = result.get("before")
    if not isinstance(before, dict):
        before = {}
    plot_log(read_log(work / LOG), plot, job.target.name, before)
    curves = f"`{log_folder}/log.jsonl` has the values."
    if plot.is_file():
        curves = f"![Losses by update]({log_folder}/{plot.name})\n\n{curves}"
    card = card_text(job, result, title, what, use, curves)
    (output_dir / CARD).write_text(card, encoding="utf-8")


def card_text(
    job: Job, result: Mapping[str, object], title: str, what: str, use: str, curves: str
) -> str:
    """The model card in Markdown, with the metadata that the Hugging Face hub reads; equal jobs have equal cards."""
    tags = ["information-retrieval", "sentence-similarity", "dupmae-ir", job.command]
    base = str(job.settings.get("model") or "")
    metadata = []
    if base:
        metadata.append(f"base_model: {json.dumps(PUBLIC_NAMES.get(base, base))}")
    if base in PUBLIC_NAMES:
        metadata.append("language: en")
    metadata += [
        "license: other",
        "license_name: those-of-the-base-model-and-of-the-data",
        "pipeline_tag: feature-extraction",
    ]
    metadata.append("tags:")
    for tag in tags:
        metadata.append(f"- {tag}")
    data = []
    for name, digest in job.inputs.items():
        data.append([name, _cell(job.settings.get(name)), f"`{digest[:16]}`"])
    scores = []
    for name, value in _flatten(result):
        if value is not None:
            scores.append([name, _cell(value)])
    settings = [[f"`{name}`", _cell(value)] for name, value in job.settings.items()]
    parts = [
        "\n".join(["---", *metadata, "---"]),
        f"# {title}",
        f"{what} Made by `dupmae-ir {job.command}` {__version__}; the record is in the same folder.",
        f"## Use\n\n{use}",
        "## Data\n\nWhat it was made from, with the first digits of each SHA-256. Its licences apply.",
        tables.markdown(["input", "name", "digest"], data, 3),
        f"## Curves\n\n{curves}",
        "## Scores and counts",
        tables.markdown(["", "value"], scores, 2),
        "## Settings",
        tables.markdown(["setting", "value"], settings, 2),
    ]
    return "\n\n".join(parts) + "\n"


def _flatten(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """(name, value) of nested mappings; names are joined by spaces."""
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        words = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{words} ")
        else:
            rows.append((words, value))
    return rows


def _cell(value: object) -> str:
    """A value as one line of text for a table."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return " ".join(map(_cell, value))
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.split())


def plot_log(
    rows: Iterable[Mapping[str, float]],
    path: str | Path,
    title: str,
    before: Mapping[str, float] = NO_SCORES,
) -> None:
    """Write an image with one small plot per loss over the updates, training in grey, held-out data in blue, and one of
    MRR@10 on dev pairs, with lines for the models ``before`` the training.

    Writes nothing if ``rows`` (of :func:`~dupmae_ir.training.trained.read_log`) have neither.
    """
    rows = list(rows)
    names = _plotted_names(rows)
    if not names:
        return
    column_count = min(3, len(names))
    row_count = math.ceil(len(names) / column_count)
    figure = Figure(figsize=(4 * column_count, 2.6 * row_count), layout="constrained")
    axes = figure.subplots(row_count, column_count, squeeze=False)
    # Not strict: the last row of the grid may have places without a curve.
    for axis, name in zip(axes.flat, names, strict=False):
        _plot_curve(axis, rows, name, "0.6", "training")
        _plot_curve(axis, rows, f"eval_{name}", "tab:blue", "held out")
        if name == "mrr":
            for style, (model, score) in zip((":", "--"), before.items(), strict=False):
                axis.axhline(score, color="0.3", linestyle=style, label=model)
        plot_title = PLOT_TITLES.get(name) or name.removeprefix("loss_").replace("_", " ")
        axis.set_title(plot_title, fontsize=10)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("updates")
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def _plotted_names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """``mrr`` if dev pairs were evaluated, then the names of the losses in order of appearance."""
    names: list[str] = []
    if any("eval_mrr" in row for row in rows):
        names.append("mrr")
    for row in rows:
        for name in row:
            is_loss = name == "loss" or name.startswith("loss_")
            if is_loss and name not in names:
                names.append(name)
    return names


def _plot_curve(
    axis: Axes, rows: Sequence[Mapping[str, float]], name: str, colour: str, label: str
) -> None:
    """The values of ``name`` over the updates; nothing if no row has one."""
    steps = []
    values = []
    for row in rows:
        if name in row:
            steps.append(row["step"])
            values.append(row[name])
    if steps:
        axis.plot(steps, values, color=colour, label=label, marker="o", markersize=3)


def push(folder: str | Path, name: str | None, quiet: bool = False) -> None:
    """Upload the files of ``folder`` to the model repository ``name``, which is created as a private one if need be.

    Does nothing without a name. The token is that of huggingface_hub (``hf auth login``, or HF_TOKEN). Raises
    :class:`UsageError` for an invalid name or a missing right, and :class:`EnvironmentProblem` without a network; the
    folder is complete in both cases, and the same command uploads it again.
    """
    if not name:
        return
    # Imported here because it takes a third of a second, and only pushing needs it.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        api = HfApi()
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="dupmae-ir: the trained model"
        )
    except Exception as e:
        status = None
        if isinstance(e, HfHubHTTPError) and e.response is not None:
            status = e.response.status_code
        kind: type[DupmaeError] = UsageError
        if isinstance(e, HFValidationError):
            problem = f"not a name of a repository ({one_line(e, 150)})"
        elif isinstance(e, LocalTokenNotFoundError):
            problem = "no token; log in with hf auth login or set HF_TOKEN"
        elif status in (401, 403):
            problem = "the hub refused the token; log in with hf auth login or set HF_TOKEN to one that may write"
        elif isinstance(e, HfHubHTTPError):
            kind = EnvironmentProblem
            problem = f"the hub answered {one_line(e, 150)}"
        elif isinstance(e, OSError) or type(e).__module__.startswith(
            ("httpx", "requests", "urllib3")
        ):
            kind = EnvironmentProblem
            problem = f"no connection to the hub ({one_line(e, 150)})"
        else:
            raise
        done = f"{folder} is complete; run the same command to push again"
        raise kind(f"`push_to_hub` {name}: {problem}; {done}") from None
    say(f"pushed to {address}", quiet)
