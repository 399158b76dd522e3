"""The commands of the regressions as HTML, to copy, in little room.

Cases whose commands differ only in names share one block with shell variables. Each training command is written once,
and sequences of flags that many of them share are variables too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dupmae_ir.eval.regressions.report import Row, environment_line
from dupmae_ir.eval.reports.page import bullets, esc

CASE_COMMANDS = 3
"""Commands of a case after its setup: index, search and evaluate."""
GET = "dupmae-ir collections get "
FLAGS = 40
"""Most variables for sequences of flags."""


def preformatted(lines: Sequence[str]) -> str:
    """Lines of commands in a block that scrolls; nothing for no lines."""
    return f'<div class="scroll"><pre>{esc(chr(10).join(lines))}</pre></div>' if any(lines) else ""


@dataclass(frozen=True)
class _Item:
    """A case of a block: the shell variables that are its own, and the commands that make its model."""

    row: Row
    values: Mapping[str, str]
    setup: tuple[str, ...]


class Commands:
    """The commands of all cases, each distinct training command once."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self.folders = folders
        self.setups: dict[tuple[str, ...], str] = {}  #: setup lines -> title of the model

    def of(self, rows: Sequence[Row]) -> list[str]:
        """Blocks of commands of a regression's cases, with an anchor for each case."""
        blocks: dict[tuple[str, ...], list[_Item]] = {}
        for row in rows:
            template, item = self._template(row)
            blocks.setdefault(template, []).append(item)
        return [self._block(template, items) for template, items in blocks.items()]

    def _template(self, row: Row) -> tuple[tuple[str, ...], _Item]:
        """The commands with what is the case's own as shell variables, and the values of these."""
        lines = [self._shortened(line) for line in row.commands()]
        own, before = lines[-CASE_COMMANDS:], lines[:-CASE_COMMANDS]
        get = [line for line in before if line.startswith(GET)]
        paths = {}
        for name in ("index", "model"):
            if found := re.search(rf"--{name} (\S+)", own[0]):
                paths[name.upper()] = found[1].removeprefix("$OUT/indexes/")
        template = []
        for line in [*get, *own]:
            for name, path in paths.items():
                line = line.replace(path, f"${name}")
            line = line.replace(f"{row.case.regression}/{row.case.name}.", f"{row.case.regression}/$CASE.")
            line = line.replace(f"qrels/{row.case.test}.tsv", "qrels/$TEST.tsv")
            template.append(line.replace(row.case.collection, "$COLLECTION"))
        collection = row.case.collection
        values = {"CASE": row.case.name, "COLLECTION": collection, "TEST": row.case.test}
        if collection == f"beir-{row.case.name}":
            values["COLLECTION"] = "beir-$CASE"
        # After COLLECTION, which an index is named by.
        values |= {name: path.replace(collection, "$COLLECTION") for name, path in paths.items()}
        return tuple(template), _Item(row, values, tuple(line for line in before if line not in get))

    def _shortened(self, line: str) -> str:
        for name, folder in self.folders.items():
            line = line.replace(f"{folder}/", f"${name}/")
        return line

    def _block(self, template: Sequence[str], items: Sequence[_Item]) -> str:
        """A fold with the cases, each with the variables that are its own, and the commands below those they share."""
        rows = [item.row for item in items]
        first = items[0].values
        shared = {k: v for k, v in first.items() if k != "CASE" and all(item.values.get(k) == v for item in items)}
        titled = any(row.case.title not in (rows[0].case.title, row.case.name) for row in rows)
        models = [self._model(item) for item in items]
        listed = []
        for item, model in zip(items, models, strict=True):
            own = " ".join(f"{name}={value}" for name, value in item.values.items() if name not in shared)
            title = f": {esc(item.row.case.title)}" if titled else ""
            link = f" ({model})" if model and len(set(models)) > 1 else ""
            listed.append(f'<li id="{esc(item.row.case.id)}"><code>{esc(own)}</code>{title}{link}')
        title = "" if titled or rows[0].case.title == rows[0].case.name else f": {esc(rows[0].case.title)}"
        model = f" ({models[0]})" if models[0] and len(set(models)) == 1 else ""
        notes = dict.fromkeys(note for row in rows for note in (row.case.note, environment_line(row)) if note)
        names = ", ".join(esc(row.case.name) for row in rows[:3]) + (", ..." if rows[3:] else "")
        variables = [" ".join(f"{name}={value}" for name, value in shared.items())] if shared else []
        return (
            f"<details><summary>Commands: {names}{title}</summary>\n"
            f"<p><code>dupmae-ir eval.regressions run {esc(rows[0].case.regression)}/CASE</code>{model}, or by hand, "
            "with</p>"
            f"<ul>{''.join(listed)}</ul>{preformatted([*variables, *template])}{bullets(notes)}</details>"
        )

    def _model(self, item: _Item) -> str:
        """A link to the commands that make the case's model; empty if there are none."""
        if not item.setup:
            return ""
        self.setups.setdefault(item.setup, item.row.origin.removeprefix("Model: "))
        number = list(self.setups).index(item.setup) + 1
        return f'<a href="#training-{number}">model {number}</a>'

    def training(self) -> list[str]:
        """The section of models that must be downloaded or trained first, and the variables of all commands."""
        settings = [" ".join(f"{name}={folder}" for name, folder in self.folders.items())]
        flags = shared_flags({line for lines in self.setups for line in lines})
        out = ["<h2>Commands</h2>", preformatted(settings + [f'{name}="{words}"' for name, words in flags.items()])]
        seen: dict[str, int] = {}
        for n, (lines, origin) in enumerate(self.setups.items(), 1):
            earlier = dict.fromkeys(seen[line] for line in lines if line in seen)
            new = [line for line in lines if line not in seen]
            seen.update(dict.fromkeys(new, n))
            links = ", ".join(f'<a href="#training-{e}">{e}</a>' for e in earlier)
            after = f"<p>After the commands of model {links}.</p>" if links else ""
            commands = preformatted(_with_variables([with_flags(line, flags) for line in new]))
            title = f"Model {n}. {esc(origin)}"
            out.append(f'<details id="training-{n}"><summary>{title}</summary>{after}{commands}</details>')
        return out


