"""Hostile documents, requests and cells, made at random from valid ones.

* documents: files of every format with bits flipped, cut, spliced, repeated, nested or renamed lie beside a good one.
  The good one is indexed, every other is read or listed as unreadable in one line, within the limits of text and time.
* requests: bodies and addresses of every route with values of other kinds, sizes and encodings. Each is answered by a
  status that the API documents, in JSON without control characters, and a plain query is answered as before.
* cells: ids, names and numbers with signs of CSV, TeX, Markdown and HTML, in a table of each form. Each has as many
  rows and cells as before, no cell is a formula or markup, and the text can be read back from CSV.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.document_samples import FILES, write_folder
from support.serving import Client, serving, texts, write_index

from dupmae_ir import tables
from dupmae_ir.io.documents.collection import DocumentCollection
from tests.campaign.records import Record, Records, counted, number_of, sum_of

TITLE = "Hostile: documents, requests and cells of tables"
SECONDS = 60.0
GROWTH = 250
"""Seconds for ten files, and characters of text for a byte of a file (the limit is 200, and headings repeat)."""
GOOD = "The parser is faster now. "
ANSWERS = {200, 303, 307, 400, 401, 403, 404, 405, 408, 409, 413, 422, 429}


def run(seconds: float, seed: int, records: Records) -> None:
    """Ten documents, twenty requests and twenty tables in turn until the time is over."""
    end = time.monotonic() + seconds
    number = len(records.all)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        client = stack.enter_context(serving(write_index(folder / "I", texts(30)), writable=True))
        samples = [
            path.read_bytes()
            for path in write_folder(folder / "samples").rglob("*")
            if path.is_file()
        ]
        quiet = _plain(client)
        trials: dict[str, Callable[[random.Random], tuple[int, str]]] = {
            "documents": lambda rng: _documents(rng, samples, folder / f"documents{number}"),
            "requests": lambda rng: _requests(rng, client, quiet),
            "cells": _cells,
        }
        while time.monotonic() < end:
            for kind, trial in trials.items():
                number += 1
                try:
                    count, words = trial(random.Random(f"{seed} {number}"))
                except Exception:
                    count = 1
                    words = traceback.format_exc()[-2000:]
                records.add(
                    kind=kind, count=count, verdict="wrong" if words else "right", words=words
                )


def table(records: Sequence[Record]) -> str:
    """Inputs and groups of them of which one was wrong, by kind."""
    counts = {"inputs": sum_of("count"), "groups": len, "wrong": number_of("verdict", "wrong")}
    return counted(records, "kind", counts, "input")


def is_wrong(record: Record) -> bool:
    """Whether an input of a group was not handled as promised."""
    return record["verdict"] == "wrong"


# --- documents ---------------------------------------------------------------------------------------------------

_REPEATED = (
    b"<b>",
    b"# a ",
    b"[",
    b'{"a":',
    b"(",
    b"\\x",
    b"&amp;",
    b"|",
    b"\n\n",
    b"\t",
    b"- ",
    b"`",
    b"\xff",
    b"\0",
)
_NAMES = [Path(name).suffix for name in FILES] + [
    ".rst",
    ".tex",
    ".xml",
    ".py",
    ".csv",
    ".tsv",
    ".json",
    ".md",
    "",
]


def _damaged(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    data = rng.choice(samples)
    at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    other = rng.choice(samples)
    flipped = bytearray(data)
    for _ in range(rng.randint(1, 20)):
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    made = rng.choice(_REPEATED) * rng.choice((1, 1000, 100_000))
    return rng.choice(
        [
            bytes(flipped),
            data[:at],
            data[:at] + other[rng.randrange(len(other)) :],
            data[:at] + data[at:to] * rng.choice((2, 100, 2000)) + data[to:],
            data[:at] + made + data[at:],
            data[:at] + data[to:],
            made,
            data[:at] + rng.randbytes(rng.randint(1, 1000)) + data[to:],
            data.swapcase(),
            data.decode("utf-8", "replace").encode(
                rng.choice(("utf-16", "utf-32", "utf-7", "cp037")), "replace"
            ),
        ]
    )


def _documents(rng: random.Random, samples: Sequence[bytes], folder: Path) -> tuple[int, str]:
    """Ten files beside a good one; how many, and what is wrong."""
    files = {f"{n}{rng.choice(_NAMES)}": _damaged(rng, samples) for n in range(10)}
    write_folder(folder, {**files, "good.txt": GOOD.encode() * 3})
    began = time.monotonic()
    collection = DocumentCollection([str(folder)])
    found = list(collection)
    seconds = time.monotonic() - began
    sizes = {name: len(data) for name, data in files.items()}
    read: dict[str, int] = dict.fromkeys(sizes, 0)
    for document in found:
        name = Path(str(document.metadata["path"])).name
        if name in read:
            read[name] += len(document.text)
    if not any(GOOD.strip() in document.text for document in found):
        return 10, "the good file is not there"
    if any("\n" in reason for reason in collection.unreadable.values()):
        return 10, f"more than a line: {collection.unreadable}"
    if large := [name for name, length in read.items() if length > GROWTH * sizes[name] + 10_000]:
        return 10, f"{large[0]}: {read[large[0]]} characters of {sizes[large[0]]} bytes"
    return 10, f"{seconds:.0f} s" if seconds > SECONDS else ""


# --- requests ----------------------------------------------------------------------------------------------------

_ROUTES = {
    "/api/search": {
        "query": "lock",
        "hits": 3,
        "mode": "hybrid",
        "texts": True,
        "explain": True,
        "filter": "year > 1",
    },
    "/api/encode": {"texts": ["a"], "kind": "document", "vectors": True},
    "/api/explain": {"query": "lock", "docids": ["d1"]},
    "/api/indexes/I/documents": {
        "documents": [{"docid": "n", "text": "x", "metadata": {"a": 1}}],
        "replace": True,
    },
    "/api/indexes/I/delete": {"docids": ["nobody"], "ignore_unknown": True},
}
_ADDRESSES = (
    "/api/documents/{}",
    "/api/files/{}",
    "/api/indexes/{}",
    "/api/search?query={}&hits={}",
    "/?q={}",
    "/{}",
)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        10**9,
        10**400,
        0.5,
        "",
        " ",
        "x" * 5000,
        [],
        {},
        [[]],
        [None] * 300,
        ["a"] * 300,
    ),
    *(
        "\ud800",
        "\u202ex",
        "\x1b[2J",
        "a\0b",
        "\n",
        "../../etc/passwd",
        "year >",
        "x " * 2000,
        "(" * 500,
        "'" * 9,
    ),
    *(
        {"a": {"b": 1}},
        ["lock"] * 128,
        "not " * 200 + "year > 1",
        "year in (" + "1," * 900 + "1)",
        "nobody",
    ),
)


def _changed(rng: random.Random, value: Any) -> Any:
    """``value`` with something in it replaced, removed or added."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        changed = {**value, name: _changed(rng, value[name])}
        if rng.random() < 0.1:
            del changed[name]
        return (
            {**changed, rng.choice(("extra", "\ud800", "index", "within")): rng.choice(_VALUES)}
            if rng.random() < 0.2
            else changed
        )
    if isinstance(value, list) and value and rng.random() < 0.6:
        return [_changed(rng, one) for one in value]
    return rng.choice(_VALUES)


