"""Runs one case: collection, model, index, search, measures; checks that index and run are the case's.

A case's commands are configurations, to run, and lines, to type.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dupmae_ir.collections import qrels_digest, topics_digest
from dupmae_ir.collections.prepared import Facts, differences, facts_of_test
from dupmae_ir.config import flags, from_mapping
from dupmae_ir.console import say
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import DupmaeError, EnvironmentProblem
from dupmae_ir.eval.answers import accuracy, read_answers
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.eval.regressions.cases import ACCURACY, Case
from dupmae_ir.eval.regressions.workspace import (
    SIDECAR,
    TINY,
    CollectionFiles,
    Workspace,
    code_digest,
    fingerprint,
    normal,
)
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.run import run_bm25
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.lines import json_record
from dupmae_ir.io.publishing import read_json_object, sha256_file, write_json
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import embedded_folder
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.run import run as search
from dupmae_ir.search.view.results import RunSummary
from dupmae_ir.types import Qrels, Run

SEARCH_KEYS = ("search", "test")
"""Entries of a key that determine a run but not the index."""
COMPARED_STATISTICS = ("documents", "dim", "postings", "sum_of_impacts", "scale")
"""Statistics compared with those of the accepted index."""
COUNTS = ("documents", "dim")
"""Statistics that are equal in every environment."""
DRIFT = 0.002
"""Relative difference allowed for impacts and scale in another environment, where rounding differs."""
MAX_NAMED = 3
"""Topics named in a problem."""
MAX_LEAKED_SHARE = 0.01
"""Share of the topics that may have the text of a training query: short web queries repeat."""


@dataclass(frozen=True)
class Result:
    """The outcome of a case, stored as a JSON file next to its run file."""

    case: str
    configuration: str = ""  #: digest of the case's settings at the time
    skipped: str = ""  #: why nothing was measured
    problems: tuple[str, ...] = ()  #: failed checks and errors
    values: Mapping[str, float] = field(default_factory=dict)  #: measure -> mean
    #: measure -> query id -> value
    per_query: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    index: Mapping[str, Any] = field(default_factory=dict)  #: statistics of the index
    #: digests of topics and judgements, by content
    inputs: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)  #: models given with --model -> folder
    #: digests of everything that determines the values
    key: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    run_sha256: str = ""
    stand_in: bool = False
    seconds: float = 0.0
    date: str = ""
    reused: bool = field(default=False, compare=False)  #: an earlier result with the same key
    #: what is wrong now with the index that a reused result was measured with
    index_damage: str = field(default="", compare=False)


def execute(case: Case, workspace: Workspace, accepted: Mapping[str, Any]) -> Result:
    """Run what is not done yet, check it, and measure. A case that cannot run here is skipped, with the reason.

    An earlier index or run is reused only if its key is the same (configuration, weights, data, code, environment)
    and its bytes have not changed. An index that fails its checks is not searched. ``accepted`` is the case's accepted
    block, whose index statistics are compared with those measured.
    """
    started = time.perf_counter()
    try:
        files = workspace.collection(case.collection)
        model = workspace.model(case.model) if case.model else None
    except EnvironmentProblem as e:
        return Result(case.id, skipped=str(e))
    except DupmaeError as e:
        return Result(case.id, problems=(str(e),))
    given = {}
    if case.model:
        for name in workspace.prepared(case.model):
            if name in workspace.given:
                given[name] = str(workspace.given[name])
    key = _key(case, workspace, files, model)
    if not workspace.fresh:
        earlier = _reusable(case, workspace, files, key)
        if earlier:
            return replace(earlier, given=given, index_damage=_index_damage(case, workspace))
    result = Result(
        case.id,
        configuration=case.configuration,
        key=key,
        given=given,
        environment=fingerprint(workspace.threads),
        stand_in=files.stand_in,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        # ``result`` is replaced after each step, so that an error keeps the problems of the steps before it.
        problems = tuple(input_problems(case, files))
        result = replace(result, inputs=input_digests(case, files), problems=problems)
        problems += tuple(leak_problems(case, workspace, files))
        result = replace(result, problems=problems)
        result = _index_and_search(case, workspace, files, result, accepted)
    except DupmaeError as e:
        result = replace(result, problems=(*result.problems, str(e)))
    result = replace(result, seconds=round(time.perf_counter() - started, 2))
    write_json(result_path(case, workspace), asdict(result))
    return result


def load_result(path: Path) -> Result | None:
    """The result stored at ``path``, or None if there is none."""
    if not path.is_file():
        return None
    names = {setting.name for setting in fields(Result)}
    row = json_record(path.read_text(encoding="utf-8"), str(path))
    values = {name: value for name, value in row.items() if name in names}
    values["problems"] = tuple(values["problems"])
    return Result(**values)


def input_digests(case: Case, files: CollectionFiles) -> dict[str, str]:
    """Digests of the topics and the judgements of a case, which do not depend on the files' format."""
    texts = {topic.qid: topic.text for topic in read_topics(files.queries)}
    if files.answers:
        judgements = sha256_file(files.answers)
    else:
        judgements = qrels_digest(read_qrels(files.qrels(case.test)))
    return {"topics": topics_digest(texts), "judgements": judgements}


