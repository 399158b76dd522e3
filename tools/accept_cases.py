"""Accept measured values: the results in the output folder become the expected ones, in eval/*.toml and eval/accepted/.

    python tools/accept_cases.py default.scifact --output runs/regressions

Options are those of ``dupmae-ir eval.regressions list``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from dupmae_ir.command import help_text
from dupmae_ir.config import parse, with_flags
from dupmae_ir.console import Parser, guarded
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions.cases import ACCEPTED, Case, Regression
from dupmae_ir.eval.regressions.config import CaseOptions
from dupmae_ir.eval.regressions.execute import Result, load_result, result_path
from dupmae_ir.eval.regressions.run import CaseSelection
from dupmae_ir.io.publishing import atomic_write

MARK = "# Accepted: written by `python tools/accept_cases.py`; measured values, not to be edited."
DIGITS = 6
"""Digits stored of a value per query; means are stored in full."""


@dataclass(frozen=True, kw_only=True)
class AcceptOptions(CaseOptions):
    """Accept the results in --output as the expected values, and write them into the TOML files.

    Examples:
        python tools/accept_cases.py default.scifact
    """


def accept_cases(options: CaseOptions) -> list[Case]:
    """Accept the results on disk and return their cases.

    Raises :class:`UsageError` for a case without a result that can be accepted.
    """
    selection = CaseSelection(options)
    by_regression: dict[str, list[tuple[Case, Result]]] = {}
    for case in selection.cases:
        result = load_result(result_path(case, selection.workspace(case)))
        if result is None:
            raise UsageError(f"{case.id}: nothing was measured; run it first")
        reason = selection.outdated(case, result) or selection.changed_run(case, result)
        if reason:
            raise UsageError(f"{case.id}: {reason}")
        by_regression.setdefault(case.regression, []).append((case, result))
    accepted = []
    for name, results in by_regression.items():
        accept(selection.regressions[name], results)
        accepted += [case for case, _ in results]
    return accepted


def accepted_block(case: Case, result: Result) -> Mapping[str, Any]:
    """The accepted block of a result. Raises :class:`UsageError` for a result that cannot be accepted."""
    if result.skipped or result.problems or result.stand_in or not result.values:
        reason = (
            result.skipped
            or "; ".join(result.problems)
            or "it was measured on a synthetic stand-in collection"
        )
        intended = (
            f"; if this change is intended, remove [accepted.{case.name}] and run the case again"
            if "accepted was" in reason
            else ""
        )
        raise UsageError(f"{case.id}: cannot be accepted: {reason}{intended}")
    index = {
        k: v
        for k, v in result.index.items()
        if v is not None and k not in ("shard", "encoder", "digest")
    }
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
        by_measure = {}
        for measure, values in result.per_query.items():
            by_measure[measure] = {
                qid: round(value, DIGITS) for qid, value in sorted(values.items())
            }
        queries[case.name] = by_measure
    above = regression.path.read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    order = [c.name for c in regression.cases if c.name in blocks]
    environments = {
        _short(blocks[name]["environment"]): blocks[name]["environment"] for name in order
    }
    tables = [_table(f"environment.{short}", values) for short, values in environments.items()]
    for name in order:
        values = {**blocks[name], "environment": _short(blocks[name]["environment"])}
        tables.append(_table(f"accepted.{_key(name)}", values))
    folder = regression.path.parent / ACCEPTED
    with atomic_write(folder / f"{regression.name}.json") as f:
        json.dump(
            {name: queries[name] for name in order}, f, separators=(",", ":"), ensure_ascii=False
        )
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
        return (
            "{"
            + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
            + "}"
        )
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _key(name: str) -> str:
    return (
        name
        if name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        else json.dumps(name)
    )


def main(argv: list[str] | None = None) -> int:
    """Accept the cases and print their ids; returns the exit status."""

    def job() -> int:
        parser = Parser("accept", *help_text(AcceptOptions))
        parser.prog = "tools/accept_cases.py"
        accepted = accept_cases(parse(parser, AcceptOptions, argv))
        print(
            f"accepted {len(accepted)} case{'s' if len(accepted) != 1 else ''}: {', '.join(c.id for c in accepted)}"
        )
        return 0

    return guarded(
        job, "tools/accept_cases.py", translate=lambda message: with_flags(message, AcceptOptions)
    )


if __name__ == "__main__":
    sys.exit(main())
