"""Options of ``dupmae-ir serve``."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from dupmae_ir.config import ComputeOptions, OneOf, OutputOptions, Requires, option
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.transfer import is_url, without_credentials
from dupmae_ir.search.config import SearchSettings

TOKEN_VARIABLE = "DUPMAE_IR_TOKEN"
MIN_TOKEN_CHARACTERS = 16
what_option = partial(option, group="what")
network_option = partial(option, group="network")
limit_option = partial(option, group="limits")
request_option = partial(option, group="requests")


@dataclass(frozen=True, kw_only=True)
class ServeConfig(SearchSettings, ComputeOptions, OutputOptions):
    """Serve indexes over HTTP: a REST API described at /openapi.json, a page that shows why each hit was found at /,
    health at /health and /ready, metrics at /metrics. Queries that arrive together are encoded together. A new
    generation of an index is taken in without a pause. Only this machine can connect unless --host names another
    address, which needs a token.

    Examples:
        dupmae-ir serve --index my-index
        dupmae-ir serve --index docs=indexes/docs old=indexes/docs-2025 --port 8080
        DUPMAE_IR_TOKEN=$(cat token) dupmae-ir serve --index my-index --host 0.0.0.0
        dupmae-ir serve --index my-index --mcp
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (OneOf(("index", "indexes")),)

    index: tuple[str, ...] = what_option(
        (),
        "index folders, each served under the name of its folder, or as NAME=FOLDER. The first is the default",
        metavar="FOLDER",
    )
    indexes: str | None = what_option(
        None,
        "serve every index in this folder; indexes that appear in it or vanish are noticed at each reload",
        metavar="FOLDER",
    )
    model: str | None = what_option(
        None,
        "model folder for the queries (default: the one recorded in each index)",
        metavar="FOLDER",
    )
    writable: bool = what_option(
        False, "accept new, changed and deleted documents at /api/indexes/NAME", only_with="!mcp"
    )
    watch: tuple[str, ...] = what_option(
        (),
        "folders of documents that the index was made of: keep it in step with them (extra documents)",
        metavar="FOLDER",
    )
    mcp: bool = what_option(
        False, "serve the Model Context Protocol on standard input and output instead of HTTP"
    )
    mcp_http: bool = what_option(
        False, "serve the Model Context Protocol at /mcp beside the API", only_with="!mcp"
    )
    host: str = network_option(
        "127.0.0.1", "address to listen on; any but a loopback address needs a token"
    )
    port: int = network_option(
        8000, "port to listen on; 0 = any free one", at_least=0, at_most=65535
    )
    token_file: str | None = network_option(
        None,
        f"file with the bearer token that requests must carry (or set {TOKEN_VARIABLE} in the environment)",
        metavar="FILE",
    )
    cors: tuple[str, ...] = network_option(
        (), "origins whose pages may call the API, such as https://example.org (default: none)"
    )
    batch_size: int = request_option(64, "most queries encoded and searched together", at_least=1)
    batch_wait: float = request_option(
        10.0,
        "milliseconds to wait at most for more queries to encode together; a client that is alone never waits",
        at_least=0,
        at_most=1000,
    )
    query_cache: int = request_option(
        4096,
        "encodings of recent queries kept, so that a repeated query is not encoded again",
        at_least=0,
    )
    reload_seconds: float = request_option(
        2.0,
        "look for a new generation of each index this often; 0 = only on SIGHUP and POST /api/reload",
        at_least=0,
    )
    queue: int = limit_option(
        512, "queries that may wait; more are answered 429 with Retry-After", at_least=1
    )
    request_timeout: float = limit_option(
        30.0, "seconds from the arrival of a request to its answer; then 504", above=0
    )
    slow_client: float = limit_option(
        10.0,
        "seconds that a client has to send a request's head, then its body (else 408), and to read 64 KiB of an answer",
        above=0,
    )
    stop_seconds: float = limit_option(
        15.0,
        "seconds from SIGTERM or Ctrl-C to the end; running requests have four fifths of them",
        above=0,
    )
    connections: int = limit_option(1024, "open connections; more are answered 503", at_least=1)
    max_bytes: int = limit_option(1 << 20, "bytes of a request's body", at_least=1024)
    max_hits: int = limit_option(1000, "hits of a query", at_least=1)
    max_answer: int = limit_option(
        64 << 20, "bytes of an answer, about; more hits or texts are refused", at_least=1024
    )
    max_queries: int = limit_option(128, "queries of one request", at_least=1)
    max_characters: int = limit_option(4096, "characters of a query", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_queries > self.queue:
            raise UsageError(
                f"`max_queries` {self.max_queries} exceeds `queue` {self.queue}: no such request would fit"
            )
        if self.bm25_index and len(self.index) != 1:
            raise UsageError("`bm25_index` belongs to one index; serve exactly one with `index`")
        if self.bm25_index and self.writable:
            raise UsageError("`writable` does not change a BM25 index; leave out `bm25_index`")
        if self.watch and len(self.index) != 1:
            raise UsageError("`watch` belongs to one index; serve exactly one with `index`")
        for folder in self.watch:
            if not Path(folder).exists():
                raise InputError(f"{folder}: no such file or folder")
        names = [name for name, _ in self.named]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"two indexes are named {name!r}; give one another name: `index` NAME=FOLDER"
                )
        for origin in self.cors:
            if not origin.startswith(("http://", "https://")) or origin.rstrip("/").count("/") != 2:
                raise UsageError(f"`cors` {origin}: expected an origin such as https://example.org")

    @property
    def named(self) -> list[tuple[str, Path]]:
        """Name and folder of each index of ``--index``."""
        return [_named(word) for word in self.index]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def token(self) -> str | None:
        """The bearer token; None without one.

        Raises :class:`UsageError` if an address other than loopback would be served without one, and
        :class:`InputError` for an unreadable or short one.
        """
        token = os.environ.get(TOKEN_VARIABLE)
        source = TOKEN_VARIABLE
        if self.token_file is not None:
            token = _read_token(self.token_file)
            source = self.token_file
        if token is None:
            # Standard input and output are those of the program that started this one, so they need no token.
            if not self.is_loopback and not self.mcp:
                raise UsageError(
                    f"`host` {self.host} is reachable from other machines and needs a token: pass `token_file` FILE or "
                    f"set {TOKEN_VARIABLE}"
                )
            return None
        # Editors end a file with a line break.
        token = token.strip()
        # A header carries nothing else unchanged.
        printable = all("!" <= character <= "~" for character in token)
        if len(token) < MIN_TOKEN_CHARACTERS or not printable:
            raise InputError(
                f"{source}: a token is {MIN_TOKEN_CHARACTERS} or more printable ASCII characters without blanks"
            )
        return token


def _named(word: str) -> tuple[str, Path]:
    """Name and folder of ``FOLDER`` or ``NAME=FOLDER``."""
    name, equals, folder = word.partition("=")
    if is_url(word) or is_url(folder):
        url = without_credentials(word if is_url(word) else folder)
        raise UsageError(
            f"`index` {url}: serve needs a folder of this machine: copy it with dupmae-ir index pull"
        )
    # With a slash before it, the equals sign is part of a path.
    if equals and name and "/" not in name:
        return name, Path(folder)
    return Path(word).absolute().name or "index", Path(word)


def _read_token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; `token_file` names a file with the token"
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: cannot be read as a token: {e}") from None
