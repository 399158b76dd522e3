"""URLs of engines: which module serves a URL, and the refusal of credentials in one."""

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
from dupmae_ir.servers.protocol import Backend


class EngineEntry(NamedTuple):
    """An engine: its module, the packages it imports, their extra, and where its credentials belong."""

    module: str
    packages: tuple[str, ...]
    extra: str
    credentials: str


_PG = EngineEntry("pgvector", ("psycopg",), "pgvector", "set PGPASSWORD or write it into ~/.pgpass")
ENGINES: dict[str, EngineEntry] = {
    "postgresql": _PG,
    "postgres": _PG,
    "qdrant": EngineEntry("qdrant", ("qdrant_client",), "qdrant", "set QDRANT_API_KEY"),
    "milvus": EngineEntry("milvus", ("pymilvus",), "milvus", "set MILVUS_TOKEN"),
    "opensearch": EngineEntry("experimental.opensearch", (), "", "set OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"),
    "elasticsearch": EngineEntry("experimental.opensearch", (), "", "set ELASTICSEARCH_API_KEY"),
    "vespa": EngineEntry("experimental.vespa", (), "", "set VESPA_CLI_DATA_PLANE_TOKEN"),
}
"""Scheme -> engine."""

_COLLECTION = re.compile(r"[a-z][a-z0-9_]{0,47}")
Opener = Callable[[SplitResult, str, float], Backend]


def connect(url: str, collection: str, timeout: float) -> Backend:
    """Open a collection of an engine. Raises :class:`UsageError` for a URL that names no engine or has credentials,
    :class:`BackendFailed` for an engine that does not answer within ``timeout`` seconds."""
    parts = parse(url)
    check_collection(collection)
    entry = ENGINES[parts.scheme.partition("+")[0]]
    need_packages(f"{parts.scheme}://", entry.packages, entry.extra)
    opener = cast(Opener, importlib.import_module(f"dupmae_ir.servers.{entry.module}").connect)
    return opener(parts, collection, timeout)


def check_collection(name: str) -> str:
    """The name of a collection. Raises :class:`UsageError` for one that an engine could refuse."""
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
        raise UsageError(f"the URL of the engine cannot be read: {e}") from None
    scheme = parts.scheme.partition("+")[0]
    if scheme not in ENGINES:
        known = ", ".join(f"{name}://" for name in ENGINES)
        raise UsageError(
            f"no engine for {parts.scheme or 'a URL without a scheme'!r}; known: {known}.{suggest(scheme, ENGINES)}"
        )
    if secret:
        raise UsageError(
            f"{scheme}: a URL must not contain a password, which other users of this machine can see; "
            f"{ENGINES[scheme].credentials}"
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
