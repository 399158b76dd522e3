"""A comparison as text and plain values: legend, table rows, JSON and CSV columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dupmae_ir.eval.compare import MARKS, TEST_NAMES, Change, Comparison, Difference
from dupmae_ir.eval.significance import BOOTSTRAPS, Interval


def legend(comparison: Comparison) -> list[str]:
    """The meaning of the marks, and how intervals and p values are computed."""
    s, runs = comparison.settings, len(comparison.runs)
    holm = f"Holm-corrected over {runs} runs" if runs > 1 else "one comparison, nothing to correct"
    marks = [
        f"{MARKS[t]} differs from {comparison.baseline}: {TEST_NAMES[t]}, two-sided, p < {s.alpha:g} ({holm})"
        for t in s.tests
    ]
    how = f"{100 * s.level:g} % intervals: percentile bootstrap over queries, {BOOTSTRAPS:,} resamples, seed {s.seed}"
    return [*marks, how, *([_permutation_text(comparison)] if "permutation" in s.tests else [])]


def header(comparison: Comparison) -> list[str]:
    """Column names of :func:`rows`."""
    level = f"{100 * comparison.settings.level:g} % interval"
    tests = [f"p {test}" for test in comparison.settings.tests]
    return ["run", "measure", f"minus {comparison.baseline}", level, *tests, "wins/ties/losses"]


def rows(comparison: Comparison) -> list[list[str]]:
    """One row per compared run and measure, with corrected p values."""
    return [
        [
            run,
            measure,
            signed(d.mean),
            interval_text(d.interval),
            *(p_text(p) for p in d.corrected.values()),
            f"{d.wins}/{d.ties}/{d.losses}",
        ]
        for run, measures in comparison.runs.items()
        for measure, d in measures.items()
    ]


def signed(value: float) -> str:
    """Four decimals with a sign; values that round to zero are ``+0.0000``."""
    return f"{round(value, 4) + 0.0:+.4f}"


def interval_text(interval: Interval | None, sign: str = "+") -> str:
    """Four decimals; ``-`` for no interval."""
    return f"[{interval.low:{sign}.4f}, {interval.high:{sign}.4f}]" if interval else "-"


def p_text(p: float | None) -> str:
    """Four decimals, ``<0.0001`` for smaller values, ``-`` for an undefined test."""
    if p is None:
        return "-"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def change_text(change: Change) -> str:
    """``q7 +0.5000 (0.5000 to 1.0000)``."""
    return f"{change.qid} {signed(change.difference)} ({change.baseline:.4f} to {change.run:.4f})"


def _permutation_text(comparison: Comparison) -> str:
    done = [d.permutation for measures in comparison.runs.values() for d in measures.values() if d.permutation]
    drawn = f"{comparison.settings.resamples:,} random sign flips, seed {comparison.settings.seed}"
    if all(p.exact for p in done):
        return "permutation tests: exact, all sign flips counted"
    return f"permutation tests: {drawn}" + ("; exact where few queries differ" if any(p.exact for p in done) else "")


def moved_lines(comparison: Comparison) -> list[str]:
    """For each compared run, the queries with the largest differences in the first measure."""
    lines = []
    for run, measures in comparison.runs.items():
        for measure, difference in list(measures.items())[:1]:
            if moved := difference.moved(comparison.settings.moved):
                lines.append(f"{run} moved most in {measure}: {', '.join(map(change_text, moved))}")
    return lines


def comparison_dict(comparison: Comparison) -> dict[str, Any]:
    """The JSON form: settings, then run -> measure -> values of the difference."""
    s = comparison.settings
    runs = {
        run: {
            m: _difference_dict(d) | {"moved": [asdict(c) | {"difference": c.difference} for c in d.moved(s.moved)]}
            for m, d in measures.items()
        }
        for run, measures in comparison.runs.items()
    }
    return {
        "baseline": comparison.baseline,
        "tests": list(s.tests),
        "correction": "holm",
        "alpha": s.alpha,
        "interval": {"method": "percentile bootstrap", "level": s.level, "resamples": BOOTSTRAPS},
        "seed": s.seed,
        "runs": runs,
    }


def _difference_dict(d: Difference) -> dict[str, Any]:
    return {
        "queries": len(d.changes),
        "difference": d.mean,
        "interval": d.interval,
        "wins": d.wins,
        "ties": d.ties,
        "losses": d.losses,
        "p": d.p,
        "p_holm": d.corrected,
        "permutation": d.permutation._asdict() if d.permutation else None,
    }


def csv_columns(difference: Difference | None, tests: Iterable[str]) -> dict[str, Any]:
    """Column -> value of one run in one measure; empty values for the baseline itself and for undefined tests."""
    d = difference
    low, high = (d.interval if d else None) or (None, None)
    counts = {"wins": d.wins, "ties": d.ties, "losses": d.losses} if d else dict.fromkeys(("wins", "ties", "losses"))
    p = {f"p {test}": d.p[test] if d else None for test in tests}
    corrected = {f"p_holm {test}": d.corrected[test] if d else None for test in tests}
    ends = {"difference low": low, "difference high": high}
    return {"difference": d.mean if d else None, **ends, **counts, **p, **corrected}