def input_problems(case: Case, files: CollectionFiles) -> list[str]:
    """Differences of topics and judgements from the catalogue's counts and digests, wherever the files come from."""
    if files.stand_in or files.catalogued is None or case.test not in files.catalogued.tests:
        return []
    test = files.catalogued.tests[case.test]
    expected = replace(files.catalogued, documents=None, tests={case.test: test})
    topics = read_topics(files.queries)
    if files.answers:
        facts = facts_of_test(topics, {}, read_answers(files.answers))
    else:
        qrels = read_qrels(files.qrels(case.test))
        facts = facts_of_test(topics, qrels, qrels)
    problems = differences(expected, Facts(0, 0, {case.test: facts}, {}))
    return [f"{files.name}: {problem}" for problem in problems]


def leak_problems(case: Case, workspace: Workspace, files: CollectionFiles) -> Iterator[str]:
    """A problem if more test topics are among the queries of the model's training than share a text by chance."""
    training_queries = workspace.training_queries(case.model) if case.model else set()
    topics = read_topics(files.queries)
    leaked = [topic.qid for topic in topics if normal(topic.text) in training_queries]
    if len(leaked) > MAX_LEAKED_SHARE * len(topics):
        yield f"training: {len(leaked)} of {len(topics)} topics are among the training queries ({_first_names(leaked)})"


