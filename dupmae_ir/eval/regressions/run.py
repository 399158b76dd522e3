"""What ``dupmae-ir eval.regressions run | list | report | accept`` do, for Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dupmae_ir.config import option
from dupmae_ir.device import processors
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.regressions import cases, work
from dupmae_ir.eval.regressions.accept import accept
from dupmae_ir.eval.regressions.cases import TIERS, Case, Regression
from dupmae_ir.eval.regressions.place import Place
from dupmae_ir.eval.regressions.report import MeanRow, Row, means
from dupmae_ir.eval.regressions.verdict import Status, Verdict, judge
from dupmae_ir.eval.regressions.work import Result
from dupmae_ir.io.locks import exclusive

FORMATS = ("markdown", "json", "junit", "html", "reproduction")


@dataclass(frozen=True)
class Options:
    """What all of them can be told."""

    names: tuple[str, ...] = option(
        (), "REGRESSION or REGRESSION/CASE; none means all of the tier", group="what", metavar="NAME", positional=True
    )
    tier: str | None = option(
        None, "tiny: seconds; small: minutes; full: the papers' collections", group="what", choices=TIERS
    )
    recipes: str | None = option(
        None, "folder of the TOML files; without it, the checkout's eval", group="what", metavar="FOLDER"
    )
    output: str = option(
        "runs/regressions", "folder for models, indexes, runs and results", group="where", metavar="FOLDER"
    )
    collections: str | None = option(
        None,
        "folder of collections in BEIR's layout, used before anything is downloaded",
        group="where",
        metavar="FOLDER",
    )
    cache: str | None = option(
        None, "folder of downloads; without it, the user's cache", group="where", metavar="FOLDER"
    )
    mirror: str | None = option(None, "base URL to download from instead", group="where", metavar="URL")
    catalogue: str | None = option(
        None,
        "overlay of the collections' registry, for look-alikes; what is measured on them is not compared",
        group="where",
        metavar="FILE",
    )
    model: tuple[str, ...] = option(
        (), "use this folder for a model, as NAME=FOLDER", group="where", metavar="NAME=FOLDER"
    )
    threads: int = option(
        0, "CPU threads; 0 is 1 for tiny and small, whose values are exact, else as many as there are", group="running"
    )
    quiet: bool = option(False, "results only", group="running")


@dataclass(frozen=True)
class RunOptions(Options):
    """``run``."""

    dry_run: bool = option(False, "print the commands and run nothing", group="running")
    fresh: bool = option(False, "use nothing that was made before", group="running")
    junit: str | None = option(
        None, "also write the results for continuous integration", group="output", metavar="FILE"
    )
    json: bool = option(False, "print the results as JSON", group="output")


@dataclass(frozen=True)
class ReportOptions(Options):
    """``report``."""

    format: str = option(
        "markdown",
        "markdown, json, junit, html: a page with every command; reproduction: the papers' numbers and their recipes",
        group="output",
        choices=FORMATS,
    )
    file: str | None = option(None, "file to write instead of standard output", group="output", metavar="FILE")


class Regressions:
    """The regressions of one call: what was asked for, and where it happens."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = cases.find_folder(options.recipes)
        self.known: dict[str, Regression] = cases.load(self.folder)
        self.chosen = cases.select(self.known, options.names, options.tier)
        if not self.chosen:
            raise UsageError(f"no case of tier {options.tier} among {', '.join(options.names)}")

    def place(self, case: Case) -> Place:
        """Values that are exact to the bit are those of one thread: sums differ with the number of threads."""
        o = self.options
        threads = o.threads or (processors() if case.tier == "full" else 1)
        return Place(
            recipes=self.folder,
            folder=Path(o.output),
            data=_path(o.collections),
            cache=_path(o.cache),
            mirror=o.mirror,
            catalogue=_path(o.catalogue),
            given=_given(o.model),
            threads=threads,
            fresh=isinstance(o, RunOptions) and o.fresh,
            quiet=o.quiet,
        )

    def run(self) -> Iterator[Row]:
        """Carry the cases out, one after the other; a second call in the same folder is refused meanwhile."""
        output = Path(self.options.output)
        output.mkdir(parents=True, exist_ok=True)
        with exclusive(output / ".lock", f"running regressions in {output}"):
            for case in self.chosen:
                yield self.row(case, work.carry_out(case, self.place(case), self._accepted(case)))

    def found(self) -> Iterator[Row]:
        """The cases with the results that lie on disk; those of other code or configuration are STALE."""
        for case in self.chosen:
            result = work.load_result(work.result_path(case, self.place(case)))
            row = self.row(case, result)
            if result and result.key and (old := self._outdated(case, result)):
                reason = f"measured {result.date} by other {old}; run it again"
                row = replace(row, verdicts=[Verdict(Status.STALE, reason=reason)])
            yield row

    def row(self, case: Case, result: Result | None) -> Row:
        regression = self.known[case.regression]
        place = self.place(case)
        model = place.models.get(case.model)
        queries = regression.accepted_queries.get(case.name, {})
        verdicts = judge(case, result, self._accepted(case), queries, fixed=model is not None and model.fixed)
        origin = f"Model: {model.title} ({model.origin})" if model else ""
        return Row(case, result, verdicts, self._accepted(case), lambda: work.lines(case, place), origin)

    def means(self, rows: list[Row]) -> list[MeanRow]:
        """The papers' means over collections, of the regressions among ``rows``."""
        found = []
        for name in dict.fromkeys(r.case.regression for r in rows):
            found += means(self.known[name], [r for r in rows if r.case.regression == name])
        return found

    def groups(self, rows: list[Row]) -> list[tuple[str, list[Row]]]:
        """(title of a regression, its rows), those with measured values first."""
        names = list(dict.fromkeys(r.case.regression for r in rows))
        names.sort(key=lambda name: not self.known[name].accepted)
        return [(self.known[n].title, [r for r in rows if r.case.regression == n]) for n in names]

    def accept(self) -> list[Case]:
        """Take over the results on disk. Raises :class:`UsageError` for a case without one that can be accepted."""
        by_regression: dict[str, list[tuple[Case, Result]]] = {}
        for row in self.found():
            if row.result is None:
                raise UsageError(f"{row.case.id}: nothing was measured; run it first")
            if row.verdicts[0].status == Status.STALE and row.verdicts[0].reason.startswith("measured"):
                raise UsageError(f"{row.case.id}: {row.verdicts[0].reason}")
            by_regression.setdefault(row.case.regression, []).append((row.case, row.result))
        for name, results in by_regression.items():
            accept(self.known[name], results)
        return [case for results in by_regression.values() for case, _ in results]

    def _accepted(self, case: Case) -> dict[str, object]:
        return dict(self.known[case.regression].accepted.get(case.name, {}))

    def _outdated(self, case: Case, result: Result) -> str:
        """What has changed since a result on disk: code, environment or configuration."""
        from dupmae_ir.eval.regressions.environment import code_digest, fingerprint

        now = {"code": code_digest(), "environment": fingerprint(self.place(case).threads)}
        found = work.differences(now, result.key)
        if case.configuration != result.configuration:
            found.append("configuration")
        return " and ".join(found)


def _path(told: str | None) -> Path | None:
    return Path(told) if told else None


def _given(models: tuple[str, ...]) -> dict[str, Path]:
    given = {}
    for told in models:
        name, equals, folder = told.partition("=")
        if not equals:
            raise UsageError(f"--model {told}: wants NAME=FOLDER")
        given[name] = Path(folder)
    return given
