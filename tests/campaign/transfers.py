"""What comes from elsewhere: downloads that break off or change, archives with hostile members, stores that lie.

* downloads: a server cuts, stalls, forgets its version, changes the file, sends other bytes or none. Each attempt ends
  with one error or the file whose sha256 was asked for; an honest server ends every trial with that file.
* archives: random members, some of them links, devices, absolute or upward names, or repeated; random bytes of the
  archive damaged. What comes out is what a plain reading allows, or nothing; nothing is written beside the folder.
* stores: an index is pushed and pulled while reads return an older object, a part of one or other bytes, or none, and
  writes are lost or cut. A pulled index is one of those that were pushed, whole; an honest store ends with the newest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import shutil
import tarfile
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from dupmae_ir import pyserini
from dupmae_ir.errors import DupmaeError
from dupmae_ir.index.changes.object_store import pull, push
from dupmae_ir.io import transfer
from dupmae_ir.io.archives import unpack
from dupmae_ir.io.transfer import Remote, RemoteFile, download
from tests.campaign import faults
from tests.campaign.records import Record, Records, counted, number_of

TITLE = "Transfers: downloads that break, archives with hostile members, object stores that lie"
VERDICTS = ("right", "refused", "wrong", "traceback")


def run(seconds: float, seed: int, records: Records) -> None:
    """Random trials of each kind in turn until the time is over."""
    end = time.monotonic() + seconds
    number = len(records.all)
    with (
        tempfile.TemporaryDirectory(dir=faults.MEMORY if faults.MEMORY.is_dir() else None) as name,
        _quick(),
    ):
        folder = Path(name)
        kinds: dict[str, Callable[[random.Random], tuple[str, str]]] = {}
        with _web() as web:
            kinds = {
                "download": lambda rng: _downloaded(rng, web, folder / "download"),
                "archive": lambda rng: _unpacked(rng, folder / "archive"),
                "store": Stores(folder / "indexes").tried,
            }
            while time.monotonic() < end:
                for kind, trial in kinds.items():
                    number += 1
                    verdict, words = _judged(trial, random.Random(f"{seed} {number} {kind}"))
                    records.add(
                        kind=kind, verdict=verdict, words=words if verdict in VERDICTS[2:] else ""
                    )


def table(records: Sequence[Record]) -> str:
    """Verdicts by kind."""
    return counted(
        records,
        "kind",
        {"trials": len, **{n: number_of("verdict", n) for n in VERDICTS}},
        "transfer",
    )


def is_wrong(record: Record) -> bool:
    """Whether something wrong arrived, or an error was a traceback."""
    return record["verdict"] not in VERDICTS[:2]


def _judged(
    trial: Callable[[random.Random], tuple[str, str]], rng: random.Random
) -> tuple[str, str]:
    try:
        return trial(rng)
    except Exception:
        return "traceback", traceback.format_exc()[-1500:]


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Without waits between attempts, Java, proxies or a network."""
    waits = transfer.WAITS
    installed = pyserini.installed
    fsync = os.fsync
    transfer.WAITS = (0.0, 0.0)
    pyserini.installed = lambda: False
    os.fsync = lambda _: None
    kept = {
        name: os.environ.pop(name, None)
        for name in ("DUPMAE_IR_OFFLINE", "HF_HUB_OFFLINE", "DUPMAE_IR_MIRROR")
    }
    os.environ["NO_PROXY"] = "*"
    fsspec.register_implementation("memory", LyingStore, clobber=True)
    try:
        yield
    finally:
        transfer.WAITS = waits
        pyserini.installed = installed
        os.fsync = fsync
        os.environ.update({name: value for name, value in kept.items() if value is not None})
        fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)


