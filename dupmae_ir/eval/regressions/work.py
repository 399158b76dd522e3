"""One case carried out: collection, model, index, run, values. Every step is a command that a person can repeat."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dupmae_ir.config import flags, from_mapping
from dupmae_ir.console import say
from dupmae_ir.errors import DupmaeError, EnvironmentProblem
from dupmae_ir.eval.regressions import checks
from dupmae_ir.eval.regressions.cases import ACCURACY, Case, read_json
from dupmae_ir.eval.regressions.environment import code_digest, fingerprint
from dupmae_ir.eval.regressions.place import KEY, Data, Place, in_beir_layout
from dupmae_ir.io.publishing import sha256_file, write_json


@dataclass(frozen=True)
class Result:
    """What came of a case; a JSON file beside its run file."""

    case: str
    configuration: str = ""  #: of the case when it was carried out
    skipped: str = ""  #: why nothing was measured
    problems: tuple[str, ...] = ()  #: what is wrong with what was made, in words that point to the cause
    values: Mapping[str, float] = field(default_factory=dict)
    per_query: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  #: measure -> query id -> value
    index: Mapping[str, Any] = field(default_factory=dict)  #: statistics of the index
    key: Mapping[str, Any] = field(default_factory=dict)  #: what decides the numbers, digested
    environment: Mapping[str, Any] = field(default_factory=dict)
    run_sha256: str = ""
    stand_in: bool = False
    seconds: float = 0.0
    date: str = ""
    kept: bool = field(default=False, compare=False)  #: found on disk, made by the same key


def run_path(case: Case, place: Place) -> Path:
    return place.folder / "runs" / case.regression / f"{case.name}.trec"


def result_path(case: Case, place: Place) -> Path:
    return run_path(case, place).with_suffix(".json")


def index_path(case: Case, place: Place) -> Path:
    settings = hashlib.sha256(json.dumps(case.encode, sort_keys=True, default=list).encode()).hexdigest()[:6]
    collection = case.collection.replace(":", "-").replace("/", "-")
    return place.folder / "indexes" / f"{collection}--{case.model or 'bm25'}--{settings}"


def commands(case: Case, place: Place, data: Data | None = None) -> list[tuple[str, Any]]:
    """(command, its settings): index, then search. Without ``data``, with paths as they would be."""
    data = data or _planned(case, place)
    folder = str(index_path(case, place))
    return [_index_command(case, place, data, folder), ("search", _search_settings(case, place, data, folder))]


def _index_command(case: Case, place: Place, data: Data, folder: str) -> tuple[str, Any]:
    told = {**case.encode, "corpus": str(data.corpus), "index": folder, "quiet": place.quiet}
    if case.mode == "bm25":
        from dupmae_ir.index.config import Bm25Config

        return "index bm25", from_mapping(Bm25Config, told)
    from dupmae_ir.encode.config import EncodeConfig

    model = place.model_folder(case.model)
    own: dict[str, Any] = {"model": str(model) if model else None, "threads": place.threads or 0}
    if not place.models[case.model].embedded:
        # How the papers read the collection; the embedded model reads every collection in its own way.
        own |= {"document_length": data.document_length, "title_separator": data.title_separator}
    return "encode", from_mapping(EncodeConfig, {**own, **told})


def _search_settings(case: Case, place: Place, data: Data, index: str) -> Any:
    from dupmae_ir.search.run import SearchConfig

    told = dict(case.search)
    if data.query_length and case.mode != "bm25":
        told["query_length"] = max(told.get("query_length") or 0, data.query_length)
    settings = {
        "remove_query": data.remove_query,
        "threads": place.threads,
        **told,
        case.mode: True,
        "index": index,
        "topics": str(data.queries),
        "output": str(run_path(case, place)),
        "quiet": place.quiet,
        "qrels": None if data.answers else str(data.qrels(case.test)),
    }
    return from_mapping(SearchConfig, settings)


def _planned(case: Case, place: Place) -> Data:
    return in_beir_layout(
        case.collection, place.collection_folder(case.collection), **place.collection_facts(case.collection)
    )


def lines(case: Case, place: Place) -> list[str]:
    """Every command of a case, from download to evaluation, as a person would type them."""
    from dupmae_ir.eval.regressions.models import chain
    from dupmae_ir.finetune.stages import plan

    told = []
    if case.collection != "tiny" and ":" not in case.collection:
        told.append(f"dupmae-ir collections get {case.collection}")
    for name in chain(case.model, place.models, place.inputs) if case.model else ():
        model = place.models[name]
        if model.files:
            told.append(f"# {model.title}: {len(model.files)} files of {model.url}, into {place.model_folder(name)}")
        elif model.recipe:
            steps, _ = plan(*place.training(model, fetch=False), last=model.step)
            told += [f"dupmae-ir {step.command} {shlex.join(flags(step.config))}" for step in steps]
    for name, settings in commands(case, place):
        told.append(f"dupmae-ir {name} {shlex.join(flags(replace(settings, quiet=False)))}")
    return [*told, _evaluation(case, place)]


def _evaluation(case: Case, place: Place) -> str:
    data, run = _planned(case, place), run_path(case, place)
    if data.answers:
        depths = " ".join(m.removeprefix(ACCURACY) for m in case.all_measures)
        return f"dupmae-ir eval.answers --run {run} --answers {data.answers} --corpus {data.corpus} -k {depths}"
    measures = " ".join(map(shlex.quote, case.all_measures))
    return f"dupmae-ir eval --qrels {data.qrels(case.test)} {run} -m {measures}"


def carry_out(case: Case, place: Place, accepted: Mapping[str, Any]) -> Result:
    """Do what is not done yet, check it, and measure. What cannot be had here is skipped, with the reason.

    An index or a run is used again only if configuration, weights, data, code and environment are the same and its
    bytes are the ones that were written. Nothing is measured on an index that fails its checks.
    """
    started = time.perf_counter()
    try:
        data = place.collection(case.collection)
        model = place.model(case.model) if case.model else None
    except EnvironmentProblem as e:
        return Result(case.id, skipped=str(e))
    except DupmaeError as e:
        return Result(case.id, problems=(str(e),))
    key = _key(case, place, data, model)
    if not place.fresh and (found := _kept(case, place, key)):
        return found
    result = Result(
        case.id,
        configuration=case.configuration,
        key=key,
        environment=fingerprint(place.threads),
        stand_in=data.stand_in,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        result = _made(case, place, data, result, accepted)
    except DupmaeError as e:
        result = replace(result, problems=(*result.problems, str(e)))
    result = replace(result, seconds=round(time.perf_counter() - started, 2))
    result_path(case, place).parent.mkdir(parents=True, exist_ok=True)
    write_json(result_path(case, place), asdict(result))
    return result


def _made(case: Case, place: Place, data: Data, result: Result, accepted: Mapping[str, Any]) -> Result:
    (name, index_settings), (_, search_settings) = commands(case, place, data)
    _index(name, index_settings, place, result.key)
    folder = index_path(case, place)
    statistics = checks.statistics(folder, case.mode)
    result = replace(result, index=statistics)
    same = dict(result.environment) == accepted.get("environment")
    then = accepted.get("index", {}) if _speaks_of(accepted, case, place, result.key) else {}
    if problems := checks.index_problems(folder, statistics, result.key, data, then, same):
        return replace(result, problems=tuple(problems))
    from dupmae_ir.search.run import run as search

    _say(place, f"$ dupmae-ir search {shlex.join(flags(search_settings))}")
    run_path(case, place).parent.mkdir(parents=True, exist_ok=True)
    found = search(search_settings)
    return _measured(case, place, data, result, found["without_hits"])


def _speaks_of(accepted: Mapping[str, Any], case: Case, place: Place, key: Mapping[str, Any]) -> bool:
    """Whether the accepted values are of these settings, this collection and, where they are the same everywhere, these
    weights. Where not they are stale, and what could be accepted instead must be measured."""
    told = {"configuration": case.configuration, "collection": key["collection"]}
    if case.model and place.models[case.model].fixed:
        told["weights"] = key["weights"]
    return all(accepted.get(name) == value for name, value in told.items())


def _measured(case: Case, place: Place, data: Data, result: Result, empty: int) -> Result:
    from dupmae_ir.eval.answers import read_answers
    from dupmae_ir.eval.evaluate import evaluate
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.runs import read_run

    path = run_path(case, place)
    run = read_run(path)
    qrels: Any = read_answers(data.answers) if data.answers else read_qrels(data.qrels(case.test))
    problems = checks.run_problems(run, qrels, data, empty)
    wanted = [m for m in case.all_measures if not m.startswith(ACCURACY)]
    values: dict[str, float] = {}
    per_query: dict[str, dict[str, float]] = {}
    if wanted:
        found = evaluate(qrels, run, wanted)
        values |= found.mean
        per_query |= {m: {q: v[m] for q, v in found.per_query.items()} for m in found.mean}
    if depths := [int(m.removeprefix(ACCURACY)) for m in case.all_measures if m.startswith(ACCURACY)]:
        accuracy = _accuracy(run, data, depths)
        values |= {m: sum(v.values()) / len(v) for m, v in accuracy.items()}
        per_query |= accuracy
    return replace(result, values=values, per_query=per_query, problems=tuple(problems), run_sha256=sha256_file(path))


def _accuracy(run: Any, data: Data, depths: list[int]) -> dict[str, dict[str, float]]:
    from dupmae_ir.eval.answers import accuracy

    return accuracy(run, data.answers, data.corpus, depths)


def _index(name: str, settings: Any, place: Place, key: Mapping[str, Any]) -> None:
    """The index, made unless the one that is there was made by the same key."""
    folder = Path(settings.index)
    sidecar = folder.with_name(f"{folder.name}.{KEY}")
    wanted = {k: v for k, v in key.items() if k not in ("search", "test")}
    there = sidecar.is_file() and folder.is_dir()
    if there and not place.fresh and _same(read_json(sidecar), wanted):
        _say(place, f"index of the same configuration, weights, data and code: {folder}")
        return
    # A key belongs to a finished index; without it, a killed run is not taken for one.
    sidecar.unlink(missing_ok=True)
    settings = replace(settings, overwrite=folder.exists())
    _say(place, f"$ dupmae-ir {name} {shlex.join(flags(settings))}")
    if name == "encode":
        from dupmae_ir.encode.run import run as encode

        encode(settings)
    else:
        from dupmae_ir.index.run import run_bm25

        run_bm25(settings)
    write_json(sidecar, wanted)


def _key(case: Case, place: Place, data: Data, model: Path | None) -> dict[str, Any]:
    """What decides the numbers, by name, so that a difference can be told."""
    from dupmae_ir.models.checkpoints.folder import default_model_path, folder_digest

    return {
        "weights": folder_digest(model or default_model_path()) if case.model else "bm25",
        "collection": sha256_file(data.corpus) if data.corpus.is_file() else str(data.corpus),
        "encode": {
            **case.encode,
            "model": case.model,
            "length": data.document_length,
            "separator": data.title_separator,
        },
        "search": {
            **case.search,
            "mode": case.mode,
            "remove_query": data.remove_query,
            "query_length": data.query_length,
        },
        "test": {"topics": sha256_file(data.queries), "judged": sha256_file(data.answers or data.qrels(case.test))},
        "code": code_digest(),
        "environment": fingerprint(place.threads),
    }


def load_result(path: Path) -> Result | None:
    """A result on disk, if there is one."""
    if not path.is_file():
        return None
    told = read_json(path)
    return Result(**{**told, "problems": tuple(told["problems"])})


def _kept(case: Case, place: Place, key: Mapping[str, Any]) -> Result | None:
    found = load_result(result_path(case, place))
    path = run_path(case, place)
    if found is None or found.problems or not _same(found.key, key) or not path.is_file():
        return None
    if sha256_file(path) != found.run_sha256:
        _say(place, f"{path}: is not the run that was measured; searching again")
        return None
    return replace(found, kept=True)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Equal after a round trip through JSON, which turns tuples into lists."""
    return json.loads(json.dumps(one)) == json.loads(json.dumps(other))


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two keys."""
    return [name for name in one if not _same({"_": one[name]}, {"_": other.get(name)})]


def _say(place: Place, line: str) -> None:
    say(f"  {line}", place.quiet)


def results(cases: list[Case], place: Place) -> Iterator[tuple[Case, Result | None]]:
    """Every case with what lies on disk of it."""
    for case in cases:
        yield case, load_result(result_path(case, place))
