"""The cases, models, corpora and groups of eval/, compared with their record, and with what decides them.

Used by tools/audit_recipes.py. Compared are

* all of a case that decides its values or its verdict (mode, measures, lengths, depth, model, tolerance, ...), every
  entry of models.toml, the full list of corpora of each pre-training, and the members of each group of collections,
  with tools/recorded_cases.toml, which `python tools/audit_recipes.py --record` writes;
* the measure of a case with the one that the cited table prints (tools/paper_tables.toml);
* the mode, with the rows of [[case]] in eval/hyperparameters.toml, which cite their source;
* the lengths of an index and of a search with those that their model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from paper_tables import LAYOUT

from dupmae_ir import collections
from dupmae_ir.config import read_toml
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import Case, Mean, Regression

RECORD = Path(__file__).with_name("recorded_cases.toml")
_RECORD_HEAD = """\
# What decides the values and the verdicts of the cases of eval/, their models, the corpora of each pre-training and the
# members of the groups that means are over. Written by `python tools/audit_recipes.py --record`; a difference from it
# is a problem of the audit. Before it is written anew, read why a case has changed, in the source that it cites.
#
# [KIND.GROUP]: NAME = {setting = value, ...}; settings that have their defaults are left out.
"""
_NOT_DECIDING = ("regression", "name", "tier", "title", "note", "rivals")
"""Fields of a case that have no effect on its values."""
_LENGTHS = {"encode": "document_length", "search": "query_length"}

Entry = Mapping[str, Any]
Record = dict[str, dict[str, dict[str, Entry]]]
"""Kind -> group -> name -> settings."""


def current_record(folder: Path, corpora: Mapping[str, Mapping[str, list[str]]]) -> Record:
    """The record of ``folder`` as it is. ``corpora``: model -> step -> what it reads."""
    regressions = cases.load(folder)
    record: Record = {"cases": {}, "means": {}, "models": {}, "corpora": {}, "groups": {}}
    groups = set()
    for regression in regressions.values():
        record["cases"][regression.name] = {case.name: _deciding(case) for case in regression.cases}
        if regression.means:
            record["means"][regression.name] = {
                mean.name: _deciding(mean) for mean in regression.means
            }
            groups |= {mean.group for mean in regression.means}
    for name, entry in read_toml(folder / cases.MODELS).items():
        if name == cases.DOWNLOADS:
            for download, parts in entry.items():
                record["models"][f"{name}.{download}"] = {"entry": _without_words(parts)}
        else:
            record["models"][name] = {"entry": _without_words(entry)}
    for model, steps in corpora.items():
        record["corpora"][model] = {step: {"reads": reads} for step, reads in steps.items()}
    for group in sorted(groups):
        record["groups"][group] = {"members": {"are": list(collections.expand(group))}}
    return record


def write_record(record: Record) -> str:
    """The record as TOML."""
    lines = [_RECORD_HEAD]
    for kind, groups in record.items():
        for group, entries in groups.items():
            lines.append(f"[{kind}.{json.dumps(group)}]")
            for name, entry in entries.items():
                lines.append(f"{json.dumps(name, ensure_ascii=False)} = {_toml(entry)}")
            lines.append("")
    return "\n".join(lines)


def case_problems(
    folder: Path, record: Record, trained: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterator[str]:
    """What differs from the record, from the tables, or from training.

    Args:
        folder: of the cases.
        record: of ``folder`` as it is.
        trained: model -> the settings of the last step of its training.
        table: eval/hyperparameters.toml.
    """
    recorded = read_toml(RECORD) if RECORD.is_file() else {}
    for kind in record:
        yield from _differences(kind, recorded.get(kind, {}), record[kind])
    for regression in cases.load(folder).values():
        yield from _measures(regression)
        for case in regression.cases:
            yield from _modes(case, table)
            yield from _lengths(case, trained)


def _deciding(item: Case | Mean) -> Entry:
    """The fields that differ from their defaults."""
    found = {}
    for one in fields(item):
        value = getattr(item, one.name)
        if one.name not in _NOT_DECIDING and value != _default(one):
            found[one.name] = _plain(value)
    return found


def _default(one: Field[Any]) -> object:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return one.default


def _without_words(entry: Any) -> Any:
    """An entry of models.toml without what is only said."""
    if not isinstance(entry, Mapping):
        return _plain(entry)
    return {key: _plain(value) for key, value in entry.items() if key not in ("title", "note")}


def _plain(value: Any) -> Any:
    """``value`` in the types that TOML has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _toml(value: Any) -> str:
    """A value on one line of TOML."""
    if isinstance(value, Mapping):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)} = {_toml(one)}" for key, one in value.items()
        ]
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _differences(
    kind: str,
    recorded: Mapping[str, Mapping[str, Entry]],
    current: Mapping[str, Mapping[str, Entry]],
) -> Iterator[str]:
    for group in sorted({*recorded, *current}):
        before = recorded.get(group, {})
        now = current.get(group, {})
        for name in sorted({*before, *now}):
            where = f"{kind}, {group}/{name}"
            if name not in now:
                yield f"{where} is in {RECORD.name} and no longer in eval/"
            elif name not in before:
                yield f"{where} is not in {RECORD.name}"
            elif before[name] != now[name]:
                yield from _changed(where, before[name], now[name])


def _changed(where: str, before: Any, now: Any) -> Iterator[str]:
    """Each setting that differs, as one line."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                yield from _changed(f"{where}: {key}", before.get(key), now.get(key))
        return
    # TOML has no None: the setting is left out, so it has its default.
    said = ["the default" if value is None else _toml(value) for value in (now, before)]
    yield f"{where} is {said[0]}, {said[1]} in {RECORD.name}"


def _measures(regression: Regression) -> Iterator[str]:
    """Printed numbers whose measure is not the one of the table that is cited."""
    printed = {}
    for table in read_toml(LAYOUT)["table"]:
        if "measure" in table:
            printed[table["source"]] = table["measure"]
    items: list[tuple[str, Case | Mean]] = [(case.id, case) for case in regression.cases]
    items += [(f"{regression.name}/mean:{mean.name}", mean) for mean in regression.means]
    for name, item in items:
        for source in item.source.split("; "):
            expected = printed.get(source.partition(", ")[0])
            for measure in item.paper:
                if expected and measure != expected:
                    yield f"{name}: the number is of {measure}, but {source} prints {expected}"


def _modes(case: Case, table: Mapping[str, Any]) -> Iterator[str]:
    """A case that is searched otherwise than its source says."""
    for row in table.get("case", []):
        if any(fnmatchcase(case.id, pattern) for pattern in row["cases"]):
            for name, value in row["settings"].items():
                ours = getattr(case, name)
                if ours != value:
                    yield f"{case.id}: {name} is {ours}, {value} in {row['source']}"


def _lengths(case: Case, trained: Mapping[str, Any]) -> Iterator[str]:
    """A case whose texts are cut otherwise than in the training of its model."""
    settings = trained.get(case.model)
    if settings is None or "msmarco-doc" in case.collection:
        return
    for part, name in _LENGTHS.items():
        ours = getattr(case, part).get(name)
        theirs = getattr(settings, name, None)
        # Judged queries of BEIR may be arguments of hundreds of words, and are not cut.
        longer_queries = name == "query_length" and ours is not None and ours > (theirs or 0)
        if ours is not None and ours != theirs and not longer_queries:
            yield f"{case.id}: {name} is {ours}, {theirs} in the training of {case.model}"