def changed_names(current: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """The entries of ``current`` that have another value in ``recorded``."""
    changed = []
    for name, value in current.items():
        if not _equal_as_json(value, recorded.get(name)):
            changed.append(name)
    return changed


def _index_and_search(
    case: Case,
    workspace: Workspace,
    files: CollectionFiles,
    result: Result,
    accepted: Mapping[str, Any],
) -> Result:
    commands = plan_commands(case, workspace, files)
    _build_index(commands.index, workspace, result.key)
    folder = index_path(case, workspace)
    statistics = index_statistics(folder, case.mode)
    result = replace(result, index=statistics)
    same_environment = dict(result.environment) == accepted.get("environment")
    # If the accepted index had other settings, another collection or other fixed weights, the accepted block is stale;
    # the new index must be measured so that it can be accepted.
    origin = {"configuration": case.configuration, "collection": result.key["collection"]}
    if case.model and workspace.models[case.model].fixed:
        origin["weights"] = result.key["weights"]
    expected: Mapping[str, Any] = {}
    if all(accepted.get(name) == value for name, value in origin.items()):
        expected = accepted.get("index", {})
    problems = []
    for problem in index_problems(
        folder, statistics, result.key, files, expected, same_environment
    ):
        problems.append(f"index: {problem}")
    # The values of a wrong index would be compared with the accepted ones as if they were the system's.
    if problems:
        return replace(result, problems=(*result.problems, *problems))
    _log(workspace, f"$ {command_line(commands.search)}")
    run_path(case, workspace).parent.mkdir(parents=True, exist_ok=True)
    summary = search(commands.search)
    assert isinstance(summary, RunSummary)
    return _measure(case, workspace, files, result, summary.without_hits)


def _measure(
    case: Case, workspace: Workspace, files: CollectionFiles, result: Result, without_hits: int
) -> Result:
    path = run_path(case, workspace)
    run = read_run(path)
    judged: Collection[str]
    if files.answers:
        judged = read_answers(files.answers)
    else:
        judged = read_qrels(files.qrels(case.test))
    problems = (*result.problems, *run_problems(run, judged, files, without_hits))
    values, per_query = compute_measures(case, files, run)
    return replace(
        result, values=values, per_query=per_query, problems=problems, run_sha256=sha256_file(path)
    )


def compute_measures(
    case: Case, files: CollectionFiles, run: Run
) -> tuple[dict[str, float], dict[str, Mapping[str, float]]]:
    """(mean, value per query id) of each of the case's measures, computed from its run."""
    qrels: Qrels = {} if files.answers else read_qrels(files.qrels(case.test))
    measures = []
    depths = []
    for measure in case.all_measures:
        if measure.startswith(ACCURACY):
            depths.append(int(measure.removeprefix(ACCURACY)))
        else:
            measures.append(measure)

    values: dict[str, float] = {}
    per_query: dict[str, Mapping[str, float]] = {}
    if measures:
        evaluation = evaluate(qrels, run, measures)
        for measure, mean in evaluation.mean.items():
            values[measure] = mean
            by_qid = {}
            for qid, query_values in evaluation.per_query.items():
                by_qid[qid] = query_values[measure]
            per_query[measure] = by_qid
    if depths:
        for measure, accuracies in accuracy(run, files.answers, files.corpus, depths).items():
            values[measure] = sum(accuracies.values()) / len(accuracies)
            per_query[measure] = accuracies
    return values, per_query


def _build_index(
    config: EncodeConfig | Bm25Config, workspace: Workspace, key: Mapping[str, Any]
) -> None:
    """Build the index, unless the existing one has the same key."""
    folder = Path(config.index)
    sidecar = folder.with_name(f"{folder.name}.{SIDECAR}")
    index_key = {name: value for name, value in key.items() if name not in SEARCH_KEYS}
    exists = sidecar.is_file() and folder.is_dir()
    if exists and not workspace.fresh and _equal_as_json(read_json_object(sidecar), index_key):
        reused = f"reusing the index of the same configuration, weights, data and code: {folder}"
        _log(workspace, reused)
        return
    # The sidecar is removed first and written last: only a finished index has one, so a killed run's is never reused.
    sidecar.unlink(missing_ok=True)
    config = replace(config, overwrite=folder.exists())
    _log(workspace, f"$ {command_line(config)}")
    if isinstance(config, EncodeConfig):
        encode(config)
    else:
        run_bm25(config)
    write_json(sidecar, index_key)


def _key(
    case: Case, workspace: Workspace, files: CollectionFiles, model: Path | None
) -> Mapping[str, Any]:
    """Everything that determines the values, by name, so that a difference can be named."""
    weights = "bm25"
    if case.model:
        weights = folder_digest(model or embedded_folder())
    if files.corpus.is_file():
        collection = sha256_file(files.corpus)
    else:
        # A corpus that is no file, such as a folder, is identified by its path.
        collection = str(files.corpus)
    return {
        "weights": weights,
        "collection": collection,
        "encode": {
            **case.encode,
            "model": case.model,
            "length": files.document_length,
            "separator": files.title_separator,
        },
        "search": {
            "remove_query": files.remove_query,
            "query_length": files.query_length,
            **case.search,
            "mode": case.mode,
        },
        "test": {
            "topics": sha256_file(files.queries),
            "judged": sha256_file(files.answers or files.qrels(case.test)),
        },
        "code": code_digest(),
        "environment": fingerprint(workspace.threads),
    }


def _reusable(
    case: Case, workspace: Workspace, files: CollectionFiles, key: Mapping[str, Any]
) -> Result | None:
    """The earlier result, if it has the same key, its run file has not changed, and its values are the run's."""
    result = load_result(result_path(case, workspace))
    path = run_path(case, workspace)
    if (
        result is None
        or result.problems
        or not _equal_as_json(result.key, key)
        or not path.is_file()
    ):
        return None
    if any(measure not in result.values for measure in case.all_measures):
        return None
    change = changed_run(case, workspace, files, result)
    if change:
        _log(workspace, f"{change}; searching again")
        return None
    return replace(result, reused=True)


def _index_damage(case: Case, workspace: Workspace) -> str:
    """What is wrong with the case's index, or an empty string. One that was removed is not damaged."""
    folder = index_path(case, workspace)
    if case.mode == "bm25" or not folder.is_dir():
        return ""
    try:
        Index.open(folder).verify()
    except DupmaeError as e:
        return str(e)
    return ""


def changed_run(case: Case, workspace: Workspace, files: CollectionFiles, result: Result) -> str:
    """How the run file or the stored values differ from what was measured; empty if they do not.

    The values are computed again from the run, unless the judgements or the passages are not here.
    """
    path = run_path(case, workspace)
    if not path.is_file() or sha256_file(path) != result.run_sha256:
        return f"{path} is not the run that was measured: it was changed, swapped or removed"
    inputs = [files.qrels(case.test)]
    if files.answers:
        inputs = [files.answers, files.corpus]
    if all(file.is_file() for file in inputs):
        values, per_query = compute_measures(case, files, read_run(path))
        if not _equal_as_json({**result.values, "q": result.per_query}, {**values, "q": per_query}):
            return f"{result_path(case, workspace)}: values differ from those of its run"
    return ""


def _equal_as_json(one: object, other: object) -> bool:
    """Equality after a round trip through JSON, which turns tuples into lists, as in stored results."""
    return json.loads(json.dumps(one)) == json.loads(json.dumps(other))


def _log(workspace: Workspace, line: str) -> None:
    say(f"  {line}", workspace.quiet)


def index_statistics(folder: Path, mode: str) -> Mapping[str, Any]:
    """Statistics recorded in the index; for a BM25 index, its number of documents only."""
    if mode == "bm25":
        return {"documents": BM25Searcher(folder, 0.9, 0.4).documents}
    meta = Index.open(folder).meta
    names = (
        "documents",
        "dim",
        "scale",
        "postings",
        "sum_of_impacts",
        "clipped",
        "digest",
        "shard",
    )
    statistics = {name: meta.get(name) for name in names}
    statistics["encoder"] = meta.get("encoder", {}).get("digest")
    return statistics


def index_problems(
    folder: Path,
    statistics: Mapping[str, Any],
    key: Mapping[str, Any],
    files: CollectionFiles,
    accepted: Mapping[str, Any],
    same_environment: bool,
) -> Iterator[str]:
    """Problems of an index, each with its cause: a value slightly too low does not show what is wrong, but the number
    of documents or the sum of impacts does.

    Args:
        folder: the index.
        statistics: its :func:`index_statistics`.
        key: digests of everything that determines the values of the case.
        files: the collection that was encoded.
        accepted: statistics of the accepted index.
        same_environment: the accepted index was built in the same environment, so that statistics must be equal.
    """
    documents = statistics["documents"]
    shard = statistics.get("shard")
    if shard:
        yield f"this is shard {shard['number']} of {shard['of']}, not merged: {documents:,} documents"
    if files.documents is not None and documents != files.documents:
        yield f"{documents:,} documents, but {files.name} has {files.documents:,}"
    if "encoder" in statistics:
        encoder = statistics["encoder"]
        weights = key["weights"]
        if encoder != weights:
            yield f"built with other weights ({encoder[:12]}) than those of the case's model ({weights[:12]})"
        yield from _content_problems(folder, files)

    # Impacts are quantised by the scale, so another scale explains other impacts.
    scale = statistics.get("scale")
    accepted_scale = accepted.get("scale")
    cause = ""
    if scale != accepted_scale:
        cause = f" (scale {_number(scale)} instead of {_number(accepted_scale)})"
    for name in COMPARED_STATISTICS:
        now = statistics.get(name)
        then = accepted.get(name)
        if then is None:
            continue
        if now is None or same_environment or name in COUNTS:
            differs = now != then
        else:
            differs = abs(now - then) > DRIFT * abs(then)
        if differs:
            problem = f"{name.replace('_', ' ')} is {_number(now)}, accepted was {_number(then)}"
            if name in ("sum_of_impacts", "postings"):
                problem += cause
            yield problem


def _content_problems(folder: Path, files: CollectionFiles) -> Iterator[str]:
    """Checks the files against meta.json, and document ids against the collection, row by row."""
    index = Index.open(folder)
    try:
        index.verify()
    except DupmaeError as e:
        yield str(e)
    first = ""
    wrong_rows = 0
    # index_problems compares the number of documents, so the shorter of the two ends the comparison here.
    documents = read_collection(files.corpus)
    for row, (docid, document) in enumerate(zip(index.docids, documents, strict=False)):
        if docid != document.docid:
            wrong_rows += 1
            first = first or f"row {row} is {docid!r}, expected {document.docid!r}"
    if wrong_rows:
        yield (
            f"document ids differ from the collection's: {first} ({wrong_rows} such rows: ids swapped, or a part "
            "missing)"
        )


def run_problems(
    run: Run, judged: Collection[str], files: CollectionFiles, without_hits: int
) -> list[str]:
    """Problems of a run: judged topics that are missing, or topics that retrieve themselves where this is excluded.

    ``without_hits``: topics for which the search found nothing, as BM25 may.
    """
    problems = []
    missing = [qid for qid in judged if qid not in run]
    if len(missing) > without_hits:
        names = _first_names(missing)
        problems.append(f"run: {len(missing)} of {len(judged)} judged topics are missing ({names})")
    if files.remove_query:
        self_hits = [qid for qid, hits in run.items() if any(hit.docid == qid for hit in hits)]
        if self_hits:
            names = _first_names(self_hits)
            problems.append(
                f"run: self-retrieval not removed: {len(self_hits)} topics retrieve themselves ({names}); search "
                f"{files.name} with remove_query"
            )
    return problems


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}"


