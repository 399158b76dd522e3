"""The embedded collection: the docstrings of the running Python's standard library.

There is one document for each docstring of a public module, class, function, method or property, about 5,000 in all.
A child process imports the whole library and collects them, because such imports may set signal handlers, print or
fail. A document's id is the object's usual name (``os.path.join``, ``str.split``), its title the name with the
signature.

The queries are hand-written questions with graded answers, worded as in a chat or a search box, not as in the
docstrings. ``lexical`` ones name exact functions, flags or errors, ``paraphrase`` ones avoid the words of the answer,
and ``mixed`` ones are in between. Answers are document ids: grade 2 answers the question, grade 1 is also useful. All
of them exist in Python 3.11 to 3.14.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from dupmae_ir.collections.prepared import QUERIES, write_qrels, write_records
from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.types import Document

KINDS = ("lexical", "mixed", "paraphrase")
_SIDE_EFFECTS = (
    "antigravity",
    "this",
    "idlelib",
    "turtle",
    "turtledemo",
    "tkinter",
    "rlcompleter",
    "msilib",
)
_UNDOCUMENTED = (
    "lib2to3",
    "test",
    "pydoc_data",
    "distutils",
    "ensurepip",
    "encodings",
    "xxlimited",
    "xxlimited_35",
)
_DUPLICATES = (
    "nt",
    "posix",
    "posixpath",
    "ntpath",
    "genericpath",
    "nturl2path",
    "pyexpat",
    "xxsubtype",
)
_OLD_NAMES = ("sre_compile", "sre_parse", "sre_constants")
SKIPPED = {*_SIDE_EFFECTS, *_UNDOCUMENTED, *_DUPLICATES, *_OLD_NAMES}
"""Modules with side effects, without documentation, or that duplicate another module under an unusual name."""

ALIASES = ("os.path",)
"""Modules that are not found under their usual name by walking the library."""

_CHILD = "import sys; sys.path.append(sys.argv[1]); from dupmae_ir.collections.stdlib import print_rows; print_rows()"
_Rank = tuple[bool, int, int, str]
_TRIVIAL = re.compile(
    r"(?i)return self\b|implement |create and return a new object|initialize self|helper for pickle"
)
_TIMEOUT = 300  #: seconds; the child usually takes one
_SHORTEST_TEXT = 20
_LONGEST_SIGNATURE = 100


def stdlib_documents() -> list[Document]:
    """The documents, in order of their ids; the same on every run of the same Python.

    Raises :class:`EnvironmentProblem` if this Python cannot list its own library.
    """
    # -I keeps the user's environment and working folder from shadowing standard modules.
    child = [
        sys.executable,
        "-I",
        "-W",
        "ignore",
        "-c",
        _CHILD,
        str(Path(__file__).resolve().parents[2]),
    ]
    try:
        done = subprocess.run(
            child, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError) as e:
        reason = (getattr(e, "stderr", None) or b"").decode("utf-8", "replace").strip().rpartition(
            "\n"
        )[2] or e
        raise EnvironmentProblem(
            f"{sys.executable or 'this Python'} cannot list the documentation of its own library ({reason}); "
            "use a complete installation of Python 3.11 or newer"
        ) from None
    rows = [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]
    return [Document(name, text, title) for name, title, text in rows]


def write_beir(folder: str | Path) -> dict[str, int]:
    """Write the collection in BEIR's layout; returns the numbers of documents and queries."""
    folder = Path(folder)
    documents = stdlib_documents()
    qrels = build_qrels(documents)
    write_records(
        folder / "corpus.jsonl",
        ({"_id": d.docid, "title": d.title, "text": d.text} for d in documents),
    )
    write_records(folder / QUERIES, ({"_id": q.qid, "text": q.text} for q in load_queries()))
    write_qrels(folder, "test", qrels)
    return {"documents": len(documents), "queries": len(qrels)}


class GradedQuery(NamedTuple):
    """A query with its kind; ``answers`` maps document ids to grades, 2 or 1."""

    qid: str
    text: str
    kind: str
    answers: dict[str, int]


