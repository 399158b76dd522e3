"""Writes measured values as accepted ones: the last part of a TOML file, and the values per query beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions.cases import ACCEPTED, Case, Regression
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.io.publishing import atomic_write

MARK = "# Accepted: written by `dupmae-ir eval.regressions accept`; measured values, not to be edited."
DIGITS = 6
"""Digits stored of a value per query; means are stored in full."""


def accepted_block(case: Case, result: Result) -> dict[str, Any]:
    """The accepted block of a result. Raises :class:`UsageError` for a result that cannot be accepted."""
    if result.skipped or result.problems or result.stand_in or not result.values:
        reason = result.skipped or "; ".join(result.problems) or "it was measured on a synthetic stand-in collection"
        intended = (
            f"; if this change is intended, remove [accepted.{case.name}] and run the case again"
            if "accepted was" in reason
            else ""
        )
        raise UsageError(f"{case.id}: cannot be accepted: {reason}{intended}")
    index = {k: v for k, v in result.index.items() if v is not None and k not in ("shard", "encoder", "digest")}
    return {
        "date": date.fromisoformat(result.date[:10]).isoformat(),
        "configuration": case.configuration,
        "weights": result.key["weights"],
        "collection": result.key["collection"],
        **result.inputs,
        "values": dict(result.values),
        "index": index,
        "environment": dict(result.environment),
    }


def accept(regression: Regression, results: Iterable[tuple[Case, Result]]) -> None:
    """Replace the accepted part of the regression's file; the text above it is not changed."""
    blocks = dict(regression.accepted)
    queries = {name: dict(values) for name, values in regression.accepted_queries.items()}
    for case, result in results:
        blocks[case.name] = accepted_block(case, result)
        queries[case.name] = {
            m: {q: round(v, DIGITS) for q, v in sorted(values.items())} for m, values in result.per_query.items()
        }
    above = regression.path.read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    order = [c.name for c in regression.cases if c.name in blocks]
    environments = {_short(blocks[name]["environment"]): blocks[name]["environment"] for name in order}
    tables = [_table(f"environment.{short}", values) for short, values in environments.items()]
    for name in order:
        values = {**blocks[name], "environment": _short(blocks[name]["environment"])}
        tables.append(_table(f"accepted.{_key(name)}", values))
    folder = regression.path.parent / ACCEPTED
    with atomic_write(folder / f"{regression.name}.json") as f:
        json.dump({name: queries[name] for name in order}, f, separators=(",", ":"), ensure_ascii=False)
        f.write("\n")
    with atomic_write(regression.path) as f:
        f.write(f"{above}\n\n{MARK}\n" + "\n".join(tables))


def _short(environment: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:8]


def _table(name: str, values: Mapping[str, Any]) -> str:
    rows = [f"{_key(k)} = {_toml(v)}" for k, v in values.items() if v is not None]
    return "\n".join([f"[{name}]", *rows, ""])


def _toml(value: object) -> str:
    """A string, a number or a table of these as TOML. Python's repr of a float is exact, and valid TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)
