"""Results as text: terminal lines, Markdown, JSON, JUnit and the reproduction table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from dupmae_ir.collections import mean_over
from dupmae_ir.console import table, visible
from dupmae_ir.eval.regressions.cases import Case, Mean, Regression
from dupmae_ir.eval.regressions.environment import describe
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.eval.regressions.verdict import Status, Verdict, overall

NOT_HERE = "not run here"


@dataclass(frozen=True)
class Row:
    """A case with its result and verdicts."""

    case: Case
    result: Result | None
    verdicts: Sequence[Verdict]
    accepted: Mapping[str, Any]
    commands: Callable[[], list[str]]  #: its commands as lines to type
    origin: str  #: the model and where it comes from

    @property
    def status(self) -> Status:
        """The most urgent of its verdicts."""
        return overall(self.verdicts)

    def measured(self, measure: str) -> float | None:
        """The value of the result, else the accepted value; None if neither exists."""
        if self.result and not self.result.stand_in and measure in self.result.values:
            return self.result.values[measure]
        return self.accepted.get("values", {}).get(measure)


@dataclass(frozen=True)
class MeanRow:
    """A paper's mean over collections, with the measured one; ``missing``: collections without a value."""

    regression: str
    mean: Mean
    values: Mapping[str, float | None]
    missing: Sequence[str]


def means(regression: Regression, rows: Iterable[Row]) -> list[MeanRow]:
    """The paper's means computed from measured values; None if a collection of the group is missing."""
    rows = list(rows)
    mean_rows = []
    for mean in regression.means:
        values: dict[str, float | None] = {}
        missing: Sequence[str] = ()
        for measure in mean.paper:
            known = {r.case.collection: v for r in rows if (v := r.measured(measure)) is not None}
            values[measure], missing = mean_over(mean.group, known)
        mean_rows.append(MeanRow(regression.name, mean, values, missing))
    return mean_rows


def row_lines(row: Row) -> list[str]:
    """The lines printed when a case is done: its status, its values and the reasons."""
    head = f"{row.status:<6} {row.case.id}"
    if row.result and row.result.reused:
        head += f"  (measured {row.result.date}, nothing changed since)"
    lines = [head]
    for v in row.verdicts:
        value = f"{v.measure} {v.value:.4f}" if v.value is not None else ""
        expected = f"{v.against} {v.expected:.4f}" if v.expected is not None else ""
        tolerance = f"+-{v.tolerance:.4f}" if v.tolerance else ""
        words = "  ".join(w for w in (f"{v.status:<6}" if value else "", value, expected, tolerance, v.reason) if w)
        lines.append(f"       {words}")
    return lines


def summarize(rows: Sequence[Row]) -> str:
    """``12 cases: 9 OK, 3 SKIP``."""
    counts = Counter(r.status for r in rows)
    statuses = ", ".join(f"{counts[s]} {s}" for s in reversed(Status) if counts[s])
    return f"{len(rows)} case{'s' if len(rows) != 1 else ''}: {statuses}"


def as_list(rows: Sequence[Row]) -> str:
    """A table with one line per case: what it measures, the paper's number, the accepted value."""
    body = [
        [
            r.case.id,
            r.case.tier,
            r.case.collection,
            r.case.test,
            r.case.mode,
            _first(r.case.paper),
            _first({m: f"{v:.4f}" for m, v in r.accepted.get("values", {}).items()}) or NOT_HERE,
        ]
        for r in rows
    ]
    return table(body, ["case", "tier", "collection", "test", "mode", "paper", "measured"])


def as_markdown(rows: Sequence[Row], mean_rows: Sequence[MeanRow] = (), title: str = "Regressions") -> str:
    """A Markdown table with one row per measure: paper, accepted, measured, status, reason."""
    head = ["case", "measure", "paper", "accepted", "measured", "status", "reason"]
    out = [f"# {title}", "", summarize(rows), "", "| " + " | ".join(head) + " |", "|:--|:--|--:|--:|--:|:--|:--|"]
    for row in rows:
        by_measure = {v.measure: v for v in row.verdicts}
        for measure in row.case.all_measures:
            v = by_measure.get(measure, row.verdicts[0])
            cells = [
                f"`{row.case.id}`",
                measure,
                row.case.paper.get(measure, ""),
                _digits(row.accepted.get("values", {}).get(measure)),
                _digits(row.result.values.get(measure) if row.result else None),
                str(v.status),
                v.reason,
            ]
            out.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join([*out, *_mean_lines(mean_rows)])


