"""``dupmae-ir index sync``: an index that agrees with its collection, and with ``--watch`` follows its folder.

The operating system tells which files change (watchfiles). Changes that come close together are taken in at once, after
the files have stopped growing. Only these files are read. A watcher that was killed compares the complete folder when
it is started again, as ``index sync`` does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from dupmae_ir.console import say
from dupmae_ir.device import need_packages, with_torch_threads
from dupmae_ir.encode.changes import Change, EncoderCache
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.index.changes.changes import run_compact
from dupmae_ir.index.config import ChangeResult, CompactConfig, SyncConfig, changes_in_words
from dupmae_ir.index.index import Index
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.files import EXTRA
from dupmae_ir.io.documents.names import is_at, is_hidden_or_temporary
from dupmae_ir.io.jobs import work_folder

QUIET_MILLISECONDS = 300
"""Time without another change after which those so far are taken in."""
LONGEST_MILLISECONDS = 1500
"""Time after which they are taken in although others follow, so that a busy folder is not put off for ever."""
_POLL_MILLISECONDS = 200
"""Time without a change after which watchfiles says so; the first time, it has begun."""
_SETTLING_SECONDS = 0.2
"""Time in which a file that is written grows; one that does not is complete."""
_LONGEST_SETTLING_SECONDS = 30.0
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
    if not isinstance(config.collection(), DocumentCollection):
        raise UsageError(f"`watch` is for folders of documents; {config.corpus} is read as lines")
    return _watch(config, encoders)


def _watch(config: SyncConfig, encoders: EncoderCache) -> ChangeResult:
    roots = config.sources()
    changes = _changes(roots, config.index)
    # The system collects changes from here on, so none is lost while the folder is compared.
    next(changes)
    result = Change(config, "index sync", encoders)()
    # The first change would wait for the model, several seconds, and its first text for compiled parts.
    encoders.get(Index.open(config.index), config).encode_documents(["warm"])
    say(f"watching {', '.join(roots)}; Ctrl-C ends it", config.quiet)
    try:
        for changed in changes:
            result = _take_in(config, encoders, changed, result)
            if result["segments"] > MAX_SEGMENTS:
                compacted = run_compact(CompactConfig(index=config.index, quiet=True))
                result = {**result, **compacted}
    except KeyboardInterrupt:
        say("stopped watching", config.quiet)
    return result


def _take_in(
    config: SyncConfig, encoders: EncoderCache, changed: Collection[str], before: ChangeResult
) -> ChangeResult:
    """Make the index agree with the changed files, and say what was done; ``before`` if there was nothing to do."""
    try:
        result = Change(config, "index sync", encoders, changed)()
    except (InputError, UsageError) as e:
        # The next change may mend it, for example a folder that is mounted again.
        say(f"note: {e}", config.quiet)
        return before
    counts = changes_in_words(result, "added", "updated", "deleted")
    if counts:
        say(f"{time.strftime('%H:%M:%S')} {counts} ({result['seconds']:.1f} s)", config.quiet)
    return result


def _changes(roots: Collection[str], index: str) -> Iterator[Collection[str]]:
    """Nothing at first, when the system has begun to collect changes; then the absolute paths that changed, as soon as
    they are complete, those that belong together at once."""
    from watchfiles import watch as events

    # The index may be inside the folder.
    own_folders = [os.path.abspath(folder) for folder in (index, work_folder(index))]  # noqa: PTH100 (links stay)

    def is_of_folder(_change: object, path: str) -> bool:
        name = os.path.basename(path)  # noqa: PTH119
        return not is_at(path, own_folders) and not is_hidden_or_temporary(name)

    is_begun = False
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
        if is_begun and not batch:
            continue
        is_begun = True
        paths = sorted({os.path.abspath(path) for _, path in batch})  # noqa: PTH100 (links stay)
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