def _first_names(names: list[str]) -> str:
    first = ", ".join(names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        first += ", ..."
    return first


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
    """The case's result, next to its run file."""
    return run_path(case, workspace).with_suffix(".json")


def index_path(case: Case, workspace: Workspace) -> Path:
    """The case's index, shared by cases with the same collection, model and encode settings."""
    settings = json.dumps(case.encode, sort_keys=True, default=list)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:6]
    collection = case.collection.replace(":", "-").replace("/", "-")
    return workspace.folder / "indexes" / f"{collection}--{case.model or 'bm25'}--{digest}"


def plan_commands(
    case: Case, workspace: Workspace, files: CollectionFiles | None = None
) -> CaseCommands:
    """The commands of a case. ``files`` defaults to the collection's planned paths."""
    files = files or workspace.planned_collection(case.collection)
    index = str(index_path(case, workspace))
    index_config: EncodeConfig | Bm25Config
    shared = {"corpus": str(files.corpus), "index": index, "quiet": workspace.quiet}
    # A copy: the case's settings are part of its configuration.
    search = dict(case.search)
    if case.mode == "bm25":
        index_config = from_mapping(Bm25Config, {**case.encode, **shared})
    else:
        model = workspace.model_folder(case.model)
        settings: dict[str, Any] = {
            "model": str(model) if model else None,
            "threads": workspace.threads,
        }
        if not workspace.models[case.model].embedded:
            # The papers' settings for the collection. The embedded model uses its settings for every collection.
            settings |= {
                "document_length": files.document_length,
                "title_separator": files.title_separator,
            }
        index_config = from_mapping(EncodeConfig, {**settings, **case.encode, **shared})
        if files.query_length:
            # A regression may state a length for all of its collections; a collection of long queries, such as
            # ArguAna, needs more.
            search["query_length"] = max(search.get("query_length") or 0, files.query_length)
    search_settings = {
        "remove_query": files.remove_query,
        "threads": workspace.threads,
        **search,
        case.mode: True,
        "index": [index],
        "topics": str(files.queries),
        "output": str(run_path(case, workspace)),
        "quiet": workspace.quiet,
        "qrels": None if files.answers else str(files.qrels(case.test)),
    }
    return CaseCommands(index_config, from_mapping(SearchConfig, search_settings))


