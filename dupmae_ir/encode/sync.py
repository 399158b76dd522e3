"""``dupmae-ir index sync``: an index that agrees with its collection, and with ``--watch`` follows its folder.

The operating system tells which files change (watchfiles). Changes that come close together are taken in at once, after
the files have stopped growing. Only these files are read. What cannot be taken in, while another process changes the
index or while the disk is full, is tried again until it is. The complete folder is compared, as ``index sync`` does,
when a watcher starts, when a folder was replaced by another one, and after a burst of changes, of which the system may
lose some.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.console import say
from dupmae_ir.device import need_packages, with_torch_threads
from dupmae_ir.encode.changes import Change, EncoderCache
from dupmae_ir.errors import OutputError, UsageError
from dupmae_ir.index.changes.changes import run_compact
from dupmae_ir.index.config import ChangeResult, CompactConfig, SyncConfig, changes_in_words
from dupmae_ir.index.index import Index
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import EXTRA
from dupmae_ir.io.documents.names import is_at, is_hidden_or_temporary
from dupmae_ir.io.jobs import work_folder
from dupmae_ir.long_running import allow_open_files, give_back_memory

QUIET_MILLISECONDS = 300
"""Time without another change after which those so far are taken in."""
LONGEST_MILLISECONDS = 1500
"""Time after which they are taken in although others follow, so that a busy folder is not put off for ever."""
_POLL_MILLISECONDS = 200
"""Time without a change after which watchfiles says so; the first time, it has begun."""
_SETTLING_SECONDS = 0.2
"""Time in which a file that is written grows; one that does not is complete."""
_LONGEST_SETTLING_SECONDS = 30.0
RETRY_SECONDS = 2.0
"""Time after which changes that could not be taken in are tried again; it doubles with each failure."""
LONGEST_RETRY_SECONDS = 60.0
BURST = 1000
"""Paths that wait above which the complete folder is compared: Linux drops what exceeds 16,384 events, silently."""
MAX_SEGMENTS = 20
"""Segments above which the index is compacted: each change adds one, and each search reads them all."""


@with_torch_threads
def run_sync(config: SyncConfig) -> ChangeResult:
    """Make the index agree with the collection: as :func:`~dupmae_ir.encode.changes.run_update`, and delete what the
    collection lacks. With ``watch``, again after each change of a file, until Ctrl-C; the result is that of the last
    change.

    Raises :class:`UsageError` for a collection to ``watch`` that is not made of files.
    """
    encoders = EncoderCache()
    if not config.watch:
        return Change(config, "index sync", encoders)()
    need_packages("watching a folder", ["watchfiles"], EXTRA)
    collection = config.collection()
    if not isinstance(collection, DocumentCollection):
        raise UsageError(
            f"`watch` is for folders of documents; {collection.source} is read as lines"
        )
    allow_open_files()
    return _watch(config, encoders)


class _Identity(NamedTuple):
    """Which folder is at a path: another one after a mount, or if it was deleted and made again."""

    device: int
    inode: int


class _Waiting:
    """Changes that the index does not have yet, and when they are tried again."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._is_everything = False
        self._retry_seconds = RETRY_SECONDS
        self._next_try = 0.0
        self._last_note = ""

    def add(self, paths: Collection[str] | None) -> None:
        """Add changed paths, which are tried at once; None if any file may have changed."""
        if paths is None:
            self._is_everything = True
        elif paths:
            self._paths.update(paths)
        else:
            return
        self._is_everything |= len(self._paths) > BURST
        self._next_try = 0.0

    @property
    def is_due(self) -> bool:
        """Whether there are changes, and it is time to try them."""
        return bool(self._paths or self._is_everything) and time.monotonic() >= self._next_try

    @property
    def paths(self) -> Collection[str] | None:
        """The paths that changed; None if the complete folder is to be compared."""
        return None if self._is_everything else sorted(self._paths)

    def failed(self, note: str, quiet: bool) -> None:
        """Try again later, and say why unless that was said before."""
        if note != self._last_note:
            say(f"note: {note}", quiet)
        self._last_note = note
        self._next_try = time.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)


