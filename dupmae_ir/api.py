"""The Python interface: everything that the commands do, as functions with typed parameters.

Each function is also offered by :mod:`dupmae_ir` itself. Models, faiss and Lucene are imported when a function needs
them. Functions that make something continue an interrupted job when called again with the same arguments, as the
commands do, and print nothing unless ``progress=True``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Literal, TypeAlias

from dupmae_ir.command import load
from dupmae_ir.config import from_mapping
from dupmae_ir.console import one_line
from dupmae_ir.errors import UsageError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.types import Document, Hit, Qrels

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from dupmae_ir.eval.compare import Comparison
    from dupmae_ir.eval.evaluate import Evaluation
    from dupmae_ir.index.index import Index
    from dupmae_ir.training.trained import Trained

Corpus: TypeAlias = str | Path | Sequence[str | Path] | Iterable[Document]
"""A file or folder, several of them, or documents in memory."""
Options: TypeAlias = Mapping[str, object]
"""Further settings of the command, by name, as in a recipe."""
NO_OPTIONS: Options = MappingProxyType({})


@dataclass(frozen=True)
class IndexChange:
    """What a change of an index did; counts of documents."""

    documents: int  #: in the index now
    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0


def build_index(
    corpus: Corpus,
    index: str | Path,
    *,
    model: str | Path | None = None,
    parts: Literal["cls,ot", "cls", "ot"] = "cls,ot",
    passage_length: int | None = None,
    document_length: int | None = None,
    top_k: int | None = None,
    device: str = "auto",
    dtype: str | None = None,
    threads: int = 0,
    overwrite: bool = False,
    progress: bool = False,
    options: Options = NO_OPTIONS,
) -> Index:
    """Encode a collection into an index folder and open it (``dupmae-ir encode``).

    Args:
        corpus: files or a folder of documents, which are split into passages; a file with a document on each line; or
            :class:`Document` objects.
        index: folder to make.
        model: model folder; without it, the embedded model.
        parts: dense vectors (``cls``), impacts (``ot``) or both from one forward pass.
        passage_length: longest passage of a document file, in tokens.
        document_length: word pieces kept of each document; without it, the model's own.
        top_k: largest impacts kept of each document; without it, the model's own.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: ``float32``, ``mixed``, ``bfloat16``, ``float16`` or ``auto``.
        threads: CPU threads; 0 = one per available processor.
        overwrite: replace an index of other documents or settings.
        progress: show a progress bar and notes on standard error.
        options: further settings of ``dupmae-ir encode``.

    Raises:
        DupmaeError: the collection cannot be read, the model cannot be used, or another index is in the folder.
    """
    given: dict[str, object] = {"corpus": _corpus(corpus, index), "index": index, "model": model, "parts": parts}
    given |= {"passage_length": passage_length, "document_length": document_length, "top_k": top_k, "device": device}
    given |= {"dtype": dtype, "threads": threads, "overwrite": overwrite, "quiet": not progress}
    _run("dupmae_ir.encode.config:EncodeConfig", "dupmae_ir.encode.run:run", given, options)
    opened: Index = load("dupmae_ir.index.index:Index").open(index)
    return opened


def update_index(
    index: str | Path,
    corpus: Corpus,
    *,
    how: Literal["add", "update", "sync"] = "update",
    model: str | Path | None = None,
    device: str = "auto",
    threads: int = 0,
    progress: bool = False,
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
        progress: show a progress bar and notes on standard error.
        options: further settings of ``dupmae-ir index add``, ``update`` and ``sync``.

    Raises:
        DupmaeError: the collection cannot be read, or the model is not that of the index.
    """
    if how not in ("add", "update", "sync"):
        raise UsageError(f"`how` must be add, update or sync, got {how!r}")
    given: dict[str, object] = {
        "corpus": _corpus(corpus, index),
        "index": index,
        "model": model,
        "device": device,
        "threads": threads,
    }
    config = f"dupmae_ir.index.config:{how.title()}Config"
    return _change(_run(config, f"dupmae_ir.encode.changes:run_{how}", given | {"quiet": not progress}, options))


