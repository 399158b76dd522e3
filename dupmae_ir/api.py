"""The Python interface: everything that the commands do, as functions with typed parameters.

Each function is also offered by :mod:`dupmae_ir` itself. Models, faiss and Lucene are imported when a function needs
them. Functions that make something continue an interrupted job when called again with the same arguments, as the
commands do, and print nothing unless ``progress=True``; with ``progress=function`` they call the function with a
:class:`~dupmae_ir.types.Progress` at each advance, and what it raises ends the job.

Data are taken as programs hold them (:mod:`dupmae_ir.io.in_memory`): as files, as rows (a list, a generator, a
DataFrame of pandas or polars, an Arrow table, a Hugging Face dataset, a dataset of ir_datasets), or as dictionaries by
id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from dupmae_ir.arguments import checked, is_path, wrong_type
from dupmae_ir.command import load
from dupmae_ir.config import from_mapping
from dupmae_ir.console import reporting
from dupmae_ir.errors import UsageError
from dupmae_ir.io import in_memory
from dupmae_ir.io.in_memory import Table
from dupmae_ir.io.lines import usable
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.runs import any_run
from dupmae_ir.measures import parse_measures
from dupmae_ir.types import AnyRun, Document, Progress, Qrels

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from dupmae_ir.eval.compare import Comparison
    from dupmae_ir.eval.evaluate import Evaluation
    from dupmae_ir.index.index import Index
    from dupmae_ir.training.trained import Trained

Corpus: TypeAlias = (
    str | Path | Sequence[str | Path] | Iterable[Document] | Mapping[str, Any] | Table
)
"""A file or folder, several of them, or documents in memory: rows of them, or ``{id: text or {"title", "text"}}``."""
TEXTS_EXPECTED = "a file, or rows of texts"
PAIRS_EXPECTED = "a file, or rows of pairs (tuples, dictionaries, a DataFrame)"
Options: TypeAlias = Mapping[str, object]
"""Further settings of the command, by name, as in a recipe."""
NO_OPTIONS: Options = MappingProxyType({})
ProgressOption: TypeAlias = bool | Callable[[Progress], object]
"""Whether to show bars and notes on standard error, or a function to call at each advance."""


@dataclass(frozen=True)
class IndexChange:
    """What a change of an index did; counts of documents."""

    documents: int  #: in the index now
    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0


@checked
def build_index(
    corpus: Corpus | None = None,
    index: str | Path | None = None,
    *,
    texts: Iterable[str] | Table | None = None,
    model: str | Path | None = None,
    parts: Literal["cls,ot", "cls", "ot"] = "cls,ot",
    passage_length: int | None = None,
    document_length: int | None = None,
    top_k: int | None = None,
    device: str = "auto",
    dtype: str | None = None,
    threads: int = 0,
    overwrite: bool = False,
    progress: ProgressOption = False,
    options: Options = NO_OPTIONS,
) -> Index:
    """Encode a collection into an index folder and open it (``dupmae-ir encode``).

    Args:
        corpus: files or a folder of documents, which are split into passages; a file with a document on each line; or
            documents in memory, which are not split: :class:`Document` objects, dictionaries with ``id``, ``text`` and
            ``title``, tuples (id, text), a DataFrame, an Arrow table, a dataset, or ``{id: text}``. They are written to
            ``INDEX.documents.jsonl``.
        index: folder to make.
        texts: instead of ``corpus``: texts without ids, which are numbered from 0.
        model: model folder; without it, the embedded model.
        parts: dense vectors (``cls``), impacts (``ot``) or both from one forward pass.
        passage_length: longest passage of a document file, in word pieces of the model.
        document_length: word pieces kept of each document; without it, the model's own.
        top_k: largest impacts kept of each document; without it, the model's own.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: ``float32``, ``mixed`` (default for files that become passages), ``bfloat16``, ``float16`` or ``auto``.
        threads: CPU threads; 0 = one per available processor.
        overwrite: replace an index of other documents or settings.
        progress: show bars and notes on standard error, or a function to call at each advance.
        options: further settings of ``dupmae-ir encode``.

    Raises:
        DupmaeError: the collection cannot be read, the model cannot be used, or another index is in the folder.
    """
    arguments = dict(locals())
    if index is None:
        raise UsageError("`index`: give the folder to make")
    if (corpus is None) == (texts is None):
        raise UsageError("give one of `corpus` and `texts`")
    if arguments.pop("texts") is not None:
        corpus = (Document(str(row), text) for row, text in enumerate(in_memory.texts(texts)))
    arguments["corpus"] = _corpus(corpus, index)
    _run("dupmae_ir.encode.config:EncodeConfig", "dupmae_ir.encode.run:run", arguments)
    opened: Index = load("dupmae_ir.index.index:Index").open(index)
    return opened


@checked
def update_index(
    index: str | Path,
    corpus: Corpus,
    *,
    how: Literal["add", "update", "sync"] = "update",
    model: str | Path | None = None,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressOption = False,
    options: Options = NO_OPTIONS,
) -> IndexChange:
    """Add documents to an index, and replace changed ones; only what is new or changed is encoded.

    Args:
        index: folder of the index.
        corpus: documents, as in :func:`build_index`.
        how: ``add`` refuses known ids with other contents; ``update`` replaces them; ``sync`` also deletes documents
            that ``corpus`` does not contain.
        model: the model folder, if it has moved.
        device: as in :func:`build_index`.
        threads: CPU threads; 0 = one per available processor.
        progress: show bars and notes on standard error, or a function to call at each advance.
        options: further settings of ``dupmae-ir index add``, ``update`` and ``sync``.

    Raises:
        DupmaeError: the collection cannot be read, or the model is not that of the index.
    """
    arguments = locals() | {"corpus": _corpus(corpus, index)}
    del arguments["how"]
    config = f"dupmae_ir.index.config:{how.title()}Config"
    module = "dupmae_ir.encode.sync" if how == "sync" else "dupmae_ir.encode.changes"
    return _change(_run(config, f"{module}:run_{how}", arguments))


@checked
def delete_documents(
    index: str | Path,
    docids: str | Iterable[str] = (),
    *,
    paths: str | Iterable[str] = (),
    filter: str | None = None,
) -> IndexChange:
    """Mark documents of an index as deleted: by their ids, all passages of some ``paths``, which are files, folders or
    patterns, or those that satisfy a condition on metadata. Raises :class:`UnknownName` for what the index does not
    have."""
    arguments: dict[str, object] = {"index": index, "filter": filter}
    arguments["ids"] = [docids] if isinstance(docids, str) else docids
    arguments["paths"] = [paths] if isinstance(paths, str) else paths
    return _change(
        _run(
            "dupmae_ir.index.config:DeleteConfig",
            "dupmae_ir.index.changes.changes:run_delete",
            arguments,
        )
    )


@checked
def compact_index(index: str | Path, *, progress: ProgressOption = False) -> IndexChange:
    """Rewrite the segments of an index as one, without deleted documents and without encoding anything."""
    return _change(
        _run(
            "dupmae_ir.index.config:CompactConfig",
            "dupmae_ir.index.changes.changes:run_compact",
            locals(),
        )
    )


@checked
def compare(
    qrels: Qrels | Table,
    runs: Mapping[str, AnyRun | Table],
    measures: str | Iterable[str] = ("nDCG@10", "R@100"),
    *,
    baseline: str | None = None,
    test: Literal["t", "permutation", "both"] = "t",
    alpha: float = 0.05,
    seed: int = 0,
) -> Comparison:
    """Compare runs with a baseline: differences, bootstrap intervals, paired tests with Holm's correction.

    Args:
        qrels: judgements, as in :func:`~dupmae_ir.eval.evaluate.evaluate`.
        runs: name -> run, as in :func:`~dupmae_ir.eval.evaluate.evaluate`.
        measures: names of ir_measures, for example ``nDCG@10``.
        baseline: the run that the others are compared with; the first one if not given.
        test: paired t-test, permutation test, or both.
        alpha: level of significance.
        seed: of permutations and resamples.

    Raises:
        UsageError: there is no second run, or the runs and judgements have no query in common.
    """
    evaluate_scores = load("dupmae_ir.eval.evaluate:evaluate_scores")
    judgements = in_memory.judgements(qrels)
    parsed = parse_measures([measures] if isinstance(measures, str) else measures)
    evaluations: dict[str, Evaluation] = {}
    for name, run in runs.items():
        scores = any_run(run, f"runs[{name!r}]")
        evaluations[name] = evaluate_scores(judgements, scores, parsed)
    if baseline is not None and baseline not in evaluations:
        raise UsageError(
            f"`baseline` {baseline!r} is not one of the runs, which are {', '.join(evaluations)}"
        )
    settings = load("dupmae_ir.eval.config:ComparisonOptions")(test=test, alpha=alpha, seed=seed)
    comparison: Comparison = load("dupmae_ir.eval.compare:compare")(
        evaluations, baseline or next(iter(evaluations), ""), settings
    )
    return comparison


Text: TypeAlias = str | Mapping[str, object]
"""A text, or an object as in a file of JSON lines: ``text``, ``title``, ``queries``, ``next``."""
Pair: TypeAlias = tuple[str, ...] | Mapping[str, object]
"""(query, passage, negatives ...), or an object in one of the layouts of a file of pairs (docs/formats.md)."""


class TrainingSettings(TypedDict, total=False):
    """Arguments that every training function takes. An argument left out has the default of the function's command."""

    steps: int  #: number of updates; 0 = determined by ``epochs``
    epochs: float  #: passes over the data
    batch_size: int  #: texts or queries per step
    learning_rate: float  #: peak learning rate
    seed: int  #: of sampling, initialisation, masks and dropout
    device: str  #: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``
    dtype: Literal["float32", "bfloat16", "auto"]  #: precision of the matrix products
    threads: int  #: CPU threads; 0 = one per available processor


