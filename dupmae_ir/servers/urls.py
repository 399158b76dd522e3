"""URLs of servers: which module serves a URL, and the refusal of credentials in one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from dupmae_ir.device import need_packages
from dupmae_ir.errors import UsageError
from dupmae_ir.io.transfer import has_credentials
from dupmae_ir.registry import suggest
from dupmae_ir.servers.protocol import ServerTable


class ServerKind(NamedTuple):
    """A server: its module, the packages it imports, their extra, and where its credentials belong."""

    module: str
    packages: tuple[str, ...]
    extra: str
    credentials: str


_PG = ServerKind("pgvector", ("psycopg",), "pgvector", "set PGPASSWORD or write it into ~/.pgpass")
SERVERS: dict[str, ServerKind] = {
    "postgresql": _PG,
    "postgres": _PG,
    "qdrant": ServerKind("qdrant", ("qdrant_client",), "qdrant", "set QDRANT_API_KEY"),
    "milvus": ServerKind("milvus", ("pymilvus",), "milvus", "set MILVUS_TOKEN"),
    "opensearch": ServerKind("experimental.opensearch", (), "", "set OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"),
    "elasticsearch": ServerKind("experimental.opensearch", (), "", "set ELASTICSEARCH_API_KEY"),
    "vespa": ServerKind("experimental.vespa", (), "", "set VESPA_CLI_DATA_PLANE_TOKEN"),
}
"""Scheme -> server."""

_COLLECTION = re.compile(r"[a-z][a-z0-9_]{0,47}")
Opener = Callable[[SplitResult, str, float], ServerTable]


def connect(url: str, collection: str, timeout: float) -> ServerTable:
    """Open a collection of a server. Raises :class:`UsageError` for a URL that names no server or has credentials,
    :class:`ServerFailed` for a server that does not answer within ``timeout`` seconds."""
    parts = parse(url)
    check_collection(collection)
    entry = SERVERS[parts.scheme.partition("+")[0]]
    need_packages(f"{parts.scheme}://", entry.packages, entry.extra)
    opener = cast(Opener, importlib.import_module(f"dupmae_ir.servers.{entry.module}").connect)
    return opener(parts, collection, timeout)


def check_collection(name: str) -> str:
    """The name of a collection. Raises :class:`UsageError` for one that a server could refuse."""
    if not _COLLECTION.fullmatch(name):
        raise UsageError(
            f"`collection` {name!r}: expected a lower-case letter, then at most 47 lower-case letters, digits "
            "and underscores"
        )
    return name


def parse(url: str) -> SplitResult:
    """The parts of a URL. Raises :class:`UsageError`, without its credentials, for one that cannot be used."""
    try:
        parts = urlsplit(url)
        secret = has_credentials(parts)
        _ = parts.port
    except ValueError as e:
        raise UsageError(f"the URL of the server cannot be read: {e}") from None
    scheme = parts.scheme.partition("+")[0]
    if scheme not in SERVERS:
        known = ", ".join(f"{name}://" for name in SERVERS)
        raise UsageError(
            f"no server for {parts.scheme or 'a URL without a scheme'!r}; known: {known}.{suggest(scheme, SERVERS)}"
        )
    if secret:
        raise UsageError(
            f"{scheme}: a URL must not contain a password, which other users of this machine can see; "
            f"{SERVERS[scheme].credentials}"
        )
    return parts


def shown(parts: SplitResult) -> str:
    """The URL for messages: without user and query."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def default_collection(index: str | Path) -> str:
    """A name for the collection of an index folder, from the folder's own."""
    name = re.sub(r"[^a-z0-9]+", "_", Path(index).absolute().name.lower()).strip("_")
    return (name if name[:1].isalpha() else f"index_{name}")[:48].rstrip("_")


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine."""
    return host in (None, "", "localhost", "::1") or str(host).startswith("127.")