def command_line(config: EncodeConfig | Bm25Config | SearchConfig) -> str:
    """``config`` as the line to type."""
    return f"dupmae-ir {VERBS[type(config)]} {shlex.join(flags(config))}"


def command_lines(case: Case, workspace: Workspace) -> list[str]:
    """Every command of a case as lines to type, from download to evaluation."""
    lines = []
    if case.collection != TINY and ":" not in case.collection:
        lines.append(f"dupmae-ir collections get {case.collection}")
    models = workspace.prepared(case.model) if case.model else []
    for name in models:
        if name in workspace.given:
            continue
        model = workspace.models[name]
        if model.files:
            folder = workspace.model_folder(name)
            url = model.url.format(revision=model.revision)
            lines.append(f"# {model.title}: {len(model.files)} files of {url}, into {folder}")
        elif model.recipe:
            for step in workspace.steps(model):
                lines.append(f"dupmae-ir {step.command} {shlex.join(flags(step.config))}")

    files = workspace.planned_collection(case.collection)
    run = run_path(case, workspace)
    commands = plan_commands(case, workspace, files)
    # A command that somebody types shows its progress, whether or not this run does.
    lines.append(command_line(replace(commands.index, quiet=False)))
    lines.append(command_line(replace(commands.search, quiet=False)))
    if files.answers:
        depths = " ".join(measure.removeprefix(ACCURACY) for measure in case.all_measures)
        evaluation = f"eval.answers --run {run} --answers {files.answers} --corpus {files.corpus} -k {depths}"
    else:
        measures = " ".join(map(shlex.quote, case.all_measures))
        evaluation = f"eval --qrels {files.qrels(case.test)} {run} -m {measures}"
    return [*lines, f"dupmae-ir {evaluation}"]
