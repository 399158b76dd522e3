"""The work of ``dupmae-ir eval.regressions run``, ``list`` and ``report``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dupmae_ir.config import with_flags
from dupmae_ir.console import say
from dupmae_ir.device import processors
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import Case, Regression
from dupmae_ir.eval.regressions.config import (
    CaseOptions,
    ListOptions,
    ReportOptions,
    RunCasesOptions,
)
from dupmae_ir.eval.regressions.execute import (
    Result,
    changed_names,
    changed_run,
    command_lines,
    execute,
    load_result,
    result_path,
)
from dupmae_ir.eval.regressions.report import (
    CaseRow,
    JudgedCases,
    MeanRow,
    RegressionRows,
    as_html,
    as_text,
    mean_lines,
    means,
    row_lines,
)
from dupmae_ir.eval.regressions.verdict import CaseVerdict, Status, against_control, judge
from dupmae_ir.eval.regressions.workspace import Workspace, code_digest, fingerprint
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.registry import lookup


def run(options: RunCasesOptions, workspace: Callable[..., Workspace] = Workspace) -> JudgedCases:
    """Run the selected cases and return the results; with ``dry_run``, their commands.

    Prints each case on standard error when it is done. Raises :class:`UsageError` while another process runs
    regressions in the same folder. ``workspace``: makes the workspaces, for a rehearsal.
    """
    selection = CaseSelection(options, workspace)
    if options.dry_run:
        return JudgedCases([selection.row(case, None) for case in selection.cases])
    rows = []
    for row in selection.run():
        required = row.passes and options.fail_on_skip
        rows.append(replace(row, verdicts=_not_skipped(row.verdicts)) if required else row)
        say(with_flags("\n".join(row_lines(rows[-1])), RunCasesOptions))
    mean_rows = selection.means(rows)
    for mean in mean_rows:
        say("\n".join(mean_lines(mean)))
    if all(row.status is Status.SKIP for row in rows):
        say(
            f"warning: nothing was compared, because every case was skipped ({len(rows)}); --fail-on-skip fails then"
        )
    return JudgedCases(rows, mean_rows)


def _not_skipped(verdicts: Sequence[CaseVerdict]) -> list[CaseVerdict]:
    """The verdicts of a required case: a skipped one fails."""
    return [
        replace(v, status=Status.FAIL, reason=f"required, but skipped: {v.reason}")
        if v.status is Status.SKIP
        else v
        for v in verdicts
    ]


def list_cases(options: ListOptions) -> JudgedCases:
    """The selected cases, without results."""
    selection = CaseSelection(options)
    return JudgedCases([selection.row(case, None) for case in selection.cases])


@dataclass(frozen=True)
class CasesReport:
    """The results on disk as text, which is also written to ``file`` if one is named."""

    text: str
    summary: str
    file: str | None


def report_cases(options: ReportOptions) -> CasesReport:
    """Report the results on disk."""
    selection = CaseSelection(options)
    rows = list(selection.load_rows())
    judged = JudgedCases(rows, selection.means(rows))
    format = "json" if options.json else options.format
    if format == "html":
        text = as_html(judged, selection.by_regression(rows))
    else:
        text = judged.json() if format == "json" else with_flags(as_text(judged), ReportOptions)
    if options.file:
        _write(options.file, text)
    return CasesReport(text, judged.summary, options.file)


class CaseSelection:
    """The selected cases, with the options under which they run."""

    def __init__(
        self, options: CaseOptions, workspace: Callable[..., Workspace] = Workspace
    ) -> None:
        self.options = options
        self._make_workspace = workspace
        self._workspaces: dict[str, Workspace] = {}  #: by tier
        self.folder = cases.find_folder(options.recipes)
        self.regressions: dict[str, Regression] = cases.load(self.folder)
        self._by_id = {case.id: case for case in cases.select(self.regressions, (), None)}
        self.cases = cases.select(self.regressions, options.names, options.tier)
        if not self.cases:
            raise UsageError(f"no case of tier {options.tier} among {', '.join(options.names)}")

    def workspace(self, case: Case) -> Workspace:
        """The workspace of a case. Tiers with exact values use one thread, because sums depend on their number."""
        if case.tier not in self._workspaces:
            o = self.options
            threads = o.threads if o.threads is not None else 0 if case.tier == "full" else 1
            self._workspaces[case.tier] = self._make_workspace(
                recipes=self.folder,
                folder=Path(o.output, o.preset or ""),
                preset=o.preset,
                data=_path(o.collections),
                cache=_path(o.cache),
                mirror=o.mirror,
                catalogue=_path(o.catalogue),
                given=_given_models(o.model),
                threads=threads or processors(),
                processes=o.processes if isinstance(o, RunCasesOptions) else 1,
                fresh=isinstance(o, RunCasesOptions) and o.fresh,
                quiet=o.quiet,
            )
        return self._workspaces[case.tier]

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
            if result and (outdated := self.outdated(case, result)):
                row = replace(row, verdicts=[CaseVerdict(Status.STALE, reason=outdated)])
            elif result and (changed := self.changed_run(case, result)):
                row = replace(row, verdicts=[CaseVerdict(Status.FAIL, reason=changed)])
            yield row

    def row(self, case: Case, result: Result | None) -> CaseRow:
        """The case with its result, its verdicts and its commands."""
        regression = self.regressions[case.regression]
        workspace = self.workspace(case)
        model = workspace.models.get(case.model)
        queries = regression.accepted_queries.get(case.name, {})
        # The synthetic model of tier tiny is the same bytes wherever versions and processor are the same.
        same = result is not None and dict(result.environment) == self._accepted(case).get(
            "environment"
        )
        fixed = model is not None and (model.fixed or (model.tiny and same))
        verdicts = judge(case, result, self._accepted(case), queries, fixed)
        if case.control:
            control = lookup("control", case.control, self._by_id)
            other = load_result(result_path(control, self.workspace(control)))
            if other and not self.outdated(control, other):
                verdicts += against_control(case, result, control, other)
        given = result.given if result else {}
        if model and result and not result.skipped:
            verdicts += [
                CaseVerdict(Status.STALE, reason=c)
                for c in workspace.training_changes(model.name, given)
            ]
        origin = f"Model: {model.title} ({workspace.origin(model.name, given)})" if model else ""
        return CaseRow(
            verdicts,
            case,
            result,
            self._accepted(case),
            lambda: command_lines(case, workspace),
            origin,
        )

    def means(self, rows: list[CaseRow]) -> list[MeanRow]:
        """The papers' means over collections, of the regressions in ``rows``."""
        names = dict.fromkeys(r.case.regression for r in rows)
        return [
            mean
            for name in names
            for mean in means(
                self.regressions[name], [r for r in rows if r.case.regression == name]
            )
        ]

    def by_regression(self, rows: list[CaseRow]) -> list[RegressionRows]:
        """The rows of each regression, those with accepted values first."""
        names = list(dict.fromkeys(r.case.regression for r in rows))
        names.sort(key=lambda name: not self.regressions[name].accepted)
        of = {name: [r for r in rows if r.case.regression == name] for name in names}
        return [RegressionRows(self.regressions[name].title, of[name]) for name in names]

    def _accepted(self, case: Case) -> Mapping[str, Any]:
        return self.regressions[case.regression].accepted.get(case.name, {})

    def changed_run(self, case: Case, result: Result) -> str:
        """A reason if the run file or the values are not those that were measured; empty if they are."""
        workspace = self.workspace(case)
        changed = result.run_sha256 and changed_run(
            case, workspace, workspace.planned_collection(case.collection), result
        )
        return f"{changed}; run the case again" if changed else ""

    def outdated(self, case: Case, result: Result) -> str:
        """What has changed since the result was measured: code, environment or configuration; empty if nothing."""
        if not result.key:
            return ""
        now = {"code": code_digest(), "environment": fingerprint(self.workspace(case).threads)}
        changed = changed_names(now, result.key)
        if case.configuration != result.configuration:
            changed.append("configuration")
        return (
            f"measured {result.date} with other {' and '.join(changed)}; run it again"
            if changed
            else ""
        )


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
