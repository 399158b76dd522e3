"""``python -m dupmae_ir.eval.regressions run|list|report|accept``: see ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, dispatch, say
from dupmae_ir.eval.regressions.run import Options, Regressions, ReportOptions, RunOptions

EXAMPLES = """
python -m dupmae_ir.eval.regressions run --tier tiny
python -m dupmae_ir.eval.regressions run --tier small --collections DATA
python -m dupmae_ir.eval.regressions run dupmae.msmarco-passage/stage2 --dry-run
python -m dupmae_ir.eval.regressions report --format html --file regressions.html
"""
RUN = """
Carry cases out, from download to verdict, by the toolkit's own commands: held against the paper's number and against
the value that was accepted last. What was made before is used again only if configuration, weights, data, code and
environment are the same. Exit status 1 when something fails, is stale, or is better than what was accepted.
"""
LIST = "What there is: cases, the papers' numbers, and the values that were accepted last."
REPORT = "What was measured in --output, next to the papers' numbers and the accepted values. Nothing is run."
ACCEPT = "Make what was measured in --output what is expected: it is written into the TOML files."


def main(argv: list[str] | None = None) -> int:
    return dispatch("eval.regressions", VERBS, EXAMPLES, argv)


def _run(argv: list[str]) -> int:
    from dupmae_ir.eval.regressions import report

    example = "python -m dupmae_ir.eval.regressions run --tier small --collections DATA"
    options = parse(Parser("eval.regressions run", RUN, example), RunOptions, argv)
    asked = Regressions(options)
    if options.dry_run:
        for case in asked.chosen:
            print(f"# {case.id}: {case.title}")
            print("\n".join(asked.row(case, None).commands()))
        return 0
    rows = []
    for row in asked.run():
        rows.append(row)
        say("\n".join(report.lines(row)))
    if options.junit:
        _write(options.junit, report.as_junit(rows))
    print(report.as_json(rows, asked.means(rows)) if options.json else report.summary(rows))
    return 0 if all(row.status.passes for row in rows) else 1


def _list(argv: list[str]) -> int:
    from dupmae_ir.eval.regressions import report

    example = "python -m dupmae_ir.eval.regressions list --tier small"
    asked = Regressions(parse(Parser("eval.regressions list", LIST, example), Options, argv))
    print(report.as_list([asked.row(case, None) for case in asked.chosen]))
    return 0


def _report(argv: list[str]) -> int:
    from dupmae_ir.eval.regressions import page, report

    example = "python -m dupmae_ir.eval.regressions report --format html --file regressions.html"
    options = parse(Parser("eval.regressions report", REPORT, example), ReportOptions, argv)
    asked = Regressions(options)
    rows = list(asked.found())
    if options.format == "html":
        text = page.as_html(asked.groups(rows), asked.means(rows))
    elif options.format == "junit":
        text = report.as_junit(rows)
    else:
        as_text = {"markdown": report.as_markdown, "json": report.as_json, "reproduction": report.reproduction}
        text = as_text[options.format](rows, asked.means(rows))
    if options.file:
        _write(options.file, text)
        say(f"{options.file}: {report.summary(rows)}", options.quiet)
    else:
        print(text)
    return 0


def _accept(argv: list[str]) -> int:
    example = "python -m dupmae_ir.eval.regressions accept default.scifact"
    asked = Regressions(parse(Parser("eval.regressions accept", ACCEPT, example), Options, argv))
    accepted = asked.accept()
    say(f"accepted {len(accepted)} case{'s' if len(accepted) != 1 else ''}: {', '.join(c.id for c in accepted)}")
    return 0


def _write(path: str, text: str) -> None:
    from dupmae_ir.io.publishing import atomic_write

    with atomic_write(Path(path)) as f:
        f.write(text + "\n")


VERBS = {
    "run": ("carry cases out and say what came of them", _run),
    "list": ("cases, the papers' numbers, the values accepted last", _list),
    "report": ("what was measured: Markdown, JSON, JUnit, a page, the papers' table", _report),
    "accept": ("make what was measured what is expected", _accept),
}

if __name__ == "__main__":
    sys.exit(main())
