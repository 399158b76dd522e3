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
class ListConfig(CacheOptions):
    """Options of ``dupmae-ir collections list``."""


@dataclass(frozen=True, kw_only=True)
class ShowConfig(CacheOptions):
    """Options of ``dupmae-ir collections show``."""

    name: str = option(
        help=f"a collection, or {LOCAL}FOLDER in BEIR's layout", group="input", metavar="NAME", positional=True
    )


@dataclass(frozen=True, kw_only=True)
class GetConfig(CacheOptions):
    """Options of ``dupmae-ir collections get``."""

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
class CheckConfig(CacheOptions):
    """Options of ``dupmae-ir collections check``."""

    names: tuple[str, ...] = option(help="collections or groups", group="input", metavar="NAME", positional=True)