def delete_documents(index: str | Path, docids: Iterable[str]) -> IndexChange:
    """Mark documents of an index as deleted. Raises :class:`UsageError` for ids that the index does not have."""
    given: dict[str, object] = {"index": index, "ids": list(docids), "quiet": True}
    return _change(_run("dupmae_ir.index.config:DeleteConfig", "dupmae_ir.index.changes.changes:run_delete", given))


def compact_index(index: str | Path, *, progress: bool = False) -> IndexChange:
    """Rewrite the segments of an index as one, without deleted documents and without encoding anything."""
    given: dict[str, object] = {"index": index, "quiet": not progress}
    return _change(_run("dupmae_ir.index.config:CompactConfig", "dupmae_ir.index.changes.changes:run_compact", given))


def compare(
    runs: Mapping[str, Mapping[str, Iterable[Hit]]],
    qrels: Qrels,
    measures: Iterable[str] = ("nDCG@10", "R@100"),
    *,
    baseline: str | None = None,
    test: Literal["t", "permutation", "both"] = "t",
    alpha: float = 0.05,
    seed: int = 0,
) -> Comparison:
    """Compare runs with a baseline: differences, bootstrap intervals, paired tests with Holm's correction.

    Args:
        runs: name -> run, as :func:`read_run` or :meth:`Searcher.search` gives them.
        qrels: judgements, as :func:`read_qrels` gives them.
        measures: names of ir_measures, for example ``nDCG@10``.
        baseline: the run that the others are compared with; the first one if not given.
        test: paired t-test, permutation test, or both.
        alpha: level of significance.
        seed: of permutations and resamples.

    Raises:
        UsageError: there is no second run, or the runs and judgements have no query in common.
    """
    evaluate = load("dupmae_ir.eval.evaluate:evaluate")
    names = tuple(measures)
    evaluations: dict[str, Evaluation] = {name: evaluate(qrels, run, names) for name, run in runs.items()}
    if baseline is not None and baseline not in evaluations:
        raise UsageError(f"`baseline` {baseline!r} is not one of the runs, which are {', '.join(evaluations)}")
    settings = load("dupmae_ir.eval.config:ComparisonOptions")(test=test, alpha=alpha, seed=seed)
    comparison: Comparison = load("dupmae_ir.eval.compare:compare")(
        evaluations, baseline or next(iter(evaluations), ""), settings
    )
    return comparison


Text: TypeAlias = str | Mapping[str, object]
"""A text, or an object as in a file of JSON lines: ``text``, ``title``, ``queries``, ``next``."""
Pair: TypeAlias = tuple[str, str] | Mapping[str, object]
"""(query, passage), or an object as in a file of pairs: ``query``, ``positive``, ``negatives``, ``kind``."""


