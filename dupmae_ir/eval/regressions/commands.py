"""The commands of a case: index, search and evaluate, as configurations to run and as lines to type."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dupmae_ir.config import flags, from_mapping
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.eval.regressions.cases import ACCURACY, Case, dependencies
from dupmae_ir.eval.regressions.workspace import TINY, CollectionFiles, Workspace
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.search.config import SearchConfig

VERBS = {EncodeConfig: "encode", Bm25Config: "index bm25", SearchConfig: "search"}


@dataclass(frozen=True)
class CaseCommands:
    """The configurations of a case's two commands."""

    index: EncodeConfig | Bm25Config
    search: SearchConfig


def run_path(case: Case, workspace: Workspace) -> Path:
    """The case's run file."""
    return workspace.folder / "runs" / case.regression / f"{case.name}.trec"


def result_path(case: Case, workspace: Workspace) -> Path:
    """The case's result, beside its run file."""
    return run_path(case, workspace).with_suffix(".json")


def index_path(case: Case, workspace: Workspace) -> Path:
    """The case's index, shared by cases with the same collection, model and encode settings."""
    settings = hashlib.sha256(json.dumps(case.encode, sort_keys=True, default=list).encode()).hexdigest()[:6]
    collection = case.collection.replace(":", "-").replace("/", "-")
    return workspace.folder / "indexes" / f"{collection}--{case.model or 'bm25'}--{settings}"


def plan_commands(case: Case, workspace: Workspace, files: CollectionFiles | None = None) -> CaseCommands:
    """The commands of a case. ``files`` defaults to the collection's planned paths."""
    files = files or workspace.planned_collection(case.collection)
    return CaseCommands(_index_config(case, workspace, files), _search_config(case, workspace, files))


def command_line(config: EncodeConfig | Bm25Config | SearchConfig) -> str:
    """``config`` as the line to type."""
    return f"dupmae-ir {VERBS[type(config)]} {shlex.join(flags(config))}"


def command_lines(case: Case, workspace: Workspace) -> list[str]:
    """Every command of a case as lines to type, from download to evaluation."""
    lines = []
    if case.collection != TINY and ":" not in case.collection:
        lines.append(f"dupmae-ir collections get {case.collection}")
    lines += _model_lines(case, workspace)
    commands = plan_commands(case, workspace)
    lines.append(command_line(replace(commands.index, quiet=False)))
    lines.append(command_line(replace(commands.search, quiet=False)))
    return [*lines, _evaluation_line(case, workspace)]


def _index_config(case: Case, workspace: Workspace, files: CollectionFiles) -> EncodeConfig | Bm25Config:
    common = {"corpus": str(files.corpus), "index": str(index_path(case, workspace)), "quiet": workspace.quiet}
    if case.mode == "bm25":
        return from_mapping(Bm25Config, {**case.encode, **common})
    model = workspace.model_folder(case.model)
    settings: dict[str, Any] = {"model": str(model) if model else None, "threads": workspace.threads}
    if not workspace.models[case.model].embedded:
        # The papers' settings for the collection. The embedded model has its own, for every collection.
        settings |= {"document_length": files.document_length, "title_separator": files.title_separator}
    return from_mapping(EncodeConfig, {**settings, **case.encode, **common})


def _search_config(case: Case, workspace: Workspace, files: CollectionFiles) -> SearchConfig:
    search = dict(case.search)
    if files.query_length and case.mode != "bm25":
        search["query_length"] = max(search.get("query_length") or 0, files.query_length)
    settings = {
        "remove_query": files.remove_query,
        "threads": workspace.threads,
        **search,
        case.mode: True,
        "index": [str(index_path(case, workspace))],
        "topics": str(files.queries),
        "output": str(run_path(case, workspace)),
        "quiet": workspace.quiet,
        "qrels": None if files.answers else str(files.qrels(case.test)),
    }
    return from_mapping(SearchConfig, settings)


def _model_lines(case: Case, workspace: Workspace) -> Iterator[str]:
    for name in dependencies(case.model, workspace.models, workspace.references) if case.model else ():
        model = workspace.models[name]
        if model.files:
            folder = workspace.model_folder(name)
            yield f"# {model.title}: {len(model.files)} files of {model.url}, into {folder}"
        elif model.recipe:
            steps = workspace.steps(model)
            yield from (f"dupmae-ir {step.command} {shlex.join(flags(step.config))}" for step in steps)


def _evaluation_line(case: Case, workspace: Workspace) -> str:
    files, run = workspace.planned_collection(case.collection), run_path(case, workspace)
    if files.answers:
        depths = " ".join(m.removeprefix(ACCURACY) for m in case.all_measures)
        return f"dupmae-ir eval.answers --run {run} --answers {files.answers} --corpus {files.corpus} -k {depths}"
    measures = " ".join(map(shlex.quote, case.all_measures))
    return f"dupmae-ir eval --qrels {files.qrels(case.test)} {run} -m {measures}"