def load_queries() -> list[GradedQuery]:
    """All queries, in order of their ids."""
    path = resources.files("dupmae_ir.collections").joinpath("stdlib_queries.jsonl")
    return [
        GradedQuery(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()
    ]


def build_qrels(documents: Iterable[Document]) -> dict[str, dict[str, int]]:
    """Judgements restricted to ``documents``; a query without any answer among them is left out."""
    docids = {d.docid for d in documents}
    graded = {
        q.qid: {docid: grade for docid, grade in q.answers.items() if docid in docids}
        for q in load_queries()
    }
    return {qid: answers for qid, answers in graded.items() if answers}


def gather() -> list[tuple[str, str, str]]:
    """(name, title, text) of every distinct docstring, sorted by name. Imports the whole library: run in a child."""
    best: dict[str, tuple[_Rank, str, str]] = {}
    for module in _modules():
        for name, value, owner in _described(module):
            text = inspect.cleandoc(_docstring(value) or "")
            if len(text) < _SHORTEST_TEXT or _TRIVIAL.match(text):
                continue
            # Each text becomes one document, under the name in its own package with the fewest dots.
            rank = (
                owner not in {_home(value, module), "builtins"},
                name.count("."),
                len(name),
                name,
            )
            if text not in best or rank < best[text][0]:
                best[text] = (rank, name, name + _signature(value))
    rows = {
        name: (name, title, text)
        for text, (_, name, title) in sorted(best.items(), key=lambda item: item[1][0])
    }
    return [rows[name] for name in sorted(rows)]


def _modules() -> Iterator[ModuleType]:
    """Every public module that can be imported, packages before their submodules."""
    for name in sorted(sys.stdlib_module_names):
        if not name.startswith("_") and name not in SKIPPED:
            yield from _with_submodules(name)
    for name in ALIASES:
        yield from filter(None, [_imported(name)])


def _with_submodules(name: str) -> Iterator[ModuleType]:
    module = _imported(name)
    if module is None:
        return
    yield module
    for part in sorted(p.name for p in pkgutil.iter_modules(getattr(module, "__path__", ()))):
        if not part.startswith("_") and part not in {"test", "tests"}:
            yield from _with_submodules(f"{name}.{part}")


def _imported(name: str) -> ModuleType | None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except BaseException:  # a module for another system may do anything at import, even exit
            return None


def _described(module: ModuleType) -> Iterator[tuple[str, object, str]]:
    """(full name, object, top-level package) of the module itself, its public members and their public members."""
    # The module os.path is named posixpath or ntpath; its usual name is os.path.
    own = "os.path" if module.__name__ in {"posixpath", "ntpath"} else module.__name__
    top = own.partition(".")[0]
    prefix = "" if own == "builtins" else f"{own}."
    yield own, module, top
    for name, value in _members(module):
        if not (inspect.isclass(value) or callable(value)):
            continue
        if top != "builtins" and not hasattr(module, "__all__") and _home(value, module) != top:
            continue  # imported by the module for its own use
        yield prefix + name, value, top
        if inspect.isclass(value):
            for attribute, raw in sorted(_attributes(value).items()):
                if not attribute.startswith("_") and _is_described(raw):
                    yield f"{prefix}{name}.{attribute}", raw, top


def _attributes(cls: type) -> dict[str, object]:
    """A class's own attributes, and those of private bases, which are not documented elsewhere."""
    attributes: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base is cls or base.__name__.startswith("_"):
            attributes |= vars(base)
        elif _is_hidden(base):
            # Attributes of a public base are listed there: pathlib.PurePath.name, not pathlib.Path.name.
            public = [b for b in cls.__mro__[1:] if not _is_hidden(b)]
            attributes |= {
                name: raw
                for name, raw in vars(base).items()
                if not any(hasattr(b, name) for b in public)
            }
    return attributes


def _is_hidden(cls: type) -> bool:
    """True for a class of a private module that its package does not export (``pathlib._abc.PathBase`` in 3.13)."""
    package, _, private = cls.__module__.partition("._")
    return bool(private) and not hasattr(sys.modules.get(package), cls.__name__)


def _members(module: ModuleType) -> Iterable[tuple[str, object]]:
    names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
    for name in sorted(set(names)):
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield name, getattr(module, name)


def _is_described(raw: object) -> bool:
    return (
        inspect.isroutine(raw)
        or isinstance(raw, property | classmethod | staticmethod)
        or (
            inspect.isdatadescriptor(raw)
            and not inspect.isgetsetdescriptor(raw)
            and not inspect.ismemberdescriptor(raw)
        )
    )


def _docstring(value: object) -> str | None:
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if inspect.isclass(value):
        # Docstrings are not inherited here, but that of the constructor may describe the class.
        doc = vars(value).get("__doc__") or getattr(vars(value).get("__init__"), "__doc__", None)
    else:
        doc = getattr(value, "__doc__", None)
        # Ignore a docstring that an instance takes from its class.
        doc = None if doc == type(value).__doc__ else doc
    return doc if isinstance(doc, str) else None


def _home(value: object, module: ModuleType) -> str:
    """The top-level package that an object belongs to; ``_io`` counts as ``io``."""
    home = getattr(value, "__module__", None)
    return (home if isinstance(home, str) else module.__name__).partition(".")[0].lstrip("_")


def _signature(value: object) -> str:
    """``(a, b=None)``, or an empty string if it is unknown; the same on every run."""
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if not callable(value):
        return ""
    try:
        text = str(inspect.signature(value))
    except Exception:  # objects may define their own signature, which may raise anything
        return ""
    if " at 0x" in text or len(text) > _LONGEST_SIGNATURE:
        return "(...)"
    return text


def print_rows() -> None:
    """The child process: print the rows as JSON lines, and nothing else, on standard output."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Whatever modules print at import must not get between the rows.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for row in gather():
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
    out.flush()
    # Skip the exit handlers that the imported modules have registered.
    os._exit(0)