def pre_train(
    texts: str | Path | Iterable[Text | Path],
    method: str = "dupmae",
    model: str | Path | None = "minilm",
    output: str | Path | None = None,
    *,
    preset: Literal["release", "paper"] = "release",
    steps: int = 0,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    length: int | None = None,
    seed: int = 42,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    threads: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
    progress: bool = False,
    options: Options = NO_OPTIONS,
) -> Trained:
    """Pre-train a model on texts by masked auto-encoding (``dupmae-ir pretrain``).

    Args:
        texts: a file or folder, several :class:`~pathlib.Path` objects, or texts or dictionaries, which are written to
            ``OUTPUT.texts.jsonl``.
        method: the objective: ``retromae``, ``dupmae``, ``master``, ``cot-mae``, ``cot-mote`` or ``mlm``.
        model: the model to start from: ``minilm``, a folder, or a name in the Hugging Face cache.
        output: folder of the trained model; a temporary one if not given.
        preset: the released code's choices, or those of the paper's text.
        steps: number of updates; 0 = determined by ``epochs``.
        epochs: passes over the texts.
        batch_size: texts per update and process.
        learning_rate: peak learning rate.
        length: word pieces kept of each text.
        seed: of sampling, initialisation and dropout.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: precision of the matrix products.
        threads: CPU threads; 0 = one per available processor.
        callbacks: of Hugging Face's Trainer, called after those of this package.
        progress: show a progress bar and notes on standard error.
        options: further settings of ``dupmae-ir pretrain``.

    Raises:
        DupmaeError: an argument or the data cannot be used.
    """
    given: dict[str, object] = {
        "method": method,
        "preset": preset,
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    given |= {"learning_rate": learning_rate, "length": length, "seed": seed, "device": device, "dtype": dtype}
    given |= {"threads": threads, "quiet": not progress, "model": model}
    folder = _output_folder(output)
    given |= {"corpus": _rows(texts, folder.with_name(f"{folder.name}.texts.jsonl"), _text_record), "output": folder}
    config = _config("dupmae_ir.pretrain.config:PretrainConfig", given, options)
    result = load("dupmae_ir.pretrain.run:run")(config, callbacks)
    return _trained(folder, result, "pretraining")


def fine_tune(
    pairs: str | Path | Iterable[Pair | Path],
    model: str | Path = "minilm",
    output: str | Path | None = None,
    *,
    dev: str | Path | Iterable[Pair | Path] = (),
    steps: int = 0,
    epochs: float | None = None,
    batch_size: int = 48,
    learning_rate: float | None = None,
    query_length: int = 32,
    document_length: int = 128,
    seed: int = 0,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    threads: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
    progress: bool = False,
    options: Options = NO_OPTIONS,
) -> Trained:
    """Fine-tune a model on query-passage pairs (``dupmae-ir finetune``, one stage).

    Args:
        pairs: a file, several :class:`~pathlib.Path` objects, or rows, which are written to ``OUTPUT.pairs.jsonl``.
        model: the model to start from: ``minilm``, ``default``, a folder, or a name in the Hugging Face cache.
        output: folder of the trained model; a temporary one if not given.
        dev: pairs whose MRR@10 is reported during training, in the same forms.
        steps: number of updates; 0 = determined by ``epochs``.
        epochs: passes over the pairs.
        batch_size: queries per update and process.
        learning_rate: peak learning rate.
        query_length: word pieces kept of each query.
        document_length: word pieces kept of each passage in training.
        seed: of sampling, data order and dropout.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: precision of the matrix products.
        threads: CPU threads; 0 = one per available processor.
        callbacks: of Hugging Face's Trainer, called after those of this package.
        progress: show a progress bar and notes on standard error.
        options: further settings of ``dupmae-ir finetune``, for example ``mined``, ``negatives``, ``distill``.

    Raises:
        DupmaeError: an argument or the data cannot be used.
    """
    given: dict[str, object] = {
        "model": model,
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
    }
    given |= {"learning_rate": learning_rate, "query_length": query_length, "document_length": document_length}
    given |= {"device": device, "dtype": dtype, "threads": threads, "quiet": not progress}
    folder = _output_folder(output)
    given |= {"pairs": _rows(pairs, folder.with_name(f"{folder.name}.pairs.jsonl"), _pair_record), "output": folder}
    given |= {"dev": _rows(dev, folder.with_name(f"{folder.name}.dev.jsonl"), _pair_record)}
    config = _config("dupmae_ir.finetune.config:FinetuneConfig", given, options)
    result = load("dupmae_ir.finetune.run:run")(config, callbacks)
    return _trained(folder, result, "training")


def adapt_model(
    corpus: Corpus,
    output: str | Path,
    *,
    model: str | Path = "default",
    steps: int = 100,
    batch_size: int = 16,
    learning_rate: float = 1e-5,
    seed: int = 0,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    threads: int = 0,
    progress: bool = False,
    options: Options = NO_OPTIONS,
) -> Trained:
    """Adapt a model to a collection from its text alone (``dupmae-ir adapt``); keeps the start if nothing is gained.

    Args:
        corpus: documents, as in :func:`build_index`.
        output: folder of the adapted model.
        model: the model to start from: a folder, or ``default``, the embedded one.
        steps: number of updates, which decides how long it takes.
        batch_size: pseudo-queries, and texts to auto-encode, per update.
        learning_rate: peak learning rate.
        seed: of sampling, masks and dropout.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: precision of the matrix products.
        threads: CPU threads; 0 = one per available processor.
        progress: show a progress bar and notes on standard error.
        options: further settings of ``dupmae-ir adapt``.

    Raises:
        DupmaeError: the collection is too small to decide anything, or the model cannot be used.
    """
    given: dict[str, object] = {
        "model": model,
        "steps": steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    given |= {"device": device, "dtype": dtype, "threads": threads, "quiet": not progress, "output": output}
    given |= {"corpus": _corpus(corpus, output)}
    result = _run("dupmae_ir.adapt.config:AdaptConfig", "dupmae_ir.adapt.run:run", given, options)
    return _trained(Path(output), result, "training")


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
    given: dict[str, object] = {
        "output": output,
        "model": model,
        "to": to,
        "part": part,
        "int8": int8,
        "overwrite": overwrite,
    }
    _run("dupmae_ir.export:ExportConfig", "dupmae_ir.export:run", given | {"quiet": True})
    return Path(output)


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
    given: dict[str, object] = {"index": [str(index) for index in indexes], "model": model, "host": host, "port": port}
    given |= {"token_file": token_file, "writable": writable, "threads": threads, "quiet": not progress}
    _run("dupmae_ir.serve.config:ServeConfig", "dupmae_ir.serve.run:run", given, options)


def _config(kind: str, given: Mapping[str, object], options: Options = NO_OPTIONS) -> object:
    """Settings from arguments; None stands for the default. ``kind`` is ``module:class``."""
    if both := sorted(given.keys() & options.keys()):
        raise UsageError(f"`options` repeats {', '.join(both)}, which this function has as arguments")
    values = {
        name: str(value) if isinstance(value, Path) else value for name, value in given.items() if value is not None
    }
    return from_mapping(load(kind), {**values, **options}, "options")


def _run(kind: str, work: str, given: Mapping[str, object], options: Options = NO_OPTIONS) -> Mapping[str, object]:
    result: Mapping[str, object] = load(work)(_config(kind, given, options))
    return result or {}


def _output_folder(output: str | Path | None) -> Path:
    return Path(output) if output is not None else Path(mkdtemp(prefix="dupmae-ir-")) / "model"


def _trained(folder: Path, result: Mapping[str, object] | None, name: str) -> Trained:
    log = load("dupmae_ir.training.trained:read_log")(folder / name / "log.jsonl")
    trained: Trained = load("dupmae_ir.training.trained:Trained")(folder, result or {}, log)
    return trained


def _change(result: Mapping[str, object]) -> IndexChange:
    names = ("added", "updated", "deleted", "unchanged")
    counts = {name: result[f"{name}_now"] for name in names if f"{name}_now" in result}
    return IndexChange(documents=result["documents"], **counts)  # type: ignore[arg-type]


def _corpus(corpus: Corpus, output: str | Path) -> list[str]:
    """The names of a collection; documents in memory are written next to ``output`` first."""
    output = Path(output)
    if isinstance(corpus, str | Path):
        return [str(corpus)]
    return _files(corpus, output.with_name(f"{output.name}.documents.jsonl"), str | Path, _document_record)


def _rows(
    data: str | Path | Iterable[object], path: Path, record: Callable[[object], Mapping[str, object]]
) -> list[str]:
    """The files of training data: those named, or ``path``, to which rows are written as JSON lines."""
    return [str(data)] if isinstance(data, str | Path) else _files(data, path, Path, record)


def _files(
    data: Iterable[object], path: Path, names: type | UnionType, record: Callable[[object], Mapping[str, object]]
) -> list[str]:
    items = list(data)
    if all(isinstance(item, names) for item in items):
        return [str(item) for item in items]
    with atomic_write(path) as f:
        f.writelines(json.dumps(record(item), ensure_ascii=False) + "\n" for item in items)
    return [str(path)]


def _document_record(item: object) -> Mapping[str, object]:
    if isinstance(item, Document):
        return {"id": item.docid, "title": item.title, "text": item.text, "metadata": dict(item.metadata or {})}
    raise UsageError(f"`corpus`: {one_line(item, 100)} is not a Document, and not the name of a file")


def _text_record(item: object) -> Mapping[str, object]:
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, Mapping):
        return item
    raise UsageError(f"`texts`: {one_line(item, 100)} is not a text; give texts or dictionaries")


def _pair_record(item: object) -> Mapping[str, object]:
    if isinstance(item, Mapping):
        return item
    if isinstance(item, tuple | list) and len(item) == 2:
        return {"query": item[0], "positive": item[1]}
    raise UsageError(f"`pairs`: {one_line(item, 100)} is not a pair; give (query, passage) or a dictionary")
