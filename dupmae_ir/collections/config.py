"""Options of ``dupmae-ir collections list``, ``show``, ``get`` and ``check``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.collections.benchmark_groups import GROUPS
from dupmae_ir.collections.catalogue import LOCAL
from dupmae_ir.config import OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class CacheOptions(OutputOptions):
    """The cache and the catalogue; shared by all four commands."""

    cache: str | None = option(
        None, "cache folder (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir)", group="folders", metavar="FOLDER"
    )
    catalogue: str | None = option(
        None,
        "TOML file overriding entries of the built-in catalogue (default: $DUPMAE_IR_CATALOGUE); collections made "
        "with it are marked as stand-ins and kept in a separate folder",
        group="folders",
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class ListCollectionsConfig(CacheOptions):
    """List all collections with their documents, tests and state in the cache.

    Examples:
        python -m dupmae_ir.collections list --json
    """


@dataclass(frozen=True, kw_only=True)
class ShowCollectionConfig(CacheOptions):
    """Show everything known about a collection: addresses, checksums, measures, and where its files belong.

    Examples:
        python -m dupmae_ir.collections show beir-arguana
    """

    name: str = option(
        help=f"a collection, or {LOCAL}FOLDER in BEIR's layout", group="input", metavar="NAME", positional=True
    )


@dataclass(frozen=True, kw_only=True)
class GetCollectionsConfig(CacheOptions):
    """Prepare collections in the cache, in BEIR's layout. Missing files are downloaded, unpacked, converted and
    verified: published checksums, numbers of documents, queries and judgements, and digests of topics and judgements.
    An interrupted download is resumed by the same command. A group stands for its members; licensed members, which
    cannot be downloaded, are skipped unless their files have been placed in the cache.

    Examples:
        python -m dupmae_ir.collections get beir-scifact msmarco-passage-titled
        python -m dupmae_ir.collections get beir-14 --cache /data/collections
    """

    names: tuple[str, ...] = option(
        help=f"collections or groups ({', '.join(GROUPS)})", group="input", metavar="NAME", positional=True
    )
    mirror: str | None = option(
        None,
        "base URL of a mirror that serves every address as MIRROR/host/path (default: $DUPMAE_IR_MIRROR)",
        group="folders",
        metavar="URL",
    )


@dataclass(frozen=True, kw_only=True)
class CheckCollectionsConfig(CacheOptions):
    """Read every byte and every line of prepared collections and compare them with their manifests and the catalogue.
    The exit status is 1 if there is a problem. A member of a group that is not in the cache is not a problem.

    Examples:
        python -m dupmae_ir.collections check beir-scifact
    """

    names: tuple[str, ...] = option(help="collections or groups", group="input", metavar="NAME", positional=True)