def _watch(config: SyncConfig, encoders: EncoderCache) -> ChangeResult:
    roots = config.sources()
    batches = _batches(roots, config.index)
    # The system collects changes from here on, so none is lost while the folder is compared.
    next(batches)
    result = Change(config, "index sync", encoders)()
    waiting = _Waiting()
    try:
        # The first change would wait for the model, several seconds, and its first text for compiled parts.
        encoders.get(Index.open(config.index), config).encode_documents(["warm"])
        say(f"watching {', '.join(roots)}; Ctrl-C ends it", config.quiet)
        for changed in batches:
            waiting.add(changed)
            if not waiting.is_due:
                continue
            taken_in = _take_in(config, encoders, waiting)
            if taken_in is not None:
                result = taken_in
                waiting = _Waiting()
    except KeyboardInterrupt:
        say("stopped watching", config.quiet)
    return result


def _take_in(config: SyncConfig, encoders: EncoderCache, waiting: _Waiting) -> ChangeResult | None:
    """Make the index agree with the changed files, and say what was done; None if they have to wait."""
    try:
        result = Change(config, "index sync", encoders, waiting.paths)()
    except (UsageError, OutputError) as e:
        # Another process changes the index, a folder is not mounted, or the disk is full.
        waiting.failed(str(e), config.quiet)
        return None
    counts = changes_in_words(result, "added", "updated", "deleted")
    if counts:
        say(f"{time.strftime('%H:%M:%S')} {counts} ({result['seconds']:.1f} s)", config.quiet)
    if result["segments"] > MAX_SEGMENTS:
        # Another process changes the index, or the disk is full: the next change compacts it.
        with suppress(UsageError, OutputError):
            result = {**result, **run_compact(CompactConfig(index=config.index, quiet=True))}
    give_back_memory()
    return result


def _batches(roots: Collection[str], index: str) -> Iterator[Collection[str] | None]:
    """As :func:`_changes`, also after a root was replaced by another folder, of which the system says nothing; None
    then, because any file may have changed."""
    is_again = False
    while True:
        watched = _identities(roots)
        changes = _changes(roots, index)
        try:
            paths = next(changes)
        except FileNotFoundError:
            if not is_again:
                raise
            time.sleep(RETRY_SECONDS)  # it was replaced, and is gone again
            continue
        yield None if is_again else paths
        for paths in changes:
            present = _identities(roots)
            if None not in present and present != watched:
                break
            yield paths
        else:
            return
        is_again = True


def _identities(roots: Collection[str]) -> list[_Identity | None]:
    """Which folder is at each root; None for one that is not there."""
    identities: list[_Identity | None] = []
    for root in roots:
        try:
            about = Path(root).stat()
        except OSError:
            identities.append(None)
        else:
            identities.append(_Identity(about.st_dev, about.st_ino))
    return identities


def _changes(roots: Collection[str], index: str) -> Iterator[Collection[str]]:
    """Nothing at first, when the system has begun to collect changes; then the absolute paths that changed, as soon as
    they are complete, those that belong together at once. Nothing again every :data:`RETRY_SECONDS` without changes."""
    from watchfiles import watch as events

    # The index may be inside the folder.
    own_folders = [os.path.abspath(folder) for folder in (index, work_folder(index))]  # noqa: PTH100 (links stay)

    def is_of_folder(_change: object, path: str) -> bool:
        name = os.path.basename(path)  # noqa: PTH119
        return not is_at(path, own_folders) and not is_hidden_or_temporary(name)

    next_empty = 0.0
    for batch in events(
        *roots,
        watch_filter=is_of_folder,
        step=QUIET_MILLISECONDS,
        debounce=LONGEST_MILLISECONDS,
        # A folder that this user may not read is one of the files that cannot be read, not the end.
        ignore_permission_denied=True,
        rust_timeout=_POLL_MILLISECONDS,
        yield_on_timeout=True,
    ):
        if not batch and time.monotonic() < next_empty:
            continue
        next_empty = time.monotonic() + RETRY_SECONDS
        paths = sorted({os.path.abspath(path) for _, path in batch})  # noqa: PTH100 (links stay)
        if paths:
            _wait_until_complete(paths)
        yield paths


def _wait_until_complete(paths: Collection[str]) -> None:
    """Wait while files grow, at most :data:`_LONGEST_SETTLING_SECONDS`; a later change is taken in again anyway."""
    deadline = time.monotonic() + _LONGEST_SETTLING_SECONDS
    sizes = [_size(path) for path in paths]
    while time.monotonic() < deadline:
        time.sleep(_SETTLING_SECONDS)
        previous = sizes
        sizes = [_size(path) for path in paths]
        if sizes == previous:
            return


def _size(path: str) -> int:
    """Bytes of a file; -1 if it is gone."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return -1
