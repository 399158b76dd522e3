"""``python -m dupmae_ir.eval.regressions run|list|report``: see ``--help``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from dupmae_ir.command import Command, dispatch
from dupmae_ir.eval.regressions.config import ListOptions, ReportOptions, RunCasesOptions

if TYPE_CHECKING:
    from dupmae_ir.eval.regressions.report import JudgedCases
    from dupmae_ir.eval.regressions.run import CasesReport


def _show_run(config: RunCasesOptions, judged: JudgedCases) -> str:
    if not config.dry_run:
        return judged.summary
    lines = []
    for row in judged.rows:
        lines.append(f"# {row.id}: {row.case.title}")
        lines += row.commands()
    return "\n".join(lines)


def _run_json(config: RunCasesOptions, judged: JudgedCases) -> str:
    if config.dry_run:
        return judged.cases_json()
    return judged.json()


def _run_status(config: RunCasesOptions, judged: JudgedCases) -> int:
    if config.dry_run:
        return 0
    return judged.exit_status


def _list_json(_: ListOptions, judged: JudgedCases) -> str:
    return judged.cases_json()


def _show_list(_: ListOptions, judged: JudgedCases) -> str:
    return judged.listing()


def _summarize_report(config: ReportOptions, report: CasesReport) -> str:
    if not config.file:
        return ""
    return f"{config.file}: {report.summary}"


def _show_report(config: ReportOptions, report: CasesReport) -> str:
    if config.file:
        return ""
    return report.text


def _report_json(config: ReportOptions, report: CasesReport) -> str:
    if config.file:
        return json.dumps({"file": report.file, "summary": report.summary})
    return report.text


run = Command(
    "eval.regressions run",
    RunCasesOptions,
    "dupmae_ir.eval.regressions.run:run",
    show=_show_run,
    as_json=_run_json,
    status=_run_status,
    resumes=True,
)
list_cases = Command(
    "eval.regressions list",
    ListOptions,
    "dupmae_ir.eval.regressions.run:list_cases",
    show=_show_list,
    as_json=_list_json,
)
report = Command(
    "eval.regressions report",
    ReportOptions,
    "dupmae_ir.eval.regressions.run:report_cases",
    summarize=_summarize_report,
    show=_show_report,
    as_json=_report_json,
)
VERBS = {
    "run": ("run cases and compare their values with the expected ones", run),
    "list": ("list cases, the papers' numbers and the accepted values", list_cases),
    "report": ("report results as text, JSON or HTML", report),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the commands and return its exit status."""
    return dispatch("eval.regressions", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
