"""The number of files that a process may have open."""

from __future__ import annotations

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

ENOUGH = 65_536


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may without asking, to :data:`ENOUGH` at most.

    For processes that run for long: the usual 1,024 (256 on macOS) are for programs that wait with ``select``. Each
    large file of an index and each client is an open file, and an index is open twice while a new one takes its place.
    """
    if resource is None:
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if most == resource.RLIM_INFINITY else min(most, ENOUGH)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