def _requests(rng: random.Random, client: Client, quiet: object) -> tuple[int, str]:
    """Twenty requests; how many, and what is wrong."""
    for _ in range(20):
        if rng.random() < 0.7:
            path = rng.choice(list(_ROUTES))
            body = json.dumps(_changed(rng, _ROUTES[path])).replace("Infinity", "1e999").encode()
            if rng.random() < 0.2:
                at = rng.randrange(len(body))
                body = rng.choice(
                    [
                        body[:at],
                        body[:at] + rng.randbytes(2) + body[at:],
                        body.decode().encode("utf-16"),
                    ]
                )
            reply = client.post(path, body)
        else:
            asked = [
                quote(
                    str(rng.choice(_VALUES)).encode("utf-8", "replace"),
                    safe="/" * rng.randint(0, 1),
                )
                for _ in "ab"
            ]
            path = rng.choice(_ADDRESSES).format(*asked)[:40_000]
            reply = client.get(path, accept=rng.choice(("text/html", "*/*", "\xff")))
        said = f"{path[:200]}: {reply.status} {reply.text[:300]}"
        if reply.status not in ANSWERS:
            return 20, said
        if reply.headers.get("content-type", "").startswith("application/json"):
            json.loads(reply.body)
            if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", reply.text) and reply.status != 200:
                return 20, f"a control character: {said}"
    return (20, "") if _plain(client) == quiet else (20, "a plain query is answered otherwise")