@checked
def pre_train(
    texts: str | Path | Iterable[Text | Path] | Table,
    method: str = "dupmae",
    model: str | Path | None = "minilm",
    output: str | Path | None = None,
    *,
    preset: Literal["release", "paper"] = "release",
    length: int | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    progress: ProgressOption = False,
    options: Options = NO_OPTIONS,
    **settings: Unpack[TrainingSettings],
) -> Trained:
    """Pre-train a model on texts by masked auto-encoding (``dupmae-ir pretrain``).

    Args:
        texts: a file or folder, several :class:`~pathlib.Path` objects, or texts in memory (strings, dictionaries, a
            DataFrame, a dataset), which are written to ``OUTPUT.texts.jsonl``.
        method: the objective: ``retromae``, ``dupmae``, ``master``, ``cot-mae``, ``cot-mote`` or ``mlm``.
        model: the model to start from: ``minilm``, a folder, or a name in the Hugging Face cache.
        output: folder of the trained model; a temporary one if not given.
        preset: the released code's choices, or those of the paper's text.
        length: word pieces kept of each text.
        callbacks: of Hugging Face's Trainer, called after those of this package.
        progress: show bars and notes on standard error, or a function to call at each advance.
        options: further settings of ``dupmae-ir pretrain``.
        settings: see :class:`TrainingSettings`.

    Raises:
        DupmaeError: an argument or the data cannot be used.
    """
    folder = _output_folder(output)
    corpus = _files(texts, "texts", _beside(folder, "texts.jsonl"), _text_records, (Path,))
    arguments: dict[str, object] = {
        "method": method,
        "preset": preset,
        "model": model,
        "length": length,
    }
    arguments |= {"corpus": corpus, "output": folder, "progress": progress, "options": options}
    config = _config("dupmae_ir.pretrain.config:PretrainConfig", arguments, settings)
    with _listening(progress):
        result = load("dupmae_ir.pretrain.run:run")(config, callbacks)
    return _trained(folder, result, "pretraining")