# --- downloads ---------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Answers by the ``script``: a function of this object; honestly without one."""

    protocol_version = "HTTP/1.1"
    data = b""
    script: Callable[[Handler], bool] | None = None

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.close_connection = True
        script = type(self).script
        if script is None or not script(self):
            wants = self.headers.get("Range")
            self.give(int(wants[6:-1]) if wants else 0, self.data)

    def give(self, start: int, data: bytes, sent: int | None = None, **headers: str) -> None:
        """The file from ``start`` on, ``sent`` bytes of it."""
        total = len(data)
        if start >= total:
            self.answer(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
            return
        ranged = {"Content-Range": f"bytes {start}-{total - 1}/{total}"} if start else {}
        self.answer(
            206 if start else 200,
            {"ETag": '"1"', "Content-Length": str(total - start), **ranged, **headers},
        )
        with contextlib.suppress(OSError):
            self.wfile.write(data[start:][:sent])

    def answer(self, status: int, headers: dict[str, str]) -> None:
        """A head."""
        self.send_response(status)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def _web() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Scripted", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def _misbehaviour(rng: random.Random, data: bytes) -> Callable[[Handler], bool]:
    """What a server does with one request."""
    cut = rng.randrange(len(data))
    at = rng.randrange(len(data))
    other = rng.randbytes(len(data))
    flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    return rng.choice(
        [
            lambda h: h.give(_start(h), data, cut) or True,
            lambda h: h.give(0, data, cut) or True,  # ignores the range
            lambda h: h.give(_start(h), other, cut, ETag='"2"') or True,  # another version
            lambda h: h.give(_start(h), other) or True,  # another version under the same mark
            lambda h: h.give(_start(h), flipped) or True,
            lambda h: h.give(min(_start(h) + 1, len(data) - 1), data) or True,  # from another place
            lambda h: (
                h.answer(rng.choice((404, 403, 500, 503, 429)), {"Content-Length": "0"}) or True
            ),
            lambda h: (
                h.answer(
                    302,
                    {
                        "Location": rng.choice(
                            ("/again", "file:///etc/passwd", "http://[", "ftp://x/")
                        )
                    },
                )
                or True
            ),
            lambda h: (
                h.answer(
                    200, {"Content-Length": rng.choice(("-1", "x", "9" * 30, str(len(data) * 2)))}
                )
                or True
            ),
            lambda h: (
                h.answer(206, {"Content-Range": rng.choice(("bytes 0-0/1", "x", "bytes */*"))})
                or True
            ),
            lambda h: h.give(0, data, **{"Content-Encoding": "gzip"}) or True,
            lambda h: h.connection.close() or True,
            lambda h: h.wfile.write(other[:cut]) > -1,  # no head at all
        ]
    )


def _start(handler: Handler) -> int:
    wants = handler.headers.get("Range")
    return int(wants[6:-1]) if wants else 0


def _downloaded(
    rng: random.Random, web: tuple[str, type[Handler]], folder: Path
) -> tuple[str, str]:
    url, handler = web
    handler.data = data = rng.randbytes(rng.choice((1, 1000, 200_000)))
    shutil.rmtree(folder, ignore_errors=True)
    source = RemoteFile(f"{url}/corpus.bin", sha256=hashlib.sha256(data).hexdigest())
    target = folder / "corpus.bin"
    refused = 0
    for attempt in range(3):
        scripts = (
            [_misbehaviour(rng, data) for _ in range(rng.randint(1, 3))] if attempt < 2 else []
        )
        handler.script = lambda h, left=scripts: left.pop()(h) if left else False
        try:
            download(source, target, quiet=True)
        except DupmaeError as e:
            refused += 1
            if attempt == 2 or "\n" in str(e) or (target.exists() and target.read_bytes() != data):
                return "wrong", f"attempt {attempt}: {e}"
        else:
            if target.read_bytes() != data:
                return "wrong", "other bytes"
    left = [path.name for path in folder.iterdir() if path.name.endswith((".part", ".tmp"))]
    return ("wrong", f"left behind: {left}") if left else ("refused" if refused else "right", "")


# --- archives ----------------------------------------------------------------------------------------------------

_NAMES = ("a", "b", "set/a", "set/b", "./a", "set/./c", "set//d", "é", "x" * 200, "a/b")
_EVIL = (
    "../x",
    "/x",
    "C:\\x",
    "..\\x",
    "a/../../x",
    "//h/x",
    "",
    ".",
    "..",
    "a\0b",
    "con\n",
    "set/../../y",
    "\\x",
)
_TYPES = (
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.DIRTYPE,
    tarfile.CONTTYPE,
    b"Z",
)


def _unpacked(rng: random.Random, folder: Path) -> tuple[str, str]:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    made, members = _archive(rng)
    archive = folder / "in" / rng.choice(("a.zip", "a.tar", "a.tgz", "a.bin"))
    archive.write_bytes(made)
    plain = _plain(made) if rng.random() < 0.5 else None
    if plain is None:
        at = rng.randrange(len(made))
        archive.write_bytes(
            rng.choice([made[:at], made[:at] + rng.randbytes(rng.randint(1, 8)) + made[at + 1 :]])
        )
    out = folder / "in" / "out"
    try:
        unpack(archive, out, quiet=True)
    except DupmaeError as e:
        if out.exists() or "\n" in str(e):
            return "wrong", f"{e}: and a folder was made" if out.exists() else str(e)
        verdict = "refused"
    else:
        verdict = "right"
        found = {
            path.relative_to(out).as_posix(): path.read_bytes()
            for path in out.rglob("*")
            if path.is_file()
        }
        if any(
            path.is_symlink() or not (path.is_file() or path.is_dir()) for path in out.rglob("*")
        ):
            return "wrong", "something else than files"
        if plain is not None and found != plain:
            return "wrong", f"{sorted(found)} of {sorted(members)}"
    beside = sorted(path.name for path in folder.rglob("*") if out not in (path, *path.parents))
    return (
        (verdict, "") if set(beside) <= {"in", archive.name} else ("wrong", f"beside it: {beside}")
    )


def _archive(rng: random.Random) -> tuple[bytes, list[str]]:
    """An archive of a few members, and their names."""
    evil = rng.random() < 0.5
    names = [
        rng.choice(_EVIL if evil and rng.random() < 0.4 else _NAMES)
        for _ in range(rng.randint(0, 5))
    ]
    file = io.BytesIO()
    is_zip = rng.random() < 0.4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        if is_zip:
            with zipfile.ZipFile(
                file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            ) as z:
                for name in names:
                    info = zipfile.ZipInfo(name.replace("\0", "0"))
                    mode = (
                        rng.choice((0o100644, 0o120777, 0o020644, 0o010644)) if evil else 0o100644
                    )
                    info.create_system = 3
                    info.external_attr = mode << 16
                    z.writestr(info, rng.randbytes(rng.randint(0, 2000)))
        else:
            with tarfile.open(
                fileobj=file, mode=rng.choice(("w", "w:gz")), format=rng.randrange(3)
            ) as t:
                for name in names:
                    member = tarfile.TarInfo(name.replace("\0", "0") or "a")
                    data = rng.randbytes(rng.randint(0, 2000))
                    if evil and rng.random() < 0.3:
                        member.type = rng.choice(_TYPES)
                        member.linkname = rng.choice(_EVIL).replace("\0", "")
                        data = b""
                    member.size = len(data)
                    t.addfile(member, io.BytesIO(data))
    return file.getvalue(), names


def _plain(archive: bytes) -> dict[str, bytes]:
    """The files of an undamaged archive by the standard library, under their normal names."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(tarfile.TarError):
        with tarfile.open(fileobj=io.BytesIO(archive)) as t:
            for member in t.getmembers():
                if member.isreg() and (file := t.extractfile(member)):
                    found[os.path.normpath(member.name)] = file.read()
        return found
    with zipfile.ZipFile(io.BytesIO(archive)) as z:
        return {os.path.normpath(info.filename): z.read(info) for info in z.infolist()}


# --- stores ------------------------------------------------------------------------------------------------------


class LyingStore(MemoryFileSystem):
    """Objects in memory. With :attr:`rng`, some reads and writes are not what they should be."""

    rng: random.Random | None = None
    rate = 0.1
    older: ClassVar[dict[str, bytes]] = {}

    def _lies(self) -> bool:
        return self.rng is not None and self.rng.random() < self.rate

    def pipe_file(self, path: str, value: bytes, **settings: Any) -> None:
        """Write; or lose it, or a part."""
        with contextlib.suppress(FileNotFoundError):
            self.older[path] = super().cat_file(path)
        if self._lies() and self.rng is not None:
            if self.rng.random() < 0.5:
                return
            value = value[: self.rng.randrange(len(value) + 1)]
        super().pipe_file(path, value, **settings)

    def _open(self, path: str, mode: str = "rb", **settings: Any) -> Any:
        """Open for writing as it is; for reading, perhaps another content."""
        if mode != "rb" or self.rng is None or not self._lies():
            return super()._open(path, mode, **settings)
        return io.BytesIO(self._told(path))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **settings: Any
    ) -> bytes:
        """Read; or an older content, a part, other bytes, or nothing."""
        data = super().cat_file(path) if self.rng is None or not self._lies() else self._told(path)
        return data[start:end]

    def info(self, path: str, **settings: Any) -> Any:
        """What is known; or another size, or nothing."""
        found = super().info(path, **settings)
        if self._lies() and self.rng is not None:
            if self.rng.random() < 0.3:
                raise FileNotFoundError(path)
            return {**found, "size": self.rng.choice((0, 1, (found.get("size") or 0) + 1))}
        return found

    def _told(self, path: str) -> bytes:
        assert self.rng is not None
        data = super().cat_file(path)
        what = self.rng.randrange(4)
        if what == 0:
            raise FileNotFoundError(path)
        if what == 1:
            return self.older.get(path, data)
        at = self.rng.randrange(len(data) + 1)
        return data[:at] if what == 2 else data[:at] + self.rng.randbytes(1) + data[at + 1 :]


class Stores:
    """Two generations of an index, and what each trial does with them."""

    def __init__(self, folder: Path) -> None:
        self.copy = folder / "copy"
        folder.mkdir()
        faults.write_inputs(folder)
        self.generations = [folder / "whole", folder / "segmented"]
        self.wanted = [_files(path) for path in self.generations]

    def tried(self, rng: random.Random) -> tuple[str, str]:
        """Push and pull with lies, then without."""
        remote = Remote(f"memory://store/{rng.randrange(10**9)}/I")
        store: Any = LyingStore
        shutil.rmtree(self.copy, ignore_errors=True)
        store.older = {}
        refused = 0
        for generation in rng.choices((0, 1), k=3):
            store.rng = rng
            store.rate = rng.choice((0.02, 0.1, 0.5))
            for work in (
                lambda n=generation: push(self.generations[n], remote, overwrite=True, quiet=True),
                self._pull(remote),
            ):
                try:
                    work()
                except DupmaeError as e:
                    refused += 1
                    if "\n" in str(e):
                        return "wrong", str(e)
            store.rng = None
            if self.copy.exists() and _files(self.copy) not in self.wanted:
                return "wrong", "a copy that is neither index"
        store.rng = None
        push(self.generations[1], remote, overwrite=True, quiet=True)
        self._pull(remote)()
        if _files(self.copy) != self.wanted[1]:
            return "wrong", "an honest store, and another index"
        return "refused" if refused else "right", ""

    def _pull(self, remote: Remote) -> Callable[[], object]:
        return lambda: pull(remote, self.copy, quiet=True)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
