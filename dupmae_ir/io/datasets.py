"""Collections of other libraries: ``irds:ID`` (ir_datasets) and Hugging Face datasets saved to disk.

Neither library is a dependency of this package, and nothing is downloaded here; ir_datasets fetches what it lacks by
its own rules.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dupmae_ir.console import one_line
from dupmae_ir.device import need_packages
from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import DocumentSource, Input, RecordReader, Seen, checked_docid, metadata_of
from dupmae_ir.types import Document

IRDS = "irds:"
_TEXTS = ("text", "body", "contents", "abstract", "passage")


class RecordCollection(DocumentSource):
    """A collection whose documents another library provides. Iterate once; then ``inputs`` is complete."""

    @abstractmethod
    def records(self) -> Iterator[Document]:
        """The documents, unchecked."""

    def check(self) -> None:
        """Raise unless there is a first document."""
        next(iter(type(self).__iter__(self)))

    def __iter__(self) -> Iterator[Document]:
        seen, sha256, number = Seen(), hashlib.sha256(), 0
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
            yield self._document(record._asdict(), record)

    def _document(self, values: dict[str, object], record: Any) -> Document:
        docid = str(values.pop("doc_id"))
        names = self.fields or tuple(name for name in _TEXTS if isinstance(values.get(name), str))
        if missing := [name for name in self.fields if name not in values]:
            raise InputError(f"{self.source}: no field {missing[0]!r}; known: {', '.join(values)}")
        title = values.get("title") if "title" not in self.fields else None
        text = " ".join(str(values[name]) for name in names if values[name])
        if not names and hasattr(record, "default_text"):
            text, title = str(record.default_text()), None
        rest = {name: value for name, value in values.items() if name not in (*names, "title")}
        return Document(docid, text.strip(), str(title or "").strip(), metadata_of(rest))


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
            if self._reader.docid_field is None and not any(name in values for name in self._reader.id_names):
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
            if progress := getattr(library, "disable_progress_bars", None):
                progress()
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
        raise InputError(f"{folder}: has the splits {', '.join(splits)}; name one, as {folder / splits[0]}")
    return folder / splits[0]