@checked
def fine_tune(
    pairs: str | Path | Iterable[Pair | Path] | Table,
    model: str | Path = "default",
    output: str | Path | None = None,
    *,
    dev: str | Path | Iterable[Pair | Path] | Table = (),
    query_length: int = 32,
    document_length: int = 128,
    callbacks: Sequence[TrainerCallback] = (),
    progress: ProgressOption = False,
    options: Options = NO_OPTIONS,
    **settings: Unpack[TrainingSettings],
) -> Trained:
    """Fine-tune a model on query-passage pairs (``dupmae-ir finetune``, one stage).

    Args:
        pairs: a file or folder, several :class:`~pathlib.Path` objects, or rows in memory (tuples, dictionaries, a
            DataFrame, a dataset), which are written to ``OUTPUT.pairs.jsonl``. The layout is recognised by the names of
            the fields (docs/formats.md).
        model: the model to start from: ``default``, the embedded one; ``minilm``, a folder, or a name in the Hugging
            Face cache.
        output: folder of the trained model; a temporary one if not given.
        dev: pairs whose MRR@10 is reported during training, in the same forms.
        query_length: word pieces kept of each query.
        document_length: word pieces kept of each passage in training.
        callbacks: of Hugging Face's Trainer, called after those of this package.
        progress: show bars and notes on standard error, or a function to call at each advance.
        options: further settings of ``dupmae-ir finetune``, for example ``mined``, ``negatives``, ``distill``.
        settings: see :class:`TrainingSettings`.

    Raises:
        DupmaeError: an argument or the data cannot be used.
    """
    folder = _output_folder(output)
    files = {}
    for name, rows in (("pairs", pairs), ("dev", dev)):
        path = _beside(folder, f"{name}.jsonl")
        files[name] = _files(rows, name, path, _pair_records, (Path,))
    if not files["pairs"]:
        raise UsageError("`pairs`: nothing to train on")
    arguments: dict[str, object] = {
        "model": model,
        "query_length": query_length,
        "document_length": document_length,
    }
    arguments |= {**files, "output": folder, "progress": progress, "options": options}
    config = _config("dupmae_ir.finetune.config:FinetuneConfig", arguments, settings)
    with _listening(progress):
        result = load("dupmae_ir.finetune.run:run")(config, callbacks)
    return _trained(folder, result, "training")