def _mean_lines(mean_rows: Sequence[MeanRow]) -> list[str]:
    if not mean_rows:
        return []
    out = ["", "| mean | measure | paper | measured |", "|:--|:--|--:|:--|"]
    for row in mean_rows:
        for measure, value in row.values.items():
            measured = f"{value:.4f}" if value is not None else f"missing: {', '.join(row.missing)}"
            out.append(
                f"| `{row.regression}` {row.mean.name} ({row.mean.group}) | {measure} "
                f"| {row.mean.paper[measure]} | {measured} |"
            )
    return out


def as_dict(rows: Sequence[Row], mean_rows: Sequence[MeanRow] = ()) -> dict[str, Any]:
    """Everything as JSON-able values: ``summary``, ``passed``, ``cases``, ``means``."""
    cases = [
        {
            "case": case_dict(r.case),
            "status": r.status,
            "verdicts": [asdict(v) for v in r.verdicts],
            "result": asdict(r.result) if r.result else None,
            "accepted": dict(r.accepted),
            "commands": r.commands(),
        }
        for r in rows
    ]
    averages = [
        {
            "regression": m.regression,
            "name": m.mean.name,
            "group": m.mean.group,
            "paper": dict(m.mean.paper),
            "values": dict(m.values),
            "missing": list(m.missing),
        }
        for m in mean_rows
    ]
    passed = all(r.status.passes for r in rows)
    return {"summary": summarize(rows), "passed": passed, "cases": cases, "means": averages}


def as_json(rows: Sequence[Row], mean_rows: Sequence[MeanRow] = ()) -> str:
    """:func:`as_dict` as indented JSON."""
    return json.dumps(as_dict(rows, mean_rows), indent=2, ensure_ascii=False)


def case_dict(case: Case) -> dict[str, Any]:
    """The case's fields, its id and the digest of its configuration."""
    return {**asdict(case), "id": case.id, "configuration": case.configuration}


def as_junit(rows: Sequence[Row]) -> str:
    """JUnit XML, one test per case. BETTER and STALE are failures, too, because somebody must look at them."""
    failed = [r for r in rows if not r.status.passes]
    skipped = [r for r in rows if r.status == Status.SKIP]
    seconds = sum(r.result.seconds for r in rows if r.result)
    out = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="dupmae_ir regressions" tests="{len(rows)}" failures="{len(failed)}" errors="0" '
        f'skipped="{len(skipped)}" time="{seconds:.2f}">',
    ]
    for row in rows:
        out += _junit_case(row)
    return "\n".join([*out, "</testsuite>"])


def _junit_case(row: Row) -> list[str]:
    name, suite = quoteattr(visible(row.case.name)), quoteattr(visible(row.case.regression))
    seconds = f"{row.result.seconds:.2f}" if row.result else "0"
    details = escape(visible("\n".join(row_lines(row))))
    verdicts = [v for v in row.verdicts if v.status == row.status]
    reasons = dict.fromkeys(v.reason or f"{v.measure} {v.value}, expected {v.expected}" for v in verdicts)
    message = quoteattr(visible("; ".join(reasons)))
    if not row.status.passes:
        outcome = f'<failure type="{row.status}" message={message}>{details}</failure>'
    elif row.status == Status.SKIP:
        outcome = f"<skipped message={message}/>"
    else:
        outcome = f"<system-out>{details}</system-out>"
    return [f'  <testcase classname={suite} name={name} time="{seconds}">', f"    {outcome}", "  </testcase>"]


def reproduction(rows: Sequence[Row], mean_rows: Sequence[MeanRow]) -> str:
    """The table of docs/reproduction.md: for every number of the papers, the case that reproduces it."""
    out = ["| paper's number | source | recipe | measured here |", "|:--|:--|:--|:--|"]
    for row in rows:
        for measure, printed in row.case.paper.items():
            value = row.measured(measure)
            measured = NOT_HERE if value is None else f"{value:.4f}" + ("" if row.case.compare else " (other weights)")
            what = f"{row.case.title}, {row.case.collection} {row.case.test}: {measure} **{printed}**"
            out.append(f"| {what} | {row.case.source} | `{row.case.id}` | {measured} |")
    for mean_row in mean_rows:
        for measure, printed in mean_row.mean.paper.items():
            value = mean_row.values[measure]
            measured = NOT_HERE if value is None else f"{value:.4f}"
            out.append(
                f"| {mean_row.mean.name}: {measure} **{printed}** | {mean_row.mean.source} "
                f"| `{mean_row.regression}` | {measured} |"
            )
    return "\n".join(out)


def environment_line(row: Row) -> str:
    """When and where the accepted values were measured; empty if there are none."""
    environment = row.accepted.get("environment")
    return f"{row.accepted['date']}: {describe(environment)}" if environment else ""


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _first(values: Mapping[str, str]) -> str:
    """The first measure with its value, and the number of further ones."""
    shown = [f"{m} {v}" for m, v in values.items()]
    return shown[0] + (f" +{len(shown) - 1}" if shown[1:] else "") if shown else ""
