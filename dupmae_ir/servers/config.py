"""Options of the verbs of ``dupmae-ir servers``, and those that other commands share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dupmae_ir.config import Config, OutputOptions, input_option, option

server_option = partial(option, group="server")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Config):
    """Which table of a server; shared by all verbs."""

    table: str | None = server_option(
        None, "name of the table (default: from the name of the index folder)", metavar="NAME"
    )
    timeout: float = server_option(
        60.0,
        "seconds to wait for an answer of the server; a stalled network ends with an error",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class LoadConfig(ServerOptions, OutputOptions):
    """Load an index into a search server: PostgreSQL with pgvector, Qdrant or Milvus. Rows are streamed in batches.
    Interrupted or killed, the same command continues; after index add, update, delete or sync it pushes the
    difference only. search --server then takes its candidates from the server.

    Passwords and keys are read from the environment or the server's own files (PGPASSWORD, ~/.pgpass, QDRANT_API_KEY,
    ...) and refused in a URL.

    Examples:
        dupmae-ir servers load --index indexes/mine --to postgresql://localhost/search
        dupmae-ir search --index indexes/mine --server postgresql://localhost/search --query "how do I rotate logs?"
    """

    index: str = input_option(help="index folder to load", metavar="FOLDER")
    to: str = server_option(
        help="URL of the server, such as postgresql://host/database", metavar="URL"
    )
    batch: int = server_option(
        500, "rows written in one transaction or request", at_least=1, at_most=100_000
    )
    approximate: bool = server_option(
        False, "also build the server's approximate index (HNSW), for search --approximate"
    )
    rewrite: bool = server_option(
        False,
        "write every row again, whatever the table holds (done anyway if another program changed rows)",
    )


@dataclass(frozen=True, kw_only=True)
class ShowTableConfig(ServerOptions, OutputOptions):
    """Print what a table of a server holds: of which index, how many rows, and how many bytes.

    Examples:
        dupmae-ir servers show --from postgresql://localhost/search --table mine
    """

    where: str = server_option(help="URL of the server", metavar="URL", flag="--from")
    table: str = server_option(help="name of the table", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class VerifyTableConfig(ShowTableConfig):
    """Read every row of a table and compare it with what was loaded. Exit status 1 if rows were edited, added, removed
    or replaced.

    Examples:
        dupmae-ir servers verify --from qdrant://localhost --table mine
    """

    batch: int = server_option(500, "rows read in one request", at_least=1, at_most=10_000)


@dataclass(frozen=True, kw_only=True)
class DropConfig(ShowTableConfig):
    """Remove a table that servers load made. Other tables are not touched.

    Examples:
        dupmae-ir servers drop --from postgresql://localhost/search --table mine
    """
