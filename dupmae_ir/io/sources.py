"""What ``--corpus`` names: lines of documents, files of many formats, or a collection of another library.

* ``-`` is standard input, ``irds:ID`` a data set of ir_datasets, a folder that ``datasets`` saved a Hugging Face
  dataset (:mod:`dupmae_ir.io.sources`);
* JSON lines and tab-separated files, and folders of them, are collections of lines, one document each
  (:mod:`dupmae_ir.io.collections`);
* URLs are collections of lines, streamed (:mod:`dupmae_ir.io.transfer`);
* everything else is files of documents, which are split into passages (:mod:`dupmae_ir.io.documents`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import Config, input_option
from dupmae_ir.console import one_line
from dupmae_ir.device import need_packages
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import (
    STDIN,
    DocumentSource,
    FileReport,
    Input,
    LinesCollection,
    RecordReader,
    Seen,
    checked_docid,
    has_ending,
    is_collection_name,
    is_dataset_folder,
    metadata_of,
)
from dupmae_ir.io.documents.collection import LENGTH, OVERLAP, DocumentCollection
from dupmae_ir.io.documents.files import FileOptions, kind_of
from dupmae_ir.io.transfer import Remote, is_url
from dupmae_ir.types import Document

READING = (
    "fields",
    "docid_field",
    "delimiter",
    "read_as",
    "passage_length",
    "passage_overlap",
    "exclude",
    "archives",
    "ocr",
    "follow_links",
)
"""The options that decide the documents of a collection, as indexes record them."""
READ_AS = ("auto", "lines", "documents")
# How much of a file decides whether it is a collection of lines.
_SNIFFED_LINES = 5
_SNIFFED_BYTES = 1 << 16
_BESIDE = ("readme", "license", "licence", "notice", "changelog", "md5", "sha256")
"""Beginnings and endings of files that lie beside collections of lines and belong to no document."""
IRDS = "irds:"
_TEXTS = ("text", "body", "contents", "abstract", "passage")


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Config):
    """Which collection to read, and how; shared by all commands that read one."""

    corpus: str | tuple[str, ...] = input_option(
        help="collection: a folder or files of documents (txt, md, html, pdf, docx, epub, csv, json, ipynb, source "
        "code), BEIR corpus.jsonl, Pyserini JSONL, MS MARCO tsv, .gz of these, a URL of such lines (s3://bucket/file), "
        "irds:ID, a Hugging Face dataset on disk, or - for standard input",
        metavar="PATH",
    )
    read_as: str = input_option(
        "auto",
        "lines: each line of JSON or tab-separated text is a document; documents: files are split into passages; auto: "
        "by the names and first lines of the files",
        choices=READ_AS,
    )
    passage_length: int = input_option(
        LENGTH,
        "documents: longest passage, in word pieces of the model, which is shorter where the model reads less with its "
        "title; without a model, in words of up to six letters and punctuation marks",
        at_least=8,
    )
    passage_overlap: int = input_option(
        OVERLAP,
        "documents: tokens at the end of a passage that the next one repeats, in whole sentences",
        at_least=0,
    )
    exclude: tuple[str, ...] = input_option(
        (),
        "documents: files to leave out, as patterns of their paths: 'build/*' '*.min.js'",
        metavar="GLOB",
    )
    archives: bool = input_option(
        False, "documents: read the files in .zip and .tar archives, as if they were folders"
    )
    ocr: bool = input_option(
        False,
        "documents: also read pictures, and pages of PDF files that are pictures (extra ocr); a page takes seconds",
    )
    follow_links: bool = input_option(
        False,
        "documents: read files outside of the folder that links in it lead to; they may be private",
    )
    fields: tuple[str, ...] = input_option(
        (),
        "parts of a document, in order: JSON keys, else pieces of 'contents', else tsv columns after the id; "
        "'title' becomes the title, '_' is ignored, the rest is the text",
        metavar="NAME",
    )
    docid_field: str | None = input_option(
        None, "JSON key of the id, if not id, _id or docid", metavar="NAME"
    )
    delimiter: str = input_option(
        "\\n", "separates the --fields of 'contents' (\\n and \\t are understood)", metavar="TEXT"
    )

    def __post_init__(self) -> None:
        if isinstance(self.corpus, tuple) and len(self.corpus) == 1:
            object.__setattr__(
                self, "corpus", self.corpus[0]
            )  # recorded alike, however it was given
        super().__post_init__()
        if self.passage_overlap * 2 > self.passage_length:
            raise UsageError(
                f"`passage_overlap` {self.passage_overlap} must be at most half of `passage_length` "
                f"{self.passage_length}"
            )

    def collection(self) -> DocumentSource:
        """The collection, opened. Raises :class:`InputError` for a missing one and for a closed standard input."""
        sources = self.sources()
        if STDIN in sources and sys.stdin is None:
            raise InputError("<standard input>: is closed; name a `corpus`")
        for source in sources:
            is_irds = source.startswith(IRDS)
            if not (source == STDIN or is_irds or is_dataset_folder(Path(source))):
                continue
            if len(sources) > 1:
                raise UsageError(f"`corpus` {source}: cannot be combined with other collections")
            if is_irds:
                return IrDataset(source, self.fields)
            # Standard input is read below, as lines.
            if source != STDIN:
                reader = RecordReader(self.fields, self.docid_field, self.unescaped_delimiter())
                return HfDataset(source, reader)
        if _are_lines(sources, self.read_as):
            return LinesCollection(
                sources, self.fields, self.docid_field, self.unescaped_delimiter()
            )
        return DocumentCollection(
            sources,
            self.passage_length,
            self.passage_overlap,
            self.exclude,
            FileOptions(self.archives, self.ocr),
            self.follow_links,
        )

    def sources(self) -> tuple[str, ...]:
        """The names given, one or more."""
        return (self.corpus,) if isinstance(self.corpus, str) else self.corpus

    def unescaped_delimiter(self) -> str:
        """``delimiter`` with its ``\\n`` and ``\\t`` replaced by the characters."""
        return self.delimiter.replace("\\n", "\n").replace("\\t", "\t")

    def digests(self) -> dict[str, str]:
        """The digest of the collection's bytes under the field's name; reads all of it."""
        return self.collection().read_digests()


def file_report(sources: FileReport | None, most: int = 20) -> str:
    """What became of the files of a collection, as lines of text; empty for other collections.

    ``most`` files are named in each list.
    """
    if not sources:
        return ""
    # The most frequent come first, as in the counts of what was skipped.
    kinds = sorted(sources["kinds"].items(), key=lambda item: (-item[1], item[0]))
    first = f"  from {sources['files']:,} files"
    if kinds:
        first += f" ({_counts(dict(kinds))})"
    skipped = sources["skipped"]
    if skipped:
        first += f"; left out: {sum(skipped.values()):,} ({_counts(skipped)})"
    lines = [first]
    lines += _named(
        f"{sources['guessed_files']:,} read in an encoding that had to be guessed",
        sources["guessed_files"],
        sources["guessed"],
        most,
    )
    lines += _named(
        f"{sources['garbage_passages']:,} passages without text left out",
        len(sources["garbage"]),
        sources["garbage"],
        most,
    )
    waiting = {}
    for name, pages in sources["waiting"].items():
        waiting[name] = f"{pages:,} pages" if pages > 1 else "1 page"
    lines += _named(
        f"{sources['waiting_pages']:,} scanned pages have no text; --ocr reads them (pip install 'dupmae-ir[ocr]')",
        sources["waiting_files"],
        waiting,
        most,
    )
    lines += _named(
        f"{sources['unreadable_files']:,} could not be read",
        sources["unreadable_files"],
        sources["unreadable"],
        most,
    )
    return "\n".join(["", *lines])


def _counts(counts: Mapping[str, int]) -> str:
    """The first five of some counts in one line."""
    parts = [f"{name} {count:,}" for name, count in itertools.islice(counts.items(), 5)]
    if len(counts) > 5:
        parts.append("...")
    return ", ".join(parts)


def _named(heading: str, files: int, reasons: Mapping[str, str], most: int) -> Iterator[str]:
    """A heading, and the first files that it is about with what is said of each; nothing without files."""
    if not files:
        return
    shortened = f"; the first {most}" if files > most else ""
    yield f"  {heading}{shortened}:"
    for name, reason in itertools.islice(reasons.items(), most):
        yield f"    {name}: {reason}"


def _are_lines(sources: Sequence[str], read_as: str) -> bool:
    """Whether the files hold a document on each line. Raises :class:`InputError` where both kinds are mixed,
    :class:`UsageError` for documents behind a URL."""
    url = next((source for source in sources if is_url(source)), None)
    if url is not None:
        remote = Remote(url)
        kind = kind_of(remote.name) or "text"
        if read_as == "documents" or (
            read_as == "auto" and not has_ending(remote.name) and kind != "text"
        ):
            raise UsageError(
                f"`corpus` {remote}: only collections with a document on each line are read from a URL; copy the "
                "documents to this machine"
            )
    if read_as != "auto":
        return read_as == "lines"
    found = {
        source: source == STDIN or is_url(source) or _is_lines(Path(source)) for source in sources
    }
    if len(set(found.values())) == 2:
        lines = next(source for source, is_lines in found.items() if is_lines)
        raise InputError(
            f"`corpus`: {lines} has a document on each line, the others do not; {_CHOOSE}"
        )
    return all(found.values())


_CHOOSE = "choose with `read_as` lines or `read_as` documents"


def _is_lines(path: Path) -> bool:
    if path.is_dir():
        return _folder_is_lines(path)
    if has_ending(path.name):
        return True
    if path.exists() and not path.is_file():
        return True  # a pipe
    if kind_of(path.name) not in ("", "text"):
        return False
    lines = _first_lines(path)
    if not lines:
        return False
    if lines[0].lstrip().startswith("{"):
        return _value_of(lines[0]) is not None
    # Tab-separated: the same number of columns after an id.
    rows = [line.split("\t") for line in lines]
    ids = all(len(row) == len(rows[0]) and row[0].split() == [row[0]] for row in rows)
    return len(rows[0]) > 1 and ids


def _folder_is_lines(folder: Path) -> bool:
    """BEIR's layout, or files of lines without documents beside them."""
    if any((folder / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz")):
        return True
    try:
        files = [
            path
            for path in sorted(folder.iterdir())
            if path.is_file() and not path.name.startswith(".")
        ]
    except OSError as e:
        raise InputError(f"{folder}: cannot be read: {e.strerror or e}") from None
    lines = [path for path in files if is_collection_name(path.name) and not _is_whole_json(path)]
    others = [
        path
        for path in files
        if path not in lines and not _is_beside(path) and kind_of(path.name) is not None
    ]
    if others:
        # Beside documents, tables and objects without ids are documents too, such as settings in JSON.
        lines = [path for path in lines if _has_ids(path)]
    if others and lines:
        raise InputError(
            f"{folder}: {lines[0].name} has a document on each line, {others[0].name} is a document; {_CHOOSE}"
        )
    return bool(lines)


def _is_beside(path: Path) -> bool:
    name = path.name.lower()
    return name.startswith(_BESIDE) or name.endswith((*_BESIDE, ".meta.json"))


def _is_whole_json(path: Path) -> bool:
    """Whether a ``.json`` file is one value over several lines, or an array, instead of lines of objects."""
    return path.suffix == ".json" and not isinstance(
        _value_of(next(iter(_first_lines(path)), "")), dict
    )


def _has_ids(path: Path) -> bool:
    """Whether a file's lines are objects with ids, as far as the first one shows it."""
    value = _value_of(next(iter(_first_lines(path)), ""))
    return isinstance(value, dict) and not value.keys().isdisjoint(RecordReader.id_names)


def _value_of(line: str) -> object:
    """The JSON value in a line; None if there is none."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _first_lines(path: Path) -> list[str]:
    """The first lines of a regular file that are not blank, as far as they are complete."""
    try:
        with open(path, "rb") as f:
            start = f.read(_SNIFFED_BYTES)
    except OSError:
        return []
    lines = start.decode("utf-8-sig", "replace").split("\n")
    # The last line may be cut; if it is the only one, its beginning has to do.
    if len(start) == _SNIFFED_BYTES and len(lines) > 1:
        lines.pop()
    return [line.rstrip("\r") for line in lines if line.strip()][:_SNIFFED_LINES]


class RecordCollection(DocumentSource):
    """A collection whose documents another library provides. Iterate once; then ``inputs`` is complete."""

    @abstractmethod
    def records(self) -> Iterator[Document]:
        """The documents, unchecked."""

    def check(self) -> None:
        """Raise unless there is a first document."""
        next(iter(type(self).__iter__(self)))

    def __iter__(self) -> Iterator[Document]:
        seen = Seen()
        sha256 = hashlib.sha256()
        number = 0
        for number, document in enumerate(self.records(), 1):
            where = f"{self.source}: document {number}"
            checked_docid(document.docid, where)
            if seen.add(document.docid):
                raise InputError(f"{where}: duplicate id {document.docid!r}; ids must be unique")
            sha256.update(json.dumps(document, sort_keys=True).encode())
            self.documents = number
            yield document
        if not number:
            raise InputError(f"{self.source}: no documents in it")
        self.inputs = [Input(self.source, sha256.hexdigest(), number)]

    def digests(self) -> dict[str, str]:
        return {"corpus": self.inputs[0].sha256}

    def read_digests(self) -> dict[str, str]:
        for _ in self:
            pass
        return self.digests()


class IrDataset(RecordCollection):
    """The documents of an ir_datasets id, as in ``irds:beir/scifact``. ``fields``: names of what becomes the text."""

    def __init__(self, source: str, fields: Sequence[str] = ()) -> None:
        super().__init__(source)
        need_packages(source, ["ir_datasets"], "irds")
        name = source.removeprefix(IRDS)
        try:
            self._dataset = importlib.import_module("ir_datasets").load(name)
            if not self._dataset.has_docs():
                raise InputError(f"{source}: this data set has no documents")
        except KeyError:
            raise InputError(f"{source}: ir_datasets has no data set {name!r}") from None
        self.fields = tuple(fields)

    @property
    def settings(self) -> dict[str, object]:
        return {"fields": list(self.fields)}

    def records(self) -> Iterator[Document]:
        """The documents; fields that are neither id, title nor text are metadata."""
        for record in self._dataset.docs_iter():
            values: dict[str, object] = record._asdict()
            docid = str(values.pop("doc_id"))
            names = self.fields or tuple(
                name for name in _TEXTS if isinstance(values.get(name), str)
            )
            missing = [name for name in self.fields if name not in values]
            if missing:
                raise InputError(
                    f"{self.source}: no field {missing[0]!r}; known: {', '.join(values)}"
                )
            title = values.get("title") if "title" not in self.fields else None
            text = " ".join(str(values[name]) for name in names if values[name])
            if not names and hasattr(record, "default_text"):
                text = str(record.default_text())
                title = None
            rest = {name: value for name, value in values.items() if name not in (*names, "title")}
            yield Document(docid, text.strip(), str(title or "").strip(), metadata_of(rest))


class HfDataset(RecordCollection):
    """A Hugging Face dataset on disk. Columns are read as the keys of JSON lines; without an id, it is the row."""

    def __init__(self, folder: str, reader: RecordReader) -> None:
        super().__init__(folder)
        need_packages(folder, ["datasets"], "datasets")
        self._reader = reader
        self._path = _split(Path(folder))

    def records(self) -> Iterator[Document]:
        """The documents."""
        for row, values in enumerate(dataset_rows(self._path)):
            if self._reader.docid_field is None and not any(
                name in values for name in self._reader.id_names
            ):
                values = {"id": row, **values}
            yield self._reader.document(dict(values), f"{self.source}: row {row}")


def dataset_rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a saved Hugging Face dataset, of all splits in turn, columns by name.

    Raises :class:`InputError` for another folder.
    """
    need_packages(f"{folder} is a Hugging Face dataset; reading it", ["datasets"], "datasets")
    library = importlib.import_module("datasets")
    try:
        with contextlib.ExitStack() as stack:
            disable_progress_bars = getattr(library, "disable_progress_bars", None)
            if disable_progress_bars:
                disable_progress_bars()
                stack.callback(library.enable_progress_bars)
            loaded = library.load_from_disk(str(folder))
            for split in loaded.values() if isinstance(loaded, dict) else [loaded]:
                yield from split
    except (OSError, ValueError) as e:
        raise InputError(f"{folder}: cannot be read as a dataset: {one_line(e, 200)}") from None


def _split(folder: Path) -> Path:
    """The dataset in a folder; of several splits, one must be named."""
    listing = folder / "dataset_dict.json"
    if not listing.is_file():
        return folder
    try:
        splits = [str(name) for name in json.loads(listing.read_text(encoding="utf-8"))["splits"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{listing}: does not list the splits of a dataset") from None
    if len(splits) != 1:
        raise InputError(
            f"{folder}: has the splits {', '.join(splits)}; name one, as {folder / splits[0]}"
        )
    return folder / splits[0]