@checked
def export_model(
    output: str | Path,
    *,
    model: str | Path | None = None,
    to: Literal["sentence-transformers", "onnx", "openvino", "compact"] = "sentence-transformers",
    part: Literal["cls", "ot"] = "cls",
    int8: bool = False,
    overwrite: bool = False,
) -> Path:
    """Export a model for another library (``dupmae-ir export``).

    Args:
        output: folder to make, which is returned.
        model: model folder or name; without it, the embedded model.
        to: a format; ``compact`` is a model folder of this package with weights in 8 bits.
        part: for sentence-transformers: the dense or the sparse encoder.
        int8: for onnx: also write the graph with weights in 8 bits.
        overwrite: replace an existing export.

    Raises:
        CheckpointError: the model does not load or lacks the part.
    """
    _run("dupmae_ir.export:ExportConfig", "dupmae_ir.export:run", locals())
    return Path(output)


@checked
def serve_indexes(
    *indexes: str | Path,
    model: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: str | Path | None = None,
    writable: bool = False,
    threads: int = 0,
    progress: bool = True,
    options: Options = NO_OPTIONS,
) -> None:
    """Serve indexes over HTTP until SIGTERM or Ctrl-C (``dupmae-ir serve``).

    Args:
        indexes: index folders; each is served under the name of its folder. The first is the default.
        model: model folder for the queries; without it, the one that each index records.
        host: address to listen on; any but a loopback address needs a token.
        port: port to listen on; 0 = any free one.
        token_file: file with the bearer token that requests must carry.
        writable: accept new, changed and deleted documents.
        threads: CPU threads; 0 = one per available processor.
        progress: log to standard error.
        options: further settings of ``dupmae-ir serve``.

    Raises:
        DupmaeError: an index cannot be opened, the token is missing, or the port is in use.
    """
    arguments = dict(locals())
    arguments["index"] = [str(index) for index in arguments.pop("indexes")]
    _run("dupmae_ir.serve.config:ServeConfig", "dupmae_ir.serve.run:run", arguments)


def _config(
    kind: str, arguments: Mapping[str, object], settings: TrainingSettings | None = None
) -> object:
    """Settings from the arguments of a function, by name; None stands for the default. ``kind`` is ``module:class``."""
    progress = arguments.get("progress", False)
    values = {**arguments, **(settings or {}), "quiet": progress is not True}
    options: Options = values.pop("options", NO_OPTIONS)  # type: ignore[assignment]
    values.pop("progress", None)
    for name in options:
        if not isinstance(name, str):
            raise wrong_type("options", "names of settings as strings", name)
    parameters = set(values)
    if settings is not None:
        # Also those that the caller did not give.
        parameters.update(TrainingSettings.__annotations__)
    repeated = sorted(parameters & options.keys())
    if repeated:
        raise UsageError(
            f"`options` repeats {', '.join(repeated)}, which this function has as arguments"
        )
    for name, value in list(values.items()):
        if value is None:
            del values[name]
        elif isinstance(value, Path):
            values[name] = str(value)
    return from_mapping(load(kind), {**values, **options}, "options")