def shared_flags(lines: Iterable[str], most: int = FLAGS) -> dict[str, str]:
    """Shell variable -> the flags it replaces: the repeated sequences of flags that take the most room."""
    left, found = sorted(lines), dict[str, str]()
    for number in range(1, most + 1):
        counts: Counter[str] = Counter()
        for line in left:
            words = _plain_flags(line)
            for run in words:
                counts.update(" ".join(run[a:b]) for a in range(len(run)) for b in range(a + 2, len(run) + 1))
        flags, count = max(counts.items(), key=lambda item: (len(item[0]) * (item[1] - 1), item[0]), default=("", 0))
        if count < 3:
            break
        found[f"F{number}"] = flags
        left = [with_flags(line, {f"F{number}": flags}) for line in left]
    return found


def with_flags(line: str, flags: Mapping[str, str]) -> str:
    """``line`` with the flags that variables stand for replaced by these, in the order of the variables."""
    for name, words in flags.items():
        line = re.sub(rf"{re.escape(words)}(?= |$)", f"${name}", line)
    return line


def _plain_flags(line: str) -> list[list[str]]:
    """The runs of flags with their values in a line, without those that need quotes or name a path or a variable."""
    runs: list[list[str]] = [[]]
    for flag in re.findall(r"--[a-z0-9-]+(?: (?!--)\S+)*|\S+", line):
        if flag.startswith("--") and not re.search(r"[$/'\"#]", flag):
            runs[-1].append(flag)
        elif runs[-1]:
            runs.append([])
    return runs


def _with_variables(lines: Sequence[str], names: Sequence[str] = tuple("ABCDEF")) -> list[str]:
    """``lines`` with the paths that take most room as shell variables, which lines before them set."""
    text, settings = "\n".join(lines), []
    for name in names:
        paths = Counter(path for word in re.findall(r"\$[A-Z]{2,}/\S+", text) for path in _prefixes(word))
        path, count = max(paths.items(), key=lambda item: (len(item[0]) * (item[1] - 1), item[0]), default=("", 0))
        if count < 2:
            break
        settings.append(f"{name}={path}")
        text = re.sub(rf"{re.escape(path)}(?=[/\s]|$)", f"${name}", text)
    return [*settings, *text.split("\n")]


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts) + 1)]
