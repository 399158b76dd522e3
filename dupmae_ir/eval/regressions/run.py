"""The work of ``dupmae-ir eval.regressions run``, ``list``, ``report`` and ``accept``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dupmae_ir.console import say
from dupmae_ir.device import processors
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions import cases, html_report, report
from dupmae_ir.eval.regressions.accept import accept
from dupmae_ir.eval.regressions.cases import Case, Regression
from dupmae_ir.eval.regressions.commands import command_lines, plan_lines, result_path
from dupmae_ir.eval.regressions.config import AcceptOptions, CaseOptions, ListOptions, ReportOptions, RunOptions
from dupmae_ir.eval.regressions.environment import code_digest, fingerprint
from dupmae_ir.eval.regressions.execute import Result, changed_names, execute, load_result
from dupmae_ir.eval.regressions.report import MeanRow, Row, as_dict, means, row_lines, summarize
from dupmae_ir.eval.regressions.verdict import Status, Verdict, judge
from dupmae_ir.eval.regressions.workspace import Workspace
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import atomic_write


def run(options: RunOptions) -> dict[str, Any]:
    """Run the selected cases and return the results; with ``dry_run``, their commands.

    Prints each case on standard error when it is done. Raises :class:`UsageError` while another process runs
    regressions in the same folder.
    """
    selection = Selection(options)
    if options.dry_run:
        return {"cases": [_dry(selection.row(case, None), selection.workspace(case)) for case in selection.cases]}
    rows = []
    for row in selection.run():
        rows.append(row)
        say("\n".join(row_lines(row)))
    if options.junit:
        _write(options.junit, report.as_junit(rows))
    return as_dict(rows, selection.means(rows))


def _dry(row: Row, workspace: Workspace) -> dict[str, Any]:
    case = row.case
    return {"id": case.id, "title": case.title, "plan": plan_lines(case, workspace), "commands": row.commands()}


def list_cases(options: ListOptions) -> dict[str, Any]:
    """The selected cases, as JSON-able values and as a table."""
    selection = Selection(options)
    rows = [selection.row(case, None) for case in selection.cases]
    return {"cases": [report.case_dict(case) for case in selection.cases], "table": report.as_list(rows)}


def report_cases(options: ReportOptions) -> dict[str, Any]:
    """The results on disk: as JSON-able values with ``json``, else rendered as text or written to ``file``."""
    selection = Selection(options)
    rows = list(selection.load_rows())
    if options.json and not options.file:
        return as_dict(rows, selection.means(rows))
    text = _rendered("json" if options.json else options.format, selection, rows)
    if not options.file:
        return {"text": text}
    _write(options.file, text)
    return {"file": options.file, "summary": summarize(rows)}


def accept_cases(options: AcceptOptions) -> dict[str, Any]:
    """Accept the results on disk and return the ids of the cases."""
    return {"accepted": [case.id for case in Selection(options).accept()]}


class Selection:
    """The selected cases, with the options under which they run."""

    def __init__(self, options: CaseOptions) -> None:
        self.options = options
        self._workspaces: dict[str, Workspace] = {}  #: by tier
        self.folder = cases.find_folder(options.recipes)
        self.regressions: dict[str, Regression] = cases.load(self.folder)
        self.cases = cases.select(self.regressions, options.names, options.tier)
        if not self.cases:
            raise UsageError(f"no case of tier {options.tier} among {', '.join(options.names)}")

    def workspace(self, case: Case) -> Workspace:
        """The workspace of a case. Tiers with exact values use one thread, because sums depend on their number."""
        if case.tier not in self._workspaces:
            self._workspaces[case.tier] = self._workspace(case)
        return self._workspaces[case.tier]

    def _workspace(self, case: Case) -> Workspace:
        o = self.options
        threads = o.threads if o.threads is not None else 0 if case.tier == "full" else 1
        return Workspace(
            recipes=self.folder,
            folder=Path(o.output, *[name for name in (o.scale and f"scale-{o.scale}", o.preset) if name]),
            preset=o.preset,
            scale=o.scale,
            data=_path(o.collections),
            cache=_path(o.cache),
            mirror=o.mirror,
            catalogue=_path(o.catalogue),
            given=_given_models(o.model),
            threads=threads or processors(),
            fresh=isinstance(o, RunOptions) and o.fresh,
            quiet=o.quiet,
        )

    def run(self) -> Iterator[Row]:
        """Run the cases one after the other, holding the lock of the output folder."""
        output = Path(self.options.output).absolute()
        output.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_path(output), f"running regressions in {output}"):
            for case in self.cases:
                yield self.row(case, execute(case, self.workspace(case), self._accepted(case)))

    def load_rows(self) -> Iterator[Row]:
        """The cases with their results on disk. Results of other code or settings are STALE."""
        for case in self.cases:
            result = load_result(result_path(case, self.workspace(case)))
            row = self.row(case, result)
            if result and (outdated := self._outdated(case, result)):
                row = replace(row, verdicts=[Verdict(Status.STALE, reason=outdated)])
            yield row

    def row(self, case: Case, result: Result | None) -> Row:
        """The case with its result, its verdicts and its commands."""
        regression = self.regressions[case.regression]
        workspace = self.workspace(case)
        model = workspace.models.get(case.model)
        queries = regression.accepted_queries.get(case.name, {})
        verdicts = judge(case, result, self._accepted(case), queries, fixed=model is not None and model.fixed)
        origin = f"Model: {model.title} ({model.origin})" if model else ""
        return Row(case, result, verdicts, self._accepted(case), lambda: command_lines(case, workspace), origin)

    def means(self, rows: list[Row]) -> list[MeanRow]:
        """The papers' means over collections, of the regressions in ``rows``."""
        names = dict.fromkeys(r.case.regression for r in rows)
        return [
            mean
            for name in names
            for mean in means(self.regressions[name], [r for r in rows if r.case.regression == name])
        ]

    def by_regression(self, rows: list[Row]) -> list[tuple[str, list[Row]]]:
        """(title of a regression, its rows), those with accepted values first."""
        names = list(dict.fromkeys(r.case.regression for r in rows))
        names.sort(key=lambda name: not self.regressions[name].accepted)
        return [(self.regressions[n].title, [r for r in rows if r.case.regression == n]) for n in names]

    def accept(self) -> list[Case]:
        """Accept the results on disk and return their cases.

        Raises :class:`UsageError` for a case without a result that can be accepted.
        """
        by_regression: dict[str, list[tuple[Case, Result]]] = {}
        for case in self.cases:
            result = load_result(result_path(case, self.workspace(case)))
            if result is None:
                raise UsageError(f"{case.id}: nothing was measured; run it first")
            if outdated := self._outdated(case, result):
                raise UsageError(f"{case.id}: {outdated}")
            by_regression.setdefault(case.regression, []).append((case, result))
        for name, results in by_regression.items():
            accept(self.regressions[name], results)
        return [case for results in by_regression.values() for case, _ in results]

    def _accepted(self, case: Case) -> dict[str, Any]:
        return dict(self.regressions[case.regression].accepted.get(case.name, {}))

    def _outdated(self, case: Case, result: Result) -> str:
        """What has changed since the result was measured: code, environment or configuration; empty if nothing."""
        if not result.key:
            return ""
        now = {"code": code_digest(), "environment": fingerprint(self.workspace(case).threads)}
        changed = changed_names(now, result.key)
        if case.configuration != result.configuration:
            changed.append("configuration")
        return f"measured {result.date} with other {' and '.join(changed)}; run it again" if changed else ""


def _rendered(name: str, selection: Selection, rows: list[Row]) -> str:
    mean_rows = selection.means(rows)
    if name == "html":
        return html_report.as_html(selection.by_regression(rows), mean_rows)
    if name == "junit":
        return report.as_junit(rows)
    renderers = {"markdown": report.as_markdown, "json": report.as_json, "reproduction": report.reproduction}
    return renderers[name](rows, mean_rows)


def _write(path: str, text: str) -> None:
    with atomic_write(path) as f:
        f.write(text + "\n")


def _path(value: str | None) -> Path | None:
    return Path(value) if value else None


def _given_models(values: tuple[str, ...]) -> dict[str, Path]:
    folders = {}
    for value in values:
        name, equals, folder = value.partition("=")
        if not equals:
            raise UsageError(f"--model {value}: must be NAME=FOLDER")
        folders[name] = Path(folder)
    return folders