def _plain(client: Client) -> object:
    """Lists of documents that no request changes; an answer's scores do not depend on others."""
    reply = client.post(
        "/api/search", {"query": "lock thread", "hits": 5, "filter": "year > 1 and year < 9999"}
    )
    return [(hit["docid"], hit["score"]) for hit in reply.json["results"][0]["hits"]]


# --- cells -------------------------------------------------------------------------------------------------------

_SIGNS = [
    *"\"',;|\\&%$#_{}[~^<>\n\u202e\ud800\u2028 é†",
    "=1+1",
    "+1",
    "-1",
    "@x",
    "\t=1",
    "\r=1",
    "0.5",
]
_SIGNS += ["<script>", "</td>", "\\input{x}", "\x1b[2J"]


class _Cells(HTMLParser):
    """The tags of a page, and the text of its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.cells += [""] if tag in ("td", "th") else []

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def _cells(rng: random.Random) -> tuple[int, str]:
    """Twenty tables of 3 rows and 3 columns in each form; how many, and what is wrong."""
    for _ in range(20):
        rows = [
            ["".join(rng.choices(_SIGNS, k=rng.randint(0, 4))) for _ in range(3)] for _ in range(3)
        ]
        head = ["a", "b", "c"]
        for delimiter in ",\t":
            read = list(
                csv.reader(
                    io.StringIO(tables.csv_text([head, *rows], delimiter)), delimiter=delimiter
                )
            )
            if [len(row) for row in read] != [3] * 4:
                return 20, f"CSV of {rows!r}: {read!r}"
            if formula := [
                cell for row in read for cell in row if re.match(r"[=@\t\r]|[+-](?![\d.]+$)", cell)
            ]:
                return 20, f"a formula in CSV: {formula[0]!r} of {rows!r}"
        if len(lines := tables.markdown(head, rows).split("\n")) != 5 or any(
            _bars(line) != 4 for line in lines
        ):
            return 20, f"Markdown of {rows!r}"
        page = _Cells()
        page.feed(tables.html(head, rows))
        if sorted(set(page.tags)) != ["table", "td", "th", "tr"] or len(page.cells) != 12:
            return 20, f"HTML of {rows!r}: {page.tags}"
        tex = tables.latex(head, [[tables.tex(cell) for cell in row] for row in rows])
        lines = tex.split("\n")
        plain = re.sub(
            r"\{\[\}|\\textbackslash\{\}|\\textasciitilde\{\}|\\textasciicircum\{\}|\$[<>]\$|\$\^\{\\dd?agger\}\$|\\[&%$#_{}]",
            "",
            tex,
        )
        body = plain.split("\n")[4:-2]
        if len(lines) != 9 or any(
            re.search(r"[%$#_{}~^[\\]", line.removesuffix(r" \\")) or line.count("&") != 2
            for line in body
        ):
            return 20, f"LaTeX of {rows!r}: {tex}"
    return 20, ""


def _bars(line: str) -> int:
    """The bars that divide the cells of a line of Markdown."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))
