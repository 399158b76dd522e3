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
from dupmae_ir.eval.regressions.cases import Case, Model, Regression
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
        if row.passes and options.fail_on_skip:
            row = replace(row, verdicts=_not_skipped(row.verdicts))
        rows.append(row)
        say(with_flags("\n".join(row_lines(row)), RunCasesOptions))
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
    required = []
    for verdict in verdicts:
        if verdict.status is Status.SKIP:
            reason = f"required, but skipped: {verdict.reason}"
            verdict = replace(verdict, status=Status.FAIL, reason=reason)
        required.append(verdict)
    return required


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
    elif format == "json":
        text = judged.json()
    else:
        text = with_flags(as_text(judged), ReportOptions)
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
            options = self.options
            threads = options.threads
            if threads is None:
                threads = 0 if case.tier == "full" else 1
            # Only `run` has these options; the other commands train nothing.
            processes = 1
            fresh = False
            if isinstance(options, RunCasesOptions):
                processes = options.processes
                fresh = options.fresh
            self._workspaces[case.tier] = self._make_workspace(
                recipes=self.folder,
                folder=Path(options.output, options.preset or ""),
                preset=options.preset,
                data=_path(options.collections),
                cache=_path(options.cache),
                mirror=options.mirror,
                catalogue=_path(options.catalogue),
                given=_given_models(options.model),
                threads=threads or processors(),
                processes=processes,
                fresh=fresh,
                quiet=options.quiet,
            )
        return self._workspaces[case.tier]

    def run(self) -> Iterator[CaseRow]:
        """Run the cases one after the other, holding the lock of the output folder.

        Cases share indexes and trained models, which a second process would build at the same time.
        """
        output = Path(self.options.output).absolute()
        output.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_path(output), f"running regressions in {output}"):
            for case in self.cases:
                result = execute(case, self.workspace(case), self._accepted(case))
                yield self.row(case, result)

    def load_rows(self) -> Iterator[CaseRow]:
        """The cases with their results on disk. Results of other code or settings are STALE."""
        for case in self.cases:
            result = load_result(result_path(case, self.workspace(case)))
            row = self.row(case, result)
            if result:
                problem = self._problem(case, result)
                if problem:
                    row = replace(row, verdicts=[problem])
            yield row

    def _problem(self, case: Case, result: Result) -> CaseVerdict | None:
        """Why a result on disk is not judged by its values; None if it is."""
        outdated = self.outdated(case, result)
        if outdated:
            return CaseVerdict(Status.STALE, reason=outdated)
        changed = self.changed_run(case, result)
        if changed:
            return CaseVerdict(Status.FAIL, reason=changed)
        return None

    def row(self, case: Case, result: Result | None) -> CaseRow:
        """The case with its result, its verdicts and its commands."""
        regression = self.regressions[case.regression]
        workspace = self.workspace(case)
        accepted = self._accepted(case)
        model = workspace.models.get(case.model)
        queries = regression.accepted_queries.get(case.name, {})
        verdicts = judge(
            case, result, accepted, queries, _has_fixed_weights(model, result, accepted)
        )
        if case.control:
            control = lookup("control", case.control, self._by_id)
            control_result = load_result(result_path(control, self.workspace(control)))
            if control_result and not self.outdated(control, control_result):
                verdicts += against_control(case, result, control, control_result)

        given = result.given if result else {}
        if model and result and not result.skipped:
            for change in workspace.training_changes(model.name, given):
                verdicts.append(CaseVerdict(Status.STALE, reason=change))
        origin = ""
        if model:
            origin = f"Model: {model.title} ({workspace.origin(model.name, given)})"
        return CaseRow(
            verdicts, case, result, accepted, lambda: command_lines(case, workspace), origin
        )

    def means(self, rows: list[CaseRow]) -> list[MeanRow]:
        """The papers' means over collections, of the regressions in ``rows``."""
        mean_rows = []
        for name, regression_rows in _by_name(rows).items():
            mean_rows += means(self.regressions[name], regression_rows)
        return mean_rows

    def by_regression(self, rows: list[CaseRow]) -> list[RegressionRows]:
        """The rows of each regression; regressions with accepted values come first."""
        by_name = _by_name(rows)
        names = sorted(by_name, key=lambda name: not self.regressions[name].accepted)
        return [RegressionRows(self.regressions[name].title, by_name[name]) for name in names]

    def _accepted(self, case: Case) -> Mapping[str, Any]:
        return self.regressions[case.regression].accepted.get(case.name, {})

    def changed_run(self, case: Case, result: Result) -> str:
        """A reason if the run file or the values are not those that were measured; empty if they are."""
        if not result.run_sha256:
            return ""
        workspace = self.workspace(case)
        files = workspace.planned_collection(case.collection)
        change = changed_run(case, workspace, files, result)
        if not change:
            return ""
        return f"{change}; run the case again"

    def outdated(self, case: Case, result: Result) -> str:
        """What has changed since the result was measured: code, environment or configuration; empty if nothing."""
        if not result.key:
            return ""
        current = {"code": code_digest(), "environment": fingerprint(self.workspace(case).threads)}
        changed = changed_names(current, result.key)
        if case.configuration != result.configuration:
            changed.append("configuration")
        if not changed:
            return ""
        return f"measured {result.date} with other {' and '.join(changed)}; run it again"


def _has_fixed_weights(
    model: Model | None, result: Result | None, accepted: Mapping[str, Any]
) -> bool:
    """Whether the weights must be the bytes of the accepted ones."""
    if model is None:
        return False
    if model.tiny:
        # The synthetic model is the same bytes wherever versions and processor are the same.
        return result is not None and dict(result.environment) == accepted.get("environment")
    return model.fixed


def _by_name(rows: Sequence[CaseRow]) -> dict[str, list[CaseRow]]:
    """Regression -> its rows, in the order of ``rows``."""
    by_name: dict[str, list[CaseRow]] = {}
    for row in rows:
        by_name.setdefault(row.case.regression, []).append(row)
    return by_name


def _write(path: str, text: str) -> None:
    with atomic_write(path) as f:
        f.write(text + "\n")


def _path(value: str | None) -> Path | None:
    if not value:
        return None
    return Path(value)


def _given_models(values: tuple[str, ...]) -> dict[str, Path]:
    folders = {}
    for value in values:
        name, equals, folder = value.partition("=")
        if not equals:
            raise UsageError(f"`model` {value}: must be NAME=FOLDER")
        folders[name] = Path(folder)
    return folders
