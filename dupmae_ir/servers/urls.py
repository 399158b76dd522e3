"""URLs of servers: which module serves a URL, and the refusal of credentials in one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from dupmae_ir.errors import UsageError
from dupmae_ir.io.transfer import has_credentials
from dupmae_ir.registry import suggest


class ServerKind(NamedTuple):
    """A server: its module, its table's class, the packages it imports, their extra, and where credentials belong."""

    module: str
    table: str
    packages: tuple[str, ...]
    extra: str
    credentials: str


_PG = ServerKind("pgvector", "PgVector", ("psycopg",), "pgvector", "set PGPASSWORD or write it into ~/.pgpass")
_OPENSEARCH = ServerKind(
    "experimental.opensearch", "OpenSearch", (), "", "set OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD"
)
SERVERS: dict[str, ServerKind] = {
    "postgresql": _PG,
    "postgres": _PG,
    "qdrant": ServerKind("qdrant", "Qdrant", ("qdrant_client",), "qdrant", "set QDRANT_API_KEY"),
    "milvus": ServerKind("milvus", "Milvus", ("pymilvus",), "milvus", "set MILVUS_TOKEN"),
    "opensearch": _OPENSEARCH,
    "elasticsearch": _OPENSEARCH._replace(credentials="set ELASTICSEARCH_API_KEY"),
    "vespa": ServerKind("experimental.vespa", "Vespa", (), "", "set VESPA_CLI_DATA_PLANE_TOKEN"),
}
"""Scheme -> server."""

_TABLE = re.compile(r"[a-z][a-z0-9_]{0,47}")


def check_table(name: str) -> str:
    """The name of a table. Raises :class:`UsageError` for one that a server could refuse."""
    if not _TABLE.fullmatch(name):
        raise UsageError(
            f"`table` {name!r}: expected a lower-case letter, then at most 47 lower-case letters, digits "
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


def default_table(index: str | Path) -> str:
    """A name for the table of an index folder, from the folder's own."""
    name = re.sub(r"[^a-z0-9]+", "_", Path(index).absolute().name.lower()).strip("_")
    return (name if name[:1].isalpha() else f"index_{name}")[:48].rstrip("_")


def check_secret(parts: SplitResult, name: str, secure_scheme: str) -> None:
    """Raise :class:`UsageError` if credentials would cross a network without TLS."""
    host = parts.hostname
    local = host in (None, "", "localhost", "::1") or str(host).startswith("127.")
    if not parts.scheme.endswith("+https") and not local:
        raise UsageError(f"{name} would be sent in the clear to {host}; use {secure_scheme}://")
