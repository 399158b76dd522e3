"""``python -m dupmae_ir.eval.regressions run|list|report|accept``: see ``--help``."""

from __future__ import annotations

import sys
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.console import dispatch
from dupmae_ir.eval.regressions.config import AcceptOptions, ListOptions, ReportOptions, RunOptions

EXAMPLES = """
python -m dupmae_ir.eval.regressions run --tier tiny
python -m dupmae_ir.eval.regressions run --tier small --collections DATA
python -m dupmae_ir.eval.regressions run dupmae.msmarco-passage/stage2 --dry-run
python -m dupmae_ir.eval.regressions report --format html --file regressions.html
"""
RUN = """
Run cases with the toolkit's own commands, from download to evaluation, and compare each value with the paper and with
the last accepted value. Earlier work is reused only if configuration, weights, data, code and environment are the
same. The exit status is 1 if a case fails, is stale, or is better than its accepted value, and 3 if values differ
from a paper's only.
"""
LIST = "List the cases with the papers' numbers and the accepted values."
REPORT = "Report the results in --output beside the papers' numbers and the accepted values. Runs nothing."
ACCEPT = "Accept the results in --output as the expected values, and write them into the TOML files."


def _show_run(config: RunOptions, result: dict[str, Any]) -> str:
    if config.dry_run:
        lines: list[str] = []
        for case in result["cases"]:
            lines.append(f"# {case['id']}: {case['title']}")
            lines += [f"#   {line}" for line in case["plan"]]
            lines += case["commands"]
        return "\n".join(lines)
    return result["summary"]


def _run_status(config: RunOptions, result: dict[str, Any]) -> int:
    return 0 if config.dry_run else int(result["exit_status"])


def _summarize_accepted(_: AcceptOptions, result: dict[str, Any]) -> str:
    names = result["accepted"]
    return f"accepted {len(names)} case{'s' if len(names) != 1 else ''}: {', '.join(names)}"


run = Command(
    "eval.regressions run",
    RUN,
    "python -m dupmae_ir.eval.regressions run --tier small --collections DATA",
    RunOptions,
    "dupmae_ir.eval.regressions.run:run",
    show=_show_run,
    status=_run_status,
    resumes=True,
)
list_cases = Command(
    "eval.regressions list",
    LIST,
    "python -m dupmae_ir.eval.regressions list --tier small",
    ListOptions,
    "dupmae_ir.eval.regressions.run:list_cases",
    show=lambda _, result: result["table"],
)
report = Command(
    "eval.regressions report",
    REPORT,
    "python -m dupmae_ir.eval.regressions report --format html --file regressions.html",
    ReportOptions,
    "dupmae_ir.eval.regressions.run:report_cases",
    summarize=lambda config, result: f"{config.file}: {result['summary']}" if config.file else "",
    show=lambda _, result: result.get("text", ""),
)
accept = Command(
    "eval.regressions accept",
    ACCEPT,
    "python -m dupmae_ir.eval.regressions accept default.scifact",
    AcceptOptions,
    "dupmae_ir.eval.regressions.run:accept_cases",
    summarize=_summarize_accepted,
)
VERBS = {
    "run": ("run cases and compare their values with the expected ones", run),
    "list": ("list cases, the papers' numbers and the accepted values", list_cases),
    "report": ("report results as Markdown, JSON, JUnit, HTML or the reproduction table", report),
    "accept": ("accept measured values as the expected ones", accept),
}


def main(argv: list[str] | None = None) -> int:
    """Run one of the four commands and return its exit status."""
    return dispatch("eval.regressions", VERBS, EXAMPLES, argv)


if __name__ == "__main__":
    sys.exit(main())
