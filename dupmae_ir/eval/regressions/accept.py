"""Take over what was measured as what is expected: the accepted block at the end of a TOML file, and its queries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions.cases import ACCEPTED, Case, Regression
from dupmae_ir.eval.regressions.work import Result
from dupmae_ir.io.publishing import atomic_write

MARK = "# Accepted: written by `dupmae-ir eval.regressions accept`; measured values, not to be edited."
DIGITS = 6
"""Of a query's value; means are kept whole."""


def block(case: Case, result: Result) -> dict[str, Any]:
    """What is kept of a result. Raises :class:`UsageError` for one that is no measurement."""
    if result.skipped or result.problems or result.stand_in or not result.values:
        why = result.skipped or "; ".join(result.problems) or "it ran on a look-alike collection"
        meant = f"; if that is meant, remove [accepted.{case.name}] and run it again" if "was accepted" in why else ""
        raise UsageError(f"{case.id}: cannot be accepted: {why}{meant}")
    index = {k: v for k, v in result.index.items() if v is not None and k not in ("shard", "encoder", "digest")}
    return {
        "date": date.fromisoformat(result.date[:10]).isoformat(),
        "configuration": case.configuration,
        "weights": result.key["weights"],
        "collection": result.key["collection"],
        "values": dict(result.values),
        "index": index,
        "environment": dict(result.environment),
    }


def accept(regression: Regression, results: Iterable[tuple[Case, Result]]) -> None:
    """Rewrite the accepted block of the regression's file; everything above it stays as it is."""
    blocks = dict(regression.accepted)
    queries = {name: dict(values) for name, values in regression.accepted_queries.items()}
    for case, result in results:
        blocks[case.name] = block(case, result)
        queries[case.name] = {
            m: {q: round(v, DIGITS) for q, v in sorted(values.items())} for m, values in result.per_query.items()
        }
    written = regression.path.read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    order = [c.name for c in regression.cases if c.name in blocks]
    environments = {_short(blocks[name]["environment"]): blocks[name]["environment"] for name in order}
    tables = [_table(f"environment.{short}", told) for short, told in environments.items()]
    for name in order:
        told = {**blocks[name], "environment": _short(blocks[name]["environment"])}
        tables.append(_table(f"accepted.{_key(name)}", told))
    folder = regression.path.parent / ACCEPTED
    with atomic_write(folder / f"{regression.name}.json") as f:
        json.dump({name: queries[name] for name in order}, f, separators=(",", ":"), ensure_ascii=False)
        f.write("\n")
    with atomic_write(regression.path) as f:
        f.write(f"{written}\n\n{MARK}\n" + "\n".join(tables))


def _short(environment: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:8]


def _table(name: str, told: Mapping[str, Any]) -> str:
    rows = [f"{_key(k)} = {_value(v)}" for k, v in told.items() if v is not None]
    return "\n".join([f"[{name}]", *rows, ""])


def _value(value: Any) -> str:
    """TOML of strings, numbers and tables of them. Python's repr of a float is exact, and TOML's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)
