"""What a training job leaves besides the weights: the model card, the log with its plots, and an upload to the hub."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from matplotlib.figure import Figure

from dupmae_ir import __version__, tables
from dupmae_ir.console import one_line, say
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, UsageError
from dupmae_ir.io.jobs import Job
from dupmae_ir.training.trained import LOG, TENSORBOARD, read_log

CARD = "README.md"
BASES = {"minilm": "sentence-transformers/all-MiniLM-L6-v2", "default": "dupmae_ir/default_model"}
"""Names of English models that come with packages -> what a card calls them."""
KEPT = "training"
"""Folder inside a trained model: log and plots."""
RETRIEVER_USE = (
    "```sh\ndupmae-ir encode --corpus my-docs --index my-index --model FOLDER\n"
    'dupmae-ir search --index my-index --query "how do I rotate the logs?"\n```'
)


TITLES = {"loss": "loss: sum of all terms", "mrr": "MRR@10 on dev pairs"}
NOTHING: Mapping[str, float] = MappingProxyType({})


def write_report(
    made: Path,
    job: Job,
    result: Mapping[str, object],
    title: str,
    what: str,
    use: str = RETRIEVER_USE,
    log_folder: str = KEPT,
) -> None:
    """Write the model card, the log and its plots into ``made``, a model that ``job`` is about to publish.

    Args:
        made: the model folder.
        job: the job, with its log in the work folder.
        result: counts and scores.
        title: heading of the card.
        what: one sentence that describes the model.
        use: Markdown: how it is used; FOLDER stands for its folder.
        log_folder: folder in ``made`` for the log and the plots.
    """
    work, folder = job.work, made / log_folder
    folder.mkdir(parents=True, exist_ok=True)
    if (work / LOG).is_file():
        shutil.copy(work / LOG, folder / LOG)
    if (work / TENSORBOARD).is_dir():
        shutil.copytree(work / TENSORBOARD, folder / TENSORBOARD, dirs_exist_ok=True)
    before = result.get("before")
    plot_log(
        read_log(work / LOG),
        folder / "losses.png",
        job.target.name,
        before if isinstance(before, dict) else {},
    )
    curves = (
        f"![Losses by update]({log_folder}/losses.png)\n\n"
        if (folder / "losses.png").is_file()
        else ""
    )
    curves += f"`{log_folder}/log.jsonl` has the values."
    (made / CARD).write_text(card_text(job, result, title, what, use, curves), encoding="utf-8")


def card_text(
    job: Job, result: Mapping[str, object], title: str, what: str, use: str, curves: str
) -> str:
    """The model card in Markdown, with the metadata that the Hugging Face hub reads; equal jobs have equal cards."""
    tags = ["information-retrieval", "sentence-similarity", "dupmae-ir", job.command]
    base = str(job.settings.get("model") or "")
    facts = [f"base_model: {json.dumps(BASES.get(base, base))}"] if base else []
    facts += ["language: en"] if base in BASES else []
    facts += [
        "license: other",
        "license_name: those-of-the-base-model-and-of-the-data",
        "pipeline_tag: feature-extraction",
    ]
    data = [
        [name, _value(job.settings.get(name)), f"`{digest[:16]}`"]
        for name, digest in job.inputs.items()
    ]
    scores = [[name, _value(value)] for name, value in _flat(result) if value is not None]
    settings = [[f"`{name}`", _value(value)] for name, value in job.settings.items()]
    parts = [
        "\n".join(["---", *facts, "tags:", *(f"- {tag}" for tag in tags), "---"]),
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


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """(name, value) of nested mappings; names are joined by spaces."""
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        words = f"{prefix}{name}".replace("_", " ")
        rows += _flat(value, f"{words} ") if isinstance(value, Mapping) else [(words, value)]
    return rows


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return " ".join(map(_value, value))
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.split())


def plot_log(
    rows: Iterable[Mapping[str, float]],
    path: str | Path,
    title: str,
    before: Mapping[str, float] = NOTHING,
) -> None:
    """Write an image with one small plot per loss over the updates, training in grey, held-out data in blue, and one of
    MRR@10 on dev pairs, with lines for the models ``before`` the training.

    Writes nothing where ``rows`` (of :func:`~dupmae_ir.training.trained.read_log`) have neither.
    """
    rows = list(rows)
    names = list(
        dict.fromkeys(k for row in rows for k in row if k == "loss" or k.startswith("loss_"))
    )
    if any("eval_mrr" in row for row in rows):
        names.insert(0, "mrr")
    if not names:
        return
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4 * columns, 2.6 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        for key, colour, label in (
            (name, "0.6", "training"),
            (f"eval_{name}", "tab:blue", "held out"),
        ):
            points = [(row["step"], row[key]) for row in rows if key in row]
            if points:
                axis.plot(
                    *zip(*points, strict=True), color=colour, label=label, marker="o", markersize=3
                )
        for style, (model, value) in zip(
            (":", "--"), before.items() if name == "mrr" else (), strict=False
        ):
            axis.axhline(value, color="0.3", linestyle=style, label=model)
        axis.set_title(
            TITLES.get(name) or name.removeprefix("loss_").replace("_", " "), fontsize=10
        )
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("updates")
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def push(folder: str | Path, name: str | None, quiet: bool = False) -> None:
    """Upload the files of ``folder`` to the model repository ``name``, which is created as a private one if need be.

    Does nothing without a name. The token is huggingface_hub's own (``hf auth login``, or HF_TOKEN). Raises
    :class:`UsageError` for an invalid name or a missing right, and :class:`EnvironmentProblem` without a network; the
    folder is complete in both cases, and the same command uploads it again.
    """
    if not name:
        return
    # Imported here because it takes a third of a second, and only this needs it.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        api = HfApi()
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="dupmae-ir: the trained model"
        )
    except Exception as e:
        status = (
            e.response.status_code
            if isinstance(e, HfHubHTTPError) and e.response is not None
            else None
        )
        kind: type[DupmaeError] = UsageError
        if isinstance(e, HFValidationError):
            problem = f"not a name of a repository ({one_line(e, 150)})"
        elif isinstance(e, LocalTokenNotFoundError):
            problem = "no token; log in with hf auth login or set HF_TOKEN"
        elif status in (401, 403):
            problem = "the hub refused the token; log in with hf auth login or set HF_TOKEN to one that may write"
        elif isinstance(e, HfHubHTTPError):
            kind, problem = EnvironmentProblem, f"the hub answered {one_line(e, 150)}"
        elif isinstance(e, OSError) or type(e).__module__.startswith(
            ("httpx", "requests", "urllib3")
        ):
            kind, problem = EnvironmentProblem, f"no connection to the hub ({one_line(e, 150)})"
        else:
            raise
        done = f"{folder} is complete; run the same command to push again"
        raise kind(f"`push_to_hub` {name}: {problem}; {done}") from None
    say(f"pushed to {address}", quiet)
