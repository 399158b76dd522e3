"""Arguments are checked before anything happens: a wrong type is one line that names the parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import pytest

import dupmae_ir
from dupmae_ir import Index, Searcher, build_index
from dupmae_ir.arguments import check_fields, checked
from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.search.config import SearchSettings


class Keywords(TypedDict, total=False):
    steps: int
    rate: float


class Thing:
    pass


@checked
def everything(
    path: str | Path = "",
    number: int = 0,
    share: float = 0.0,
    truth: bool = False,
    choice: Literal["a", "b"] = "a",
    words: Iterable[str] = (),
    mapping: Mapping[str, object] | None = None,
    call: Callable[[], object] | None = None,
    thing: Thing | None = None,
    anything: Iterable[Thing] = (),
    *paths: str | Path,
    **more: Unpack[Keywords],
) -> dict[str, Any]:
    return {**locals(), **more}


def test_values_become_pythons():
    result = everything(
        PurePosixPath("x"),
        np.int64(3),
        2,
        np.True_,
        np.str_("b"),
        np.array(["u", "v"]),
        steps=np.int32(4),
        rate=1,
    )
    assert result["path"] == Path("x")
    assert type(result["number"]) is int
    assert type(result["share"]) is float
    assert result["truth"] is True
    assert type(result["choice"]) is str
    assert result["words"] == ["u", "v"]
    assert (result["steps"], result["rate"]) == (4, 1.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": None}, "`path`: expected a path, got None"),
        ({"path": b"x"}, "`path`: expected a path, got b'x' (a bytes)"),
        ({"number": 1.5}, "`number`: expected an integer, got 1.5"),
        ({"number": True}, "`number`: expected an integer, got True"),
        ({"number": "3"}, "`number`: expected an integer, got '3'"),
        ({"share": "0.5"}, "`share`: expected a number, got '0.5'"),
        ({"share": 1j}, "`share`: expected a number, got 1j (a complex)"),
        ({"truth": 1}, "`truth`: expected True or False, got 1"),
        ({"choice": "c"}, "`choice`: expected one of a, b, got 'c'"),
        ({"choice": ["a"]}, "`choice`: expected one of a, b, got ['a'] (a list)"),
        ({"words": "one"}, "`words`: expected several strings, got 'one'"),
        ({"words": [1]}, "`words`: expected several strings, got [1] (a list)"),
        ({"mapping": []}, "`mapping`: expected a mapping or None, got [] (a list)"),
        ({"call": 3}, "`call`: expected a function or None, got 3"),
        ({"thing": 3}, "`thing`: expected a Thing or None, got 3"),
        ({"steps": "x"}, "`steps`: expected an integer, got 'x'"),
        ({"stebs": 1}, "no parameter `stebs`. Did you mean 'steps'?"),
    ],
)
def test_a_wrong_type_is_one_line(arguments, says):
    with pytest.raises(UsageError) as e:
        everything(**arguments)
    assert str(e.value) == says


def test_each_of_several_arguments_is_checked():
    with pytest.raises(UsageError, match="`paths`: expected a path, got 3"):
        everything("x", 0, 0.0, False, "a", (), None, None, None, (), "x", 3)


def test_a_missing_argument_is_pythons_own_error():
    @checked
    def needs(x: int) -> int:
        return x

    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        needs()


def test_fields_of_settings():
    assert check_fields(SearchSettings, {"threads": np.int64(2)}) == {"threads": 2}
    with pytest.raises(UsageError, match="`threads`: expected an integer, got 'x'"):
        check_fields(SearchSettings, {"threads": "x"})
    with pytest.raises(UsageError, match=r"no parameter `thread`. Did you mean 'threads'"):
        check_fields(SearchSettings, {"thread": 2})


# ---- Every public name, with values that it cannot take

WRONG = (None, True, 3, 1.5, b"x", "", object(), [None], [3], {1: 2}, np.zeros(2), 1j, Path())
"""Some of them are right for some parameters; a call must then work or fail in one line, too."""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "i"
    build_index(
        {"a": "the lock of a thread", "b": "a heap is a tree"}, path, model="testing:hashing"
    )
    return path


def good_arguments(
    index: Path, tmp: Path
) -> dict[str, tuple[Callable[..., object], dict[str, object]]]:
    """Public function -> itself and arguments with which it works, without effects outside of ``tmp``."""
    searcher = Searcher.open(index)
    qrels = {"1": {"a": 1}}
    run = {"1": {"a": 1.0}}
    (tmp / "qrels.txt").write_text("1 0 a 1\n")
    (tmp / "run.trec").write_text("1 Q0 a 1 1.0 t\n")
    (tmp / "topics.tsv").write_text("1\tlock\n")
    (tmp / "corpus.jsonl").write_text('{"id": "a", "text": "x"}\n')
    new = {
        "corpus": {"a": "x"},
        "index": tmp / "new",
        "model": "testing:hashing",
        "overwrite": True,
    }
    return {
        "Index.open": (Index.open, {"paths": index}),
        "Searcher.open": (Searcher.open, {"index": index}),
        "asked": (searcher.search, {"queries": "lock", "hits": 1, "mode": "hybrid"}),
        "answers": (searcher.answers, {"queries": [], "hits": 1}),
        "batch": (searcher.batch_search, {"queries": ["lock"], "qids": ["1"]}),
        "explain": (searcher.explain, {"query": "lock", "docid": "a"}),
        "explain_all": (searcher.explain_all, {"query": "lock", "docids": ["a"]}),
        "describe": (searcher.describe, {"query": "lock", "docids": ["a"]}),
        "row": (searcher.row, {"docid": "a"}),
        "document": (searcher.document, {"docid": "a"}),
        "selection": (searcher.selection, {}),
        "build_index": (build_index, new),
        "compact_index": (dupmae_ir.compact_index, {"index": index}),
        "compare": (dupmae_ir.compare, {"qrels": qrels, "runs": {"x": run, "y": run}}),
        "delete_documents": (dupmae_ir.delete_documents, {"index": tmp / "none", "docids": ["a"]}),
        "evaluate": (dupmae_ir.evaluate, {"qrels": qrels, "run": run, "measures": ["nDCG@10"]}),
        "export_model": (dupmae_ir.export_model, {"output": tmp / "e", "model": tmp / "none"}),
        "fine_tune": (dupmae_ir.fine_tune, {"pairs": [("q", "a")], "model": tmp / "none", "output": tmp / "f"}),
        "load_encoder": (dupmae_ir.load_encoder, {"model": "testing:hashing"}),
        "pre_train": (dupmae_ir.pre_train, {"texts": ["a"], "model": tmp / "none", "output": tmp / "p"}),
        "read_collection": (dupmae_ir.read_collection, {"source": tmp / "corpus.jsonl"}),
        "read_qrels": (dupmae_ir.read_qrels, {"path": tmp / "qrels.txt"}),
        "read_run": (dupmae_ir.read_run, {"path": tmp / "run.trec"}),
        "read_topics": (dupmae_ir.read_topics, {"source": tmp / "topics.tsv"}),
        "serve_indexes": (dupmae_ir.serve_indexes, {"indexes": tmp / "none"}),
        "update_index": (dupmae_ir.update_index, {"index": tmp / "none", "corpus": {"a": "x"}}),
        "write_run": (dupmae_ir.write_run, {"path": tmp / "written.trec", "run": run}),
    }  # fmt: skip


def test_every_public_name_is_called(index, tmp_path):
    functions = {
        name
        for name in dupmae_ir.__all__
        if inspect.isfunction(getattr(dupmae_ir, name)) and name != "DupmaeError"
    }
    assert functions <= set(good_arguments(index, tmp_path))


NAMES = [
    "Index.open", "Searcher.open", "asked", "answers", "batch", "explain", "explain_all", "describe", "row", "document",
    "selection", "build_index", "compact_index", "compare", "delete_documents", "evaluate", "export_model", "fine_tune",
    "load_encoder", "pre_train", "read_collection", "read_qrels", "read_run", "read_topics", "serve_indexes",
    "update_index", "write_run",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`within`")
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_never_an_error_of_the_inside(name, index, tmp_path, monkeypatch):
    # An empty string is the current folder to some functions.
    monkeypatch.chdir(tmp_path)
    function, arguments = good_arguments(index, tmp_path)[name]
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        for wrong in WRONG:
            given = {**arguments, parameter.name: wrong}
            positional: Sequence[object] = ()
            for other in parameters.values():
                if other.kind is inspect.Parameter.VAR_POSITIONAL:
                    positional = [given.pop(other.name, index)]
            try:
                result = function(*positional, **given)
                if inspect.isgenerator(result):
                    list(result)
            except DupmaeError as e:
                message = str(e)
            except Exception as e:
                raise AssertionError(f"{name}({parameter.name}={wrong!r}): {e!r}") from e
            else:
                message = ""
            assert "\n" not in message
