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

_TRIVIAL = re.compile(
    r"(?i)return self\b|implement |create and return a new object|initialize self|helper for pickle"
)
_TIMEOUT = 300  #: seconds; the child usually takes one
_MIN_TEXT_CHARACTERS = 20
_MAX_SIGNATURE_CHARACTERS = 100


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
        result = subprocess.run(
            child, capture_output=True, check=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError) as e:
        stderr = getattr(e, "stderr", None) or b""
        # The last line of a traceback names the error.
        _, _, last_line = stderr.decode("utf-8", "replace").strip().rpartition("\n")
        python = sys.executable or "this Python"
        raise EnvironmentProblem(
            f"{python} cannot list the documentation of its own library ({last_line or e}); "
            "use a complete installation of Python 3.11 or newer"
        ) from None
    documents = []
    for line in result.stdout.decode("utf-8").splitlines():
        name, title, text = json.loads(line)
        documents.append(Document(name, text, title))
    return documents


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
    docids = {document.docid for document in documents}
    qrels = {}
    for query in load_queries():
        grades = {docid: grade for docid, grade in query.answers.items() if docid in docids}
        if grades:
            qrels[query.qid] = grades
    return qrels


class _Rank(NamedTuple):
    """How unusual a name is for an object; the lowest rank names the document."""

    is_foreign: bool  #: the name is in another package than the object
    dots: int
    length: int
    name: str


class _Candidate(NamedTuple):
    rank: _Rank
    title: str


def gather() -> list[tuple[str, str, str]]:
    """(name, title, text) of every distinct docstring, sorted by name. Imports the complete library: run in a child."""
    best: dict[str, _Candidate] = {}
    for module in _modules():
        for name, value, package in _documented_objects(module):
            text = inspect.cleandoc(_docstring(value) or "")
            if len(text) < _MIN_TEXT_CHARACTERS or _TRIVIAL.match(text):
                continue
            # Each text becomes one document, under the name in its own package with the fewest dots.
            is_foreign = package not in {_home(value, module), "builtins"}
            rank = _Rank(is_foreign, name.count("."), len(name), name)
            if text not in best or rank < best[text].rank:
                best[text] = _Candidate(rank, name + _signature(value))

    rows = {}
    for text, candidate in sorted(best.items(), key=lambda item: item[1].rank):
        name = candidate.rank.name
        # Two texts may have the same name; the one with the higher rank stays.
        rows[name] = (name, candidate.title, text)
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
    submodules = pkgutil.iter_modules(getattr(module, "__path__", ()))
    for submodule in sorted(info.name for info in submodules):
        if not submodule.startswith("_") and submodule not in {"test", "tests"}:
            yield from _with_submodules(f"{name}.{submodule}")


def _imported(name: str) -> ModuleType | None:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except BaseException:  # a module for another system may do anything at import, even exit
            return None


def _documented_objects(module: ModuleType) -> Iterator[tuple[str, object, str]]:
    """(full name, object, top-level package) of the module itself, its public members and their public members."""
    module_name = module.__name__
    if module_name in {"posixpath", "ntpath"}:
        # os.path is one of these two, under its usual name.
        module_name = "os.path"
    package, _, _ = module_name.partition(".")
    yield module_name, module, package
    # The names of builtins are used without the module's.
    prefix = "" if module_name == "builtins" else f"{module_name}."
    has_public_names = package == "builtins" or hasattr(module, "__all__")
    for name, value in _members(module):
        if not callable(value):  # classes are callable too
            continue
        if not has_public_names and _home(value, module) != package:
            continue  # imported by the module for its own use
        yield prefix + name, value, package
        if inspect.isclass(value):
            for attribute, raw in sorted(_attributes(value).items()):
                if not attribute.startswith("_") and _is_documented_kind(raw):
                    yield f"{prefix}{name}.{attribute}", raw, package


def _attributes(cls: type) -> dict[str, object]:
    """The attributes that a class defines, and those of its private bases, which are not documented elsewhere."""
    attributes: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base is cls or base.__name__.startswith("_"):
            attributes |= vars(base)
        elif _is_hidden(base):
            # Attributes of a public base are listed there: pathlib.PurePath.name, not pathlib.Path.name.
            public_bases = [other for other in cls.__mro__[1:] if not _is_hidden(other)]
            for name, raw in vars(base).items():
                if not any(hasattr(public_base, name) for public_base in public_bases):
                    attributes[name] = raw
    return attributes


def _is_hidden(cls: type) -> bool:
    """True for a class of a private module that its package does not export (``pathlib._abc.PathBase`` in 3.13)."""
    package, _, private = cls.__module__.partition("._")
    return bool(private) and not hasattr(sys.modules.get(package), cls.__name__)


def _members(module: ModuleType) -> Iterable[tuple[str, object]]:
    names = getattr(module, "__all__", None)
    if not names:
        names = [name for name in dir(module) if not name.startswith("_")]
    for name in sorted(set(names)):
        # A module may compute an attribute, and warn that it is deprecated, or raise.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield name, getattr(module, name)


def _is_documented_kind(raw: object) -> bool:
    """Whether an attribute is a method or a property. Slots and fields of C structures are left out."""
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
    value = _function_of(value)
    if inspect.isclass(value):
        # Docstrings are not inherited here, but the constructor's may describe the class.
        attributes = vars(value)
        doc = attributes.get("__doc__") or getattr(attributes.get("__init__"), "__doc__", None)
    else:
        doc = getattr(value, "__doc__", None)
        if doc == type(value).__doc__:  # an instance takes its class's docstring
            return None
    return doc if isinstance(doc, str) else None


def _function_of(value: object) -> object:
    """The function in a class method or a static method; other values are returned as they are."""
    if isinstance(value, classmethod | staticmethod):
        return value.__func__
    return value


def _home(value: object, module: ModuleType) -> str:
    """The top-level package that an object belongs to; ``_io`` counts as ``io``."""
    home = getattr(value, "__module__", None)
    if not isinstance(home, str):
        home = module.__name__
    package, _, _ = home.partition(".")
    return package.lstrip("_")


def _signature(value: object) -> str:
    """``(a, b=None)``, or an empty string if it is unknown; the same on every run."""
    value = _function_of(value)
    if not callable(value):
        return ""
    try:
        text = str(inspect.signature(value))
    except Exception:  # objects may define their own signature, which may raise anything
        return ""
    # A default value's address differs from run to run.
    if " at 0x" in text or len(text) > _MAX_SIGNATURE_CHARACTERS:
        return "(...)"
    return text


def print_rows() -> None:
    """The child process: print the rows as JSON lines, and nothing else, on standard output."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What modules print at import must not get between the rows.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for row in gather():
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
    out.flush()
    # Skip the exit handlers that the imported modules have registered.
    os._exit(0)
