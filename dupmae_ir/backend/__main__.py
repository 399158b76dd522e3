"""``python -m dupmae_ir.backend VERB``: see ``--help``."""

from __future__ import annotations

import sys

from dupmae_ir.backend.config import DropConfig, FilesConfig, LoadConfig, ShowConfig
from dupmae_ir.command import Command
from dupmae_ir.console import dispatch, megabytes

LOAD_PURPOSE = """
Load an index into a search engine: PostgreSQL with pgvector, Qdrant, Milvus, OpenSearch, Elasticsearch or Vespa. Rows
are streamed in batches. Interrupted or killed, the same command continues; after index add, update, delete or sync it
pushes the difference only. search --backend then takes its candidates from the engine.

Passwords and keys are read from the environment or the engine's own files (PGPASSWORD, ~/.pgpass, QDRANT_API_KEY, ...)
and refused in a URL.
"""
LOAD_EXAMPLES = """
python -m dupmae_ir.backend load --index indexes/mine --to postgresql://localhost/search
python -m dupmae_ir.search --index indexes/mine --backend postgresql://localhost/search --query "how do I rotate logs?"
"""
FILES_PURPOSE = """
Write an index as files that an engine's own tools load: settings, mappings and bulk files for OpenSearch and
Elasticsearch, an application package and feed files for Vespa. The folder also has example queries and a page with the
commands. Killed, the same command continues after the last whole file.
"""
FILES_EXAMPLE = "python -m dupmae_ir.backend files --index indexes/mine --engine vespa --output mine-for-vespa"
SHOW_PURPOSE = "Print what a collection of an engine holds: of which index, how many rows, and how many bytes."
SHOW_EXAMPLE = "python -m dupmae_ir.backend show --from postgresql://localhost/search --collection mine"
DROP_PURPOSE = "Remove a collection that backend load made. Other tables and collections are not touched."
DROP_EXAMPLE = "python -m dupmae_ir.backend drop --from postgresql://localhost/search --collection mine"


def summarize_load(config: LoadConfig, result: dict[str, object]) -> str:
    """How many rows were written, deleted and unchanged, and the size of the collection."""
    counts = [f"{result[f'{w}_now']:,} {w}" for w in ("written", "deleted", "unchanged") if result[f"{w}_now"]]
    size = f", {megabytes(result['bytes'])}" if isinstance(result["bytes"], int) else ""
    return (
        f"{config.index} in {result['engine']}, collection {result['collection']}: {', '.join(counts) or 'empty'}; "
        f"{result['documents']:,} documents{size}, {result['seconds']:.1f} s"
    )


def summarize_files(_: FilesConfig, result: dict[str, object]) -> str:
    """How many documents, in how many files."""
    size, parts = result["bytes"], result["parts"]
    assert isinstance(size, int)
    files = f"{parts:,} file{'' if parts == 1 else 's'}"
    return (
        f"{result['output']}: {result['documents']:,} documents for {result['engine']}, collection "
        f"{result['collection']}, {files}, {megabytes(size)}; README.md has the commands"
    )


def show_record(_: ShowConfig, result: dict[str, object]) -> str:
    """The record, one field a line."""
    return "\n".join(f"{name}: {value}" for name, value in result.items())


def summarize_drop(config: DropConfig, result: dict[str, object]) -> str:
    """How many documents the collection had."""
    return f"{config.collection}: dropped, {result['documents']:,} documents"


load = Command(
    "backend load",
    LOAD_PURPOSE,
    LOAD_EXAMPLES,
    LoadConfig,
    "dupmae_ir.backend.load:run",
    summarize=summarize_load,
    resumes=True,
)
files = Command(
    "backend files",
    FILES_PURPOSE,
    FILES_EXAMPLE,
    FilesConfig,
    "dupmae_ir.backend.files:run",
    summarize=summarize_files,
    resumes=True,
)
show = Command("backend show", SHOW_PURPOSE, SHOW_EXAMPLE, ShowConfig, "dupmae_ir.backend.load:show", show=show_record)
drop = Command(
    "backend drop", DROP_PURPOSE, DROP_EXAMPLE, DropConfig, "dupmae_ir.backend.load:drop", summarize=summarize_drop
)

VERBS = {
    "load": ("load an index into an engine, or push what changed", load),
    "files": ("write files that an engine's own tools load", files),
    "show": ("what a collection of an engine holds", show),
    "drop": ("remove a collection", drop),
}
EXAMPLES = "\n".join((*LOAD_EXAMPLES.strip().split("\n"), FILES_EXAMPLE, SHOW_EXAMPLE))


def main(argv: list[str] | None = None) -> int:
    """Run one of the verbs and return its exit status."""
    return dispatch("backend", VERBS, EXAMPLES, argv)


if __name__ == "__main__":
    sys.exit(main())
