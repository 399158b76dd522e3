"""``python -m dupmae_ir.eval.regressions run|list|report``: see ``--help``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from dupmae_ir.command import Command, dispatch
from dupmae_ir.eval.regressions.config import (
    CaseOptions,
    ListOptions,
    ReportOptions,
    RunCasesOptions,
)

if TYPE_CHECKING:
    from dupmae_ir.eval.regressions.report import JudgedCases
    from dupmae_ir.eval.regressions.run import CasesReport


def _show_run(config: RunCasesOptions, judged: JudgedCases) -> str:
    if not config.dry_run:
        return judged.summary
    return "\n".join(
        line for row in judged.rows for line in (f"# {row.id}: {row.case.title}", *row.commands())
    )


def _cases_json(_: CaseOptions, judged: JudgedCases) -> str:
    from dupmae_ir.eval.regressions.report import case_dict

    cases = [{**case_dict(row.case), "commands": row.commands()} for row in judged.rows]
    return json.dumps({"cases": cases}, ensure_ascii=False)


def _show_list(_: ListOptions, judged: JudgedCases) -> str:
    from dupmae_ir.eval.regressions.report import as_list

    return as_list(judged.rows)


def _report_json(config: ReportOptions, report: CasesReport) -> str:
    return (
        json.dumps({"file": report.file, "summary": report.summary}) if config.file else report.text
    )


run = Command(
    "eval.regressions run",
    RunCasesOptions,
    "dupmae_ir.eval.regressions.run:run",
    show=_show_run,
    as_json=lambda config, judged: _cases_json(config, judged) if config.dry_run else judged.json(),
    status=lambda config, judged: 0 if config.dry_run else judged.exit_status,
    resumes=True,
)
list_cases = Command(
    "eval.regressions list",
    ListOptions,
    "dupmae_ir.eval.regressions.run:list_cases",
    show=_show_list,
    as_json=_cases_json,
)
report = Command(
    "eval.regressions report",
    ReportOptions,
    "dupmae_ir.eval.regressions.run:report_cases",
    summarize=lambda config, report: f"{config.file}: {report.summary}" if config.file else "",
    show=lambda config, report: "" if config.file else report.text,
    as_json=_report_json,
)
VERBS = {
    "run": ("run cases and compare their values with the expected ones", run),
    "list": ("list cases, the papers' numbers and the accepted values", list_cases),
    "report": ("report results as Markdown, JSON, JUnit or HTML", report),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the commands and return its exit status."""
    return dispatch("eval.regressions", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
