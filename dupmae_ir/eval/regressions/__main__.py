"""``python -m dupmae_ir.eval.regressions run|list|report|accept``: see ``--help``."""

from __future__ import annotations

import sys
from typing import Any

from dupmae_ir.command import Command, dispatch
from dupmae_ir.eval.regressions.config import AcceptOptions, ListOptions, ReportOptions, RunCasesOptions


def _show_run(config: RunCasesOptions, result: dict[str, Any]) -> str:
    if config.dry_run:
        lines: list[str] = []
        for case in result["cases"]:
            lines.append(f"# {case['id']}: {case['title']}")
            lines += case["commands"]
        return "\n".join(lines)
    return result["summary"]


def _run_status(config: RunCasesOptions, result: dict[str, Any]) -> int:
    return 0 if config.dry_run else int(result["exit_status"])


def _summarize_accepted(_: AcceptOptions, result: dict[str, Any]) -> str:
    names = result["accepted"]
    return f"accepted {len(names)} case{'s' if len(names) != 1 else ''}: {', '.join(names)}"


run = Command(
    "eval.regressions run",
    RunCasesOptions,
    "dupmae_ir.eval.regressions.run:run",
    show=_show_run,
    status=_run_status,
    resumes=True,
)
list_cases = Command(
    "eval.regressions list",
    ListOptions,
    "dupmae_ir.eval.regressions.run:list_cases",
    show=lambda _, result: result["table"],
)
report = Command(
    "eval.regressions report",
    ReportOptions,
    "dupmae_ir.eval.regressions.run:report_cases",
    summarize=lambda config, result: f"{config.file}: {result['summary']}" if config.file else "",
    show=lambda _, result: result.get("text", ""),
)
accept = Command(
    "eval.regressions accept",
    AcceptOptions,
    "dupmae_ir.eval.regressions.run:accept_cases",
    summarize=_summarize_accepted,
)
VERBS = {
    "run": ("run cases and compare their values with the expected ones", run),
    "list": ("list cases, the papers' numbers and the accepted values", list_cases),
    "report": ("report results as Markdown, JSON, JUnit or HTML", report),
    "accept": ("accept measured values as the expected ones", accept),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the four commands and return its exit status."""
    return dispatch("eval.regressions", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
