"""From sources to a collection that is ready: download, unpack, convert, verify, publish. Run again, it goes on.

All work is done in a hidden folder beside the target and takes its place as a whole; a killed run leaves that folder
and half a download, of which the next run clears the one and continues the other.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.collections.catalogue import LOCAL, Catalogue, Collection, Test, find, load
from dupmae_ir.collections.place import Place
from dupmae_ir.collections.ready import (
    ANSWERS,
    MANIFEST,
    QUERIES,
    Facts,
    Layout,
    Manifest,
    Ready,
    differences,
    manifest_of,
    measure,
    opened,
    read_manifest,
    whole,
)
from dupmae_ir.console import progress, say
from dupmae_ir.errors import InputError, Licensed, UsageError, WrongCollection
from dupmae_ir.io.atomic import replace_folder
from dupmae_ir.io.downloads import download, unpack
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.lock import exclusive
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Qrels

_UNPACKED = ".unpacked"


def ready(name: str, *, cache: str | Path | None = None, catalogue: str | Path | None = None) -> Ready | None:
    """The collection as it lies in the cache, or None; never touches the network.

    Sizes and what the manifest says are looked at, not every byte (``check`` does that). A ``local:`` folder is read
    once and then only when its files have changed.
    """
    collection, known = find(name, catalogue), load(catalogue)
    if name.startswith(LOCAL):
        return _local(collection, known, Place.of(known, cache), quiet=True)
    return _ready(collection, Place.of(known, cache))


def get(
    name: str,
    *,
    cache: str | Path | None = None,
    mirror: str | None = None,
    catalogue: str | Path | None = None,
    quiet: bool = False,
) -> Ready:
    """The collection, ready: what is missing is downloaded, converted and verified first.

    ``mirror`` replaces the hosts of all addresses: MIRROR/host/path. Raises :class:`UnknownName`; :class:`Licensed`
    for what nobody may hand out; :class:`EnvironmentProblem` without a network, naming the file to put somewhere;
    :class:`WrongCollection` when counts or digests are not those of the catalogue.
    """
    collection, known = find(name, catalogue), load(catalogue)
    place = Place.of(known, cache)
    if name.startswith(LOCAL):
        return _local(collection, known, place, quiet)
    if found := _ready(collection, place):
        return found
    with _alone(place.lock(collection), f"preparing {name}", quiet):
        # Whoever held the lock before may have done it.
        return _ready(collection, place) or _prepare(collection, known, place, mirror, quiet)


def state(collection: Collection, place: Place) -> str:
    """ready, part (something of it is on disk), missing, or licensed (and nothing was put there)."""
    if _ready(collection, place):
        return "ready"
    if collection.licensed and not place.licensed(collection).is_dir():
        return "licensed"
    there = [place.folder(collection), place.making(collection), place.licensed(collection)]
    targets = [place.download(source) for source in collection.sources.values()]
    there += [*targets, *(target.with_name(f"{target.name}.part") for target in targets)]
    return "part" if any(path.exists() for path in there) else "missing"


def licence_message(collection: Collection, place: Place) -> str:
    """One line: how to obtain it and where to put it."""
    return (
        f"{collection.name} cannot be downloaded: {collection.licensed}; then put corpus.jsonl, queries.jsonl and "
        f"qrels/test.tsv (BEIR's layout) into {place.licensed(collection)}"
    )


def _ready(collection: Collection, place: Place) -> Ready | None:
    folder = place.folder(collection)
    manifest = read_manifest(folder / MANIFEST)
    # A newer catalogue may know better what the collection has to be.
    if manifest is None or not whole(folder, manifest) or differences(collection, manifest):
        return None
    return opened(collection, folder, manifest)


def _local(collection: Collection, catalogue: Catalogue, place: Place, quiet: bool) -> Ready:
    """A folder of somebody's own: nothing is written there, what was measured is remembered in the cache."""
    folder = Path(collection.name.removeprefix(LOCAL)).expanduser().absolute()
    corpora = [folder / f"corpus{ending}" for ending in (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")]
    corpus = next((path for path in corpora if path.is_file()), corpora[0])
    layout = Layout.of(folder, corpus, collection)
    if lacking := [path for path in layout.files() if not path.is_file()]:
        raise InputError(f"{lacking[0]}: no such file; {LOCAL} wants a folder in BEIR's layout")
    states = {str(p.relative_to(folder)): [p.stat().st_size, p.stat().st_mtime_ns] for p in layout.files()}
    remembered = place.root / "local" / f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.json"
    manifest = read_manifest(remembered)
    if manifest is None or manifest.states != states:
        facts = measure(layout, collection.name, quiet)
        manifest = dataclasses.replace(manifest_of(collection, catalogue, layout, facts), states=states)
        manifest.write(remembered)
    return opened(collection, folder, manifest)


def _prepare(collection: Collection, catalogue: Catalogue, place: Place, mirror: str | None, quiet: bool) -> Ready:
    folder, making = place.folder(collection), place.making(collection)
    shutil.rmtree(making, ignore_errors=True)  # of a run that was killed
    making.mkdir(parents=True)
    try:
        manifest = _made(_Sources(collection, catalogue, place, mirror, quiet))
        replace_folder(making, folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    _discard(collection, catalogue, place)
    return opened(collection, folder, manifest)


def _made(sources: _Sources) -> Manifest:
    """All files of a collection in the folder in the making, verified, the manifest last."""
    collection, making = sources.collection, sources.place.making(sources.collection)
    if collection.family == "demo":
        from dupmae_ir.demo.collection import write_beir

        write_beir(making)
        corpus = making / "corpus.jsonl"
    else:
        corpus = _convert(sources)
    shutil.rmtree(making / _UNPACKED, ignore_errors=True)
    layout = Layout.of(making, corpus, collection)
    facts = measure(layout, collection.name, sources.quiet)
    if found := differences(collection, facts):
        advice = _advice(collection, sources.place)
        raise WrongCollection(f"{collection.name} is not what the catalogue describes: {'; '.join(found)}. {advice}")
    _remark_dangling(collection, facts, sources.quiet)
    manifest = manifest_of(collection, sources.catalogue, layout, facts)
    manifest.write(making / MANIFEST)
    return manifest


@dataclass(frozen=True)
class _Sources:
    """Files of a collection by "ROLE" or "ROLE:MEMBER", fetched and unpacked when they are asked for."""

    collection: Collection
    catalogue: Catalogue
    place: Place
    mirror: str | None
    quiet: bool

    def path(self, reference: str) -> Path:
        role, _, member = reference.partition(":")
        if self.collection.licensed:
            return self._put(member)
        file = self._fetched(role)
        return self._unpacked(file, role) / member if member else file

    def borrowed(self) -> Path | None:
        """The corpus of another collection that is ready and has the very same one (both of DPR)."""
        same = [c for c in self.catalogue.collections.values() if _same_corpus(c, self.collection)]
        there = (_ready(collection, self.place) for collection in same)
        return next((other.corpus for other in there if other), None)

    def _fetched(self, role: str) -> Path:
        source = self.collection.sources[role]
        return download(source, self.place.download(source), mirror=self.mirror, quiet=self.quiet)

    def _unpacked(self, archive: Path, role: str) -> Path:
        folder = self.place.making(self.collection) / _UNPACKED / role
        if not folder.exists():
            wanted = {m for r, m in map(_split, _references(self.collection)) if r == role}
            unpack(archive, folder, wanted.__contains__, quiet=self.quiet)
            if lacking := sorted(member for member in wanted if not (folder / member).is_file()):
                raise InputError(f"{archive}: no {lacking[0]} in it; this is not the archive of {self.collection.name}")
        return folder

    def _put(self, member: str) -> Path:
        folder = self.place.licensed(self.collection)
        if not folder.is_dir():
            raise Licensed(licence_message(self.collection, self.place))
        names = (member, f"{member}.gz")
        found = next((folder / name for name in names if (folder / name).is_file()), None)
        if found is None:
            raise Licensed(f"{folder / member}: no such file; the folder wants BEIR's layout")
        return found


def _split(reference: str) -> tuple[str, str]:
    role, _, member = reference.partition(":")
    return role, member


def _references(collection: Collection) -> list[str]:
    references = [collection.corpus, *(r for t in collection.tests.values() for r in (t.topics, t.qrels))]
    return [reference for reference in references if reference]


def _convert(sources: _Sources) -> Path:
    """Write all files but the manifest into the folder in the making; returns the corpus.

    The small files come first: what is wrong with them shows before gigabytes are fetched.
    """
    collection, making = sources.collection, sources.place.making(sources.collection)
    texts: dict[str, str] = {}
    for test in collection.tests.values():
        if test.answers:
            questions = list(_questions(sources.path(test.topics)))
            texts |= {question.qid: question.text for question in questions}
            _write_lines(making / ANSWERS, ({"_id": q.qid, "answers": q.answers} for q in questions))
        else:
            _add(texts, _judged(sources, test, making), test.topics)
    _write_lines(making / QUERIES, ({"_id": qid, "text": text} for qid, text in texts.items()))
    if borrowed := sources.borrowed():
        return _linked(borrowed, making / borrowed.name)
    corpus = sources.path(collection.corpus)
    if collection.quoted:
        return _unquoted(corpus, making / "corpus.jsonl.gz", collection, sources.quiet)
    endings = "".join(Path(corpus.name).suffixes[-2 if corpus.name.endswith(".gz") else -1 :])
    return _linked(corpus, making / f"corpus{endings}")


def _judged(sources: _Sources, test: Test, making: Path) -> dict[str, str]:
    """Write the judgements of a test; returns the texts of its judged queries, in the order of the topics."""
    topics = sources.path(test.topics)
    qrels = read_qrels(sources.path(test.qrels))
    _write_qrels(making / "qrels" / f"{test.name}.tsv", qrels)
    return {q.qid: q.text for q in read_topics(topics) if q.qid in qrels}


def _add(texts: dict[str, str], more: Mapping[str, str], source: str) -> None:
    for qid, text in more.items():
        if texts.setdefault(qid, text) != text:
            raise InputError(f"{source}: query {qid!r} has another text than in another test of the collection")


class _Question(NamedTuple):
    qid: str
    text: str
    answers: list[str]


def _questions(path: Path) -> Iterator[_Question]:
    """DPR's ``question<TAB>['answer', ...]``, quoted as csv; the id is the line's number from 0, as in Pyserini."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        cells = next(csv.reader([line], delimiter="\t"))
        try:
            text, listed = cells
            answers = ast.literal_eval(listed)
        except (ValueError, SyntaxError):
            raise InputError(f"{where}: wanted question<TAB>['answer', ...], got {line[:80]!r}") from None
        if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
            raise InputError(f"{where}: the answers are no list of strings: {listed[:80]!r}")
        yield _Question(str(number - 1), text.strip(), answers)


def _unquoted(source: Path, target: Path, collection: Collection, quiet: bool) -> Path:
    """DPR's passages (id, text, title; texts quoted as csv) as JSON lines, without the quotes that are not theirs."""
    with (
        gzip.GzipFile(target, "wb", compresslevel=3, mtime=0) as packed,
        progress(f"{collection.name}: convert", "documents", total=collection.documents, quiet=quiet) as bar,
    ):
        for number, line in numbered_lines(source):
            cells = next(csv.reader([line], delimiter="\t"))
            if len(cells) != 3:
                raise InputError(f"{source}:{number}: {len(cells)} column(s) where id, text and title are wanted")
            if number == 1 and cells[0] == "id":
                continue
            record = {"_id": cells[0], "title": cells[2], "text": cells[1]}
            packed.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            bar.update()
    return target


def _write_lines(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _write_qrels(path: Path, qrels: Qrels) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{q}\t{d}\t{grade}\n" for q, found in qrels.items() for d, grade in found.items())


def _linked(source: Path, target: Path) -> Path:
    """The same bytes under another name, copied only where the disk cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


def _same_corpus(one: Collection, other: Collection) -> bool:
    origin = _origin(one)
    return one.name != other.name and origin is not None and (one.corpus, origin) == (other.corpus, _origin(other))


def _origin(collection: Collection) -> str | None:
    """Where the corpus is downloaded from."""
    source = collection.sources.get(collection.corpus.partition(":")[0])
    return source.url if source else None


def _discard(collection: Collection, catalogue: Catalogue, place: Place) -> None:
    """Remove the download the corpus came from, unless another collection still has to be made of it."""
    origin = _origin(collection)
    waiting = (
        _origin(other) == origin and other.corpus != collection.corpus and not _ready(other, place)
        for other in catalogue.collections.values()
    )
    if origin is not None and not any(waiting):
        target = place.download(collection.sources[collection.corpus.partition(":")[0]])
        for path in (target, target.with_name(f".{target.name}.json")):
            path.unlink(missing_ok=True)


def _remark_dangling(collection: Collection, facts: Facts, quiet: bool) -> None:
    for name, test in facts.tests.items():
        known = collection.tests[name].dangling
        if test["dangling"] and test["dangling"] != known:
            said = f"{known} are known" if known is not None else "none were known"
            say(f"{collection.name}: {test['dangling']} relevant document(s) of {name} are not in it; {said}", quiet)


def _advice(collection: Collection, place: Place) -> str:
    if collection.licensed:
        return f"Correct {place.licensed(collection)}, or describe yours in a catalogue (--catalogue)"
    if not collection.sources:
        return "Describe yours in a catalogue (--catalogue)"
    files = ", ".join(str(p) for s in collection.sources.values() if (p := place.download(s)).exists())
    return f"Remove {files} to download again, or describe yours in a catalogue (--catalogue)"


@contextmanager
def _alone(lock: Path, what: str, quiet: bool) -> Iterator[None]:
    """Hold the lock; stand in line, and say so, where another process has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(lock, what))
        except UsageError as e:
            say(f"{e.args[0].partition(';')[0]}; waiting for it", quiet)
            stack.enter_context(exclusive(lock, what, wait=True))
        yield
