"""The work of ``dupmae-ir eval.regressions run``, ``list``, ``report`` and ``accept``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dupmae_ir.config import with_flags
from dupmae_ir.console import say
from dupmae_ir.device import processors
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions import cases, report
from dupmae_ir.eval.regressions.accept import accept
from dupmae_ir.eval.regressions.cases import Case, Regression
from dupmae_ir.eval.regressions.commands import command_lines, index_path, result_path, run_path
from dupmae_ir.eval.regressions.config import AcceptOptions, CaseOptions, ListOptions, ReportOptions, RunCasesOptions
from dupmae_ir.eval.regressions.environment import code_digest, fingerprint
from dupmae_ir.eval.regressions.execute import Result, changed_names, execute, load_result
from dupmae_ir.eval.regressions.html import MovedQueries, RegressionRows, as_html
from dupmae_ir.eval.regressions.report import CaseRow, MeanRow, as_dict, mean_lines, means, row_lines, summarize
from dupmae_ir.eval.regressions.verdict import SHOWN, CaseVerdict, Status, changed_queries, judge
from dupmae_ir.eval.regressions.workspace import Workspace
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import atomic_write, sha256_file
from dupmae_ir.io.topics import read_topics


def run(options: RunCasesOptions, workspace: Callable[..., Workspace] = Workspace) -> dict[str, Any]:
    """Run the selected cases and return the results; with ``dry_run``, their commands.

    Prints each case on standard error when it is done. Raises :class:`UsageError` while another process runs
    regressions in the same folder. ``workspace``: makes the workspaces, for a rehearsal.
    """
    selection = CaseSelection(options, workspace)
    _check_required(options, selection)
    if options.dry_run:
        return {"cases": [_dry(selection.row(case, None)) for case in selection.cases]}
    rows = []
    for row in selection.run():
        required = row.passes and (options.fail_on_skip or _is_required(row.case.id, options.require))
        rows.append(replace(row, verdicts=_not_skipped(row.verdicts)) if required else row)
        say(with_flags("\n".join(row_lines(rows[-1])), RunCasesOptions))
    mean_rows = [
        replace(m, verdicts=_not_skipped(m.verdicts)) if _is_required(m.id, options.require) else m
        for m in selection.means(rows)
    ]
    for mean in mean_rows:
        say("\n".join(mean_lines(mean)))
    if all(row.status is Status.SKIP for row in rows):
        say(f"warning: nothing was compared, because every case was skipped ({len(rows)}); --fail-on-skip fails then")
    if options.junit:
        _write(options.junit, report.as_junit(rows, mean_rows))
    return as_dict(rows, mean_rows)


def _is_required(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_required(options: RunCasesOptions, selection: CaseSelection) -> None:
    """Raise :class:`UsageError` for a pattern of ``--require`` without a case, or with one that is not selected."""
    selected = {case.id for case in selection.cases}
    every = [case.id for regression in selection.regressions.values() for case in regression.cases]
    every += [f"{name}/mean:{mean.name}" for name, r in selection.regressions.items() for mean in r.means]
    for pattern in options.require:
        matching = [name for name in every if fnmatchcase(name, pattern)]
        absent = [name for name in matching if name not in selected and "/mean:" not in name]
        if not matching:
            raise UsageError(f"`require` {pattern}: no case or mean has this name; a pattern is like 'bm25.beir/*'")
        if absent:
            more = f" and {len(absent) - 1} more" if absent[1:] else ""
            raise UsageError(f"`require` {pattern}: {absent[0]}{more} not selected; name the cases to run, or no case")


def _not_skipped(verdicts: Iterable[CaseVerdict]) -> list[CaseVerdict]:
    """The verdicts of a required case: a skipped one fails."""
    return [
        replace(v, status=Status.FAIL, reason=f"required, but skipped: {v.reason}") if v.status is Status.SKIP else v
        for v in verdicts
    ]


def _dry(row: CaseRow) -> dict[str, Any]:
    case = row.case
    return {"id": case.id, "title": case.title, "commands": row.commands()}


def list_cases(options: ListOptions) -> dict[str, Any]:
    """The selected cases, as JSON-able values and as a table."""
    selection = CaseSelection(options)
    rows = [selection.row(case, None) for case in selection.cases]
    return {"cases": [report.case_dict(case) for case in selection.cases], "table": report.as_list(rows)}


def report_cases(options: ReportOptions) -> dict[str, Any]:
    """The results on disk: as JSON-able values with ``json``, else rendered as text or written to ``file``."""
    selection = CaseSelection(options)
    rows = list(selection.load_rows())
    if options.json and not options.file:
        return as_dict(rows, selection.means(rows))
    text = _rendered("json" if options.json else options.format, selection, rows)
    if not options.file:
        return {"text": text}
    _write(options.file, text)
    return {"file": options.file, "summary": summarize(rows, selection.means(rows))}


def accept_cases(options: AcceptOptions) -> dict[str, Any]:
    """Accept the results on disk and return the ids of the cases."""
    return {"accepted": [case.id for case in CaseSelection(options).accept()]}


class CaseSelection:
    """The selected cases, with the options under which they run."""

    def __init__(self, options: CaseOptions, workspace: Callable[..., Workspace] = Workspace) -> None:
        self.options = options
        self._make_workspace = workspace
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
        return self._make_workspace(
            recipes=self.folder,
            folder=Path(o.output, o.preset or ""),
            preset=o.preset,
            data=_path(o.collections),
            cache=_path(o.cache),
            mirror=o.mirror,
            catalogue=_path(o.catalogue),
            given=_given_models(o.model),
            threads=threads or processors(),
            fresh=isinstance(o, RunCasesOptions) and o.fresh,
            quiet=o.quiet,
        )

    def run(self) -> Iterator[CaseRow]:
        """Run the cases one after the other, holding the lock of the output folder."""
        output = Path(self.options.output).absolute()
        output.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_path(output), f"running regressions in {output}"):
            for case in self.cases:
                yield self.row(case, execute(case, self.workspace(case), self._accepted(case)))

    def load_rows(self) -> Iterator[CaseRow]:
        """The cases with their results on disk. Results of other code or settings are STALE."""
        for case in self.cases:
            result = load_result(result_path(case, self.workspace(case)))
            row = self.row(case, result)
            if result and (outdated := self._outdated(case, result)):
                row = replace(row, verdicts=[CaseVerdict(Status.STALE, reason=outdated)])
            elif result and (changed := self._changed_run(case, result)):
                row = replace(row, verdicts=[CaseVerdict(Status.FAIL, reason=changed)])
            yield row

    def row(self, case: Case, result: Result | None) -> CaseRow:
        """The case with its result, its verdicts and its commands."""
        regression = self.regressions[case.regression]
        workspace = self.workspace(case)
        model = workspace.models.get(case.model)
        queries = regression.accepted_queries.get(case.name, {})
        # The synthetic model of tier tiny is the same bytes wherever versions and processor are the same.
        same = result is not None and dict(result.environment) == self._accepted(case).get("environment")
        fixed = model is not None and (model.fixed or (model.tiny and same))
        verdicts = judge(case, result, self._accepted(case), queries, fixed)
        origin = f"Model: {model.title} ({model.origin})" if model else ""
        return CaseRow(verdicts, case, result, self._accepted(case), lambda: command_lines(case, workspace), origin)

    def means(self, rows: list[CaseRow]) -> list[MeanRow]:
        """The papers' means over collections, of the regressions in ``rows``."""
        names = dict.fromkeys(r.case.regression for r in rows)
        return [
            mean
            for name in names
            for mean in means(self.regressions[name], [r for r in rows if r.case.regression == name])
        ]

    def by_regression(self, rows: list[CaseRow]) -> list[RegressionRows]:
        """The rows of each regression, those with accepted values first."""
        names = list(dict.fromkeys(r.case.regression for r in rows))
        names.sort(key=lambda name: not self.regressions[name].accepted)
        of = {name: [r for r in rows if r.case.regression == name] for name in names}
        return [RegressionRows(self.regressions[name].title, of[name]) for name in names]

    def moved(self, rows: list[CaseRow]) -> dict[str, MovedQueries]:
        """Case id -> the queries that changed most since their values were accepted."""
        return {row.case.id: moved for row in rows if row.result and (moved := self._moved(row.case, row.result))}

    def _moved(self, case: Case, result: Result) -> MovedQueries | None:
        measure = case.all_measures[0]
        then = self.regressions[case.regression].accepted_queries.get(case.name, {}).get(measure, {})
        changed = changed_queries(result.per_query.get(measure, {}), then)[:SHOWN]
        if not changed:
            return None
        workspace = self.workspace(case)
        files = workspace.planned_collection(case.collection)
        texts = {t.qid: t.text for t in read_topics(files.queries)} if files.queries.is_file() else {}
        qids = " ".join(shlex.quote(qid) for qid, _ in changed)
        command = (
            f"python eval/studies/case.py --index {index_path(case, workspace)} --topics {files.queries} --qid {qids} "
            f"--qrels {files.qrels(case.test)} --corpus {files.corpus}"
        )
        rows = [[qid, texts.get(qid, ""), f"{difference:+.4f}"] for qid, difference in changed]
        return MovedQueries(rows, command if case.mode == "hybrid" else "")

    def accept(self) -> list[Case]:
        """Accept the results on disk and return their cases.

        Raises :class:`UsageError` for a case without a result that can be accepted.
        """
        by_regression: dict[str, list[tuple[Case, Result]]] = {}
        for case in self.cases:
            result = load_result(result_path(case, self.workspace(case)))
            if result is None:
                raise UsageError(f"{case.id}: nothing was measured; run it first")
            if outdated := self._outdated(case, result) or self._changed_run(case, result):
                raise UsageError(f"{case.id}: {outdated}")
            by_regression.setdefault(case.regression, []).append((case, result))
        for name, results in by_regression.items():
            accept(self.regressions[name], results)
        return [case for results in by_regression.values() for case, _ in results]

    def _accepted(self, case: Case) -> dict[str, Any]:
        return dict(self.regressions[case.regression].accepted.get(case.name, {}))

    def _changed_run(self, case: Case, result: Result) -> str:
        """A reason if the run file is not the one that was measured; empty if it is."""
        path = run_path(case, self.workspace(case))
        if not result.run_sha256 or (path.is_file() and sha256_file(path) == result.run_sha256):
            return ""
        return f"{path} is not the run that was measured: it was changed, swapped or removed; run the case again"

    def _outdated(self, case: Case, result: Result) -> str:
        """What has changed since the result was measured: code, environment or configuration; empty if nothing."""
        if not result.key:
            return ""
        now = {"code": code_digest(), "environment": fingerprint(self.workspace(case).threads)}
        changed = changed_names(now, result.key)
        if case.configuration != result.configuration:
            changed.append("configuration")
        return f"measured {result.date} with other {' and '.join(changed)}; run it again" if changed else ""


def _rendered(name: str, selection: CaseSelection, rows: list[CaseRow]) -> str:
    mean_rows = selection.means(rows)
    if name == "html":
        return as_html(selection.by_regression(rows), mean_rows, selection.moved(rows))
    if name == "junit":
        return report.as_junit(rows, mean_rows)
    return (report.as_json if name == "json" else report.as_markdown)(rows, mean_rows)


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
            raise UsageError(f"`model` {value}: must be NAME=FOLDER")
        folders[name] = Path(folder)
    return folders