def _run(
    kind: str, work: str, arguments: Mapping[str, object], settings: TrainingSettings | None = None
) -> Mapping[str, object]:
    config = _config(kind, arguments, settings)
    with _listening(arguments.get("progress", False)):
        result: Mapping[str, object] = load(work)(config)
    # The processes of a distributed run other than the first return None.
    return result or {}


def _output_folder(output: str | Path | None) -> Path:
    if output is not None:
        return Path(output)
    # Not the temporary folder itself, which exists already: a job makes its target.
    return Path(mkdtemp(prefix="dupmae-ir-")) / "model"


def _trained(folder: Path, result: Mapping[str, object] | None, name: str) -> Trained:
    log = load("dupmae_ir.training.trained:read_log")(folder / name / "log.jsonl")
    trained: Trained = load("dupmae_ir.training.trained:Trained")(folder, result or {}, log)
    return trained


def _change(result: Mapping[str, object]) -> IndexChange:
    names = ("added", "updated", "deleted", "unchanged")
    counts = {name: result[f"{name}_now"] for name in names if f"{name}_now" in result}
    return IndexChange(documents=result["documents"], **counts)  # type: ignore[arg-type]


@contextmanager
def _listening(progress: object) -> Iterator[None]:
    """Call ``progress``, if it is a function, at each advance within the block."""
    if isinstance(progress, bool):
        yield
        return
    if not callable(progress):
        raise wrong_type("progress", "True, False or a function", progress)
    with reporting(progress):
        yield


def _corpus(corpus: object, output: str | Path) -> list[str]:
    """The files of a collection; documents in memory are written next to ``output`` first."""
    path = _beside(output, "documents.jsonl")
    # Strings in a list name files: texts without ids are another argument.
    files = _files(corpus, "corpus", path, _document_records, (str, Path))
    if not files:
        raise UsageError("`corpus`: no documents in it")
    return files


Records: TypeAlias = Callable[[object, str], Iterator[Mapping[str, object]]]
"""A collection in memory and the name of its parameter -> its rows, as lines of JSON have them."""


def _files(
    data: object, name: str, path: Path, records: Records, names: tuple[type, ...]
) -> list[str]:
    """The files that ``data`` names, or ``path``, to which its rows are written; none if it is empty.

    ``names``: types of the items of a list that name files.
    """
    if is_path(data):
        return [str(data)]
    if in_memory.is_plain(data):
        items = iter(data)
        first = next(items, None)
        if isinstance(first, names):
            return _paths(chain([first], items), name, names)
        if not isinstance(data, Sized):
            # The first item of a generator has been taken from it.
            data = [] if first is None else chain([first], items)
        if isinstance(data, Sized) and not len(data):
            return []
    # Written to a file, because commands read files, also when they continue an interrupted job.
    with atomic_write(path) as f:
        for record in records(data, name):
            f.write(json.dumps(record, ensure_ascii=False) + "\n")
    return [str(path)]


def _beside(output: str | Path, ending: str) -> Path:
    """``OUTPUT.ENDING``; an output such as ``.`` is resolved first, because it has no name."""
    path = Path(output)
    if not path.name:
        path = path.resolve()
    return path.with_name(f"{path.name}.{ending}")


def _paths(items: Iterable[object], name: str, names: tuple[type, ...]) -> list[str]:
    """The names of files as strings; rows between them are an error."""
    paths = []
    for item in items:
        if not isinstance(item, names):
            raise wrong_type(name, "names of files only, as its first item is one", item)
        paths.append(str(item))
    return paths


def _document_records(data: object, name: str) -> Iterator[Mapping[str, object]]:
    for document in in_memory.documents(data, name):
        yield {
            "id": document.docid,
            "title": document.title,
            "text": document.text,
            "metadata": dict(document.metadata or {}),
        }


def _text_records(data: object, name: str) -> Iterator[Mapping[str, object]]:
    for number, row in enumerate(in_memory.rows_of(data, name, TEXTS_EXPECTED).values):
        record = in_memory.record_of(row)
        if record is not None:
            yield record
        elif isinstance(row, str):
            yield {"text": usable(row)}
        else:
            raise wrong_type(f"{name}, row {number}", "a text or a dictionary", row)


def _pair_records(data: object, name: str) -> Iterator[Mapping[str, object]]:
    yield from in_memory.training_rows(data, name, PAIRS_EXPECTED)
