"""Regressions as text for people and machines: terminal lines, Markdown, JSON, JUnit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from dupmae_ir.console import table
from dupmae_ir.eval.regressions.cases import Case, Mean, Regression
from dupmae_ir.eval.regressions.environment import in_words
from dupmae_ir.eval.regressions.verdict import Status, Verdict, overall
from dupmae_ir.eval.regressions.work import Result

NOT_HERE = "not run here"


@dataclass(frozen=True)
class Row:
    """A case with what came of it."""

    case: Case
    result: Result | None
    verdicts: Sequence[Verdict]
    accepted: Mapping[str, Any]
    commands: Callable[[], list[str]]  #: as a person would type them
    origin: str  #: where the model comes from

    @property
    def status(self) -> Status:
        return overall(self.verdicts)

    def measured(self, measure: str) -> float | None:
        """The value of this machine's result, else the accepted one; None: it was never measured."""
        if self.result and not self.result.stand_in and measure in self.result.values:
            return self.result.values[measure]
        return self.accepted.get("values", {}).get(measure)


@dataclass(frozen=True)
class MeanRow:
    """A paper's mean over collections with ours; ``missing`` are the collections without a value."""

    regression: str
    mean: Mean
    values: Mapping[str, float | None]
    missing: Sequence[str]


def means(regression: Regression, rows: Iterable[Row]) -> list[MeanRow]:
    """The means that a paper prints over our measured values; None wherever a collection of the group is missing."""
    from dupmae_ir.collections import mean_over

    rows = list(rows)
    found = []
    for mean in regression.means:
        values: dict[str, float | None] = {}
        missing: Sequence[str] = ()
        for measure in mean.paper:
            known = {r.case.collection: v for r in rows if (v := r.measured(measure)) is not None}
            values[measure], missing = mean_over(mean.group, known)
        found.append(MeanRow(regression.name, mean, values, missing))
    return found


def lines(row: Row) -> list[str]:
    """What a case says when it is done: its status, its values, and why."""
    head = f"{row.status:<6} {row.case.id}"
    if row.result and row.result.kept:
        head += f"  (measured {row.result.date}, nothing changed since)"
    told = [head]
    for v in row.verdicts:
        value = f"{v.measure} {v.value:.4f}" if v.value is not None else ""
        expected = f"{v.against} {v.expected:.4f}" if v.expected is not None else ""
        noise = f"+-{v.tolerance:.4f}" if v.tolerance else ""
        words = "  ".join(w for w in (f"{v.status:<6}" if value else "", value, expected, noise, v.reason) if w)
        told.append(f"       {words}")
    return told


def summary(rows: Sequence[Row]) -> str:
    """``12 cases: 9 OK, 3 SKIP``."""
    counts = Counter(r.status for r in rows)
    told = ", ".join(f"{counts[s]} {s}" for s in reversed(Status) if counts[s])
    return f"{len(rows)} case{'s' if len(rows) != 1 else ''}: {told}"


def as_list(rows: Sequence[Row]) -> str:
    """A line a case: what it is, what the paper says, what was accepted."""
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
    """A table with a row a measure: paper, tolerance, measured, status."""
    head = ["case", "measure", "paper", "accepted", "measured", "status", "why"]
    out = [f"# {title}", "", summary(rows), "", "| " + " | ".join(head) + " |", "|:--|:--|--:|--:|--:|:--|:--|"]
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
            told = f"{value:.4f}" if value is not None else f"missing: {', '.join(row.missing)}"
            out.append(
                f"| `{row.regression}` {row.mean.name} ({row.mean.group}) | {measure} "
                f"| {row.mean.paper[measure]} | {told} |"
            )
    return out


def as_json(rows: Sequence[Row], mean_rows: Sequence[MeanRow] = ()) -> str:
    """Everything, for programs."""
    told = [
        {
            "case": asdict_case(r.case),
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
    return json.dumps({"summary": summary(rows), "cases": told, "means": averages}, indent=2, ensure_ascii=False)


def asdict_case(case: Case) -> dict[str, Any]:
    return {**asdict(case), "id": case.id, "configuration": case.configuration}


def as_junit(rows: Sequence[Row]) -> str:
    """One test a case, as continuous integration reads it. BETTER and STALE are failures too: somebody must look."""
    failed = [r for r in rows if not r.status.passes]
    skipped = [r for r in rows if r.status == Status.SKIP]
    seconds = sum(r.result.seconds for r in rows if r.result)
    out = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="dupmae_ir regressions" tests="{len(rows)}" failures="{len(failed)}" errors="0" '
        f'skipped="{len(skipped)}" time="{seconds:.2f}">',
    ]
    for row in rows:
        name, suite = quoteattr(row.case.name), quoteattr(row.case.regression)
        took = f"{row.result.seconds:.2f}" if row.result else "0"
        told = "\n".join(lines(row))
        out.append(f'  <testcase classname={suite} name={name} time="{took}">')
        reasons = "; ".join(
            dict.fromkeys(
                v.reason or f"{v.measure} {v.value} for {v.expected}" for v in row.verdicts if v.status == row.status
            )
        )
        if not row.status.passes:
            out.append(f'    <failure type="{row.status}" message={quoteattr(reasons)}>{escape(told)}</failure>')
        elif row.status == Status.SKIP:
            out.append(f"    <skipped message={quoteattr(reasons)}/>")
        else:
            out.append(f"    <system-out>{escape(told)}</system-out>")
        out.append("  </testcase>")
    return "\n".join([*out, "</testsuite>"])


def reproduction(rows: Sequence[Row], mean_rows: Sequence[MeanRow]) -> str:
    """The table of docs/reproduction.md: for every number of the papers, the recipe that reproduces it."""
    out = ["| paper's number | source | recipe | measured here |", "|:--|:--|:--|:--|"]
    for row in rows:
        for measure, printed in row.case.paper.items():
            value = row.measured(measure)
            told = NOT_HERE if value is None else f"{value:.4f}" + ("" if row.case.compare else " (other weights)")
            what = f"{row.case.title}, {row.case.collection} {row.case.test}: {measure} **{printed}**"
            out.append(f"| {what} | {row.case.source} | `{row.case.id}` | {told} |")
    for mean_row in mean_rows:
        for measure, printed in mean_row.mean.paper.items():
            value = mean_row.values[measure]
            told = NOT_HERE if value is None else f"{value:.4f}"
            out.append(
                f"| {mean_row.mean.name}: {measure} **{printed}** | {mean_row.mean.source} "
                f"| `{mean_row.regression}` | {told} |"
            )
    return "\n".join(out)


def environment_line(row: Row) -> str:
    """Where the accepted values were measured, and when."""
    told = row.accepted.get("environment")
    return f"{row.accepted['date']}: {in_words(told)}" if told else ""


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _first(values: Mapping[str, str]) -> str:
    """The first measure with its value, and how many more there are."""
    told = [f"{m} {v}" for m, v in values.items()]
    return told[0] + (f" +{len(told) - 1}" if told[1:] else "") if told else ""
