"""Downloads against a real server that misbehaves on request, and archives that try to get out."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from dupmae_ir.errors import EnvironmentProblem, InputError, OutputError, UsageError
from dupmae_ir.io import archives, transfer
from dupmae_ir.io.archives import unpack
from dupmae_ir.io.transfer import RemoteFile, cache_folder, download

ROOT = Path(__file__).resolve().parents[2]
DATA = random.Random(0).randbytes(1_500_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA).hexdigest()


@dataclass
class Server:
    """What the server holds, how it misbehaves, and what it was asked."""

    url: str = ""
    data: bytes = DATA
    etag: str | None = '"1"'
    modified: str | None = None
    ranges: bool = True
    obey_if_range: bool = True
    length: bool = True
    chunked: bool = False
    cuts: list[int] = field(default_factory=list)  # bytes after which each next answer breaks off
    statuses: list[int] = field(default_factory=list)  # answered before anything else
    redirect: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    slow: float = 0.0  # seconds between blocks of 50,000 bytes
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range)

    @property
    def source(self) -> RemoteFile:
        return RemoteFile(f"{self.url}/sets/corpus.bin", sha256=SHA256)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        script = self.script
        wants = self.headers.get("Range")
        script.asked.append((self.path, wants))
        self.close_connection = True
        if script.statuses:
            self.answer(script.statuses.pop(0), {"Content-Length": "0"})
        elif script.redirect:
            self.answer(302, {"Location": script.redirect, "Content-Length": "0"})
        else:
            self.give(int(wants[6:-1]) if wants and script.ranges and self.same_version() else 0)

    def same_version(self) -> bool:
        version = self.headers.get("If-Range")
        return (
            version in (None, self.script.etag, self.script.modified)
            or not self.script.obey_if_range
        )

    def give(self, start: int) -> None:
        script = self.script
        total = len(self.script.data)
        headers = {"ETag": script.etag, "Last-Modified": script.modified, **script.headers}
        if start and start >= total:
            return self.answer(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
        if start:
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        if script.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif script.length:
            headers["Content-Length"] = str(total - start)
        self.answer(206 if start else 200, headers)
        return self.body(
            script.data[start:][: script.cuts.pop(0) if script.cuts else None],
            len(script.data) - start,
        )

    def body(self, data: bytes, whole: int) -> None:
        for at in range(0, len(data), 50_000):
            block = data[at : at + 50_000]
            time.sleep(self.script.slow)
            try:
                self.wfile.write(
                    b"%x\r\n%s\r\n" % (len(block), block) if self.script.chunked else block
                )
                self.wfile.flush()
            except OSError:
                return
        if self.script.chunked and len(data) == whole:
            self.wfile.write(b"0\r\n\r\n")

    def answer(self, status: int, headers: dict[str, str | None]) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    """Hundreds of archives are unpacked here; the processes below do wait."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    for name in ("DUPMAE_IR_OFFLINE", "HF_HUB_OFFLINE", "DUPMAE_IR_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(transfer, "WAITS", (0.0, 0.0, 0.0))
    script = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("H", (Handler,), {"script": script})) as real:
        real.daemon_threads = True
        thread = threading.Thread(target=real.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.url = f"http://127.0.0.1:{real.server_port}"
        yield script
        real.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "cache" / "corpus.bin"


def interrupted(server: Server, source: RemoteFile, target: Path, at: int = 600_000) -> None:
    """Leave the beginning of the file as an interrupted call does."""
    server.cuts = [at]
    with pytest.MonkeyPatch.context() as m:
        m.setattr(transfer, "WAITS", ())
        with pytest.raises(EnvironmentProblem, match="broke"):
            download(source, target)
    assert (part := part_of(target)).exists()
    assert part.read_bytes() == server.data[: part.stat().st_size] != b""
    server.asked.clear()


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- fetching ----------------------------------------------------------------------------------------------------


def test_a_file_arrives_and_is_not_fetched_again(server, target, capsys):
    assert download(server.source, target) == target
    assert target.read_bytes() == DATA
    assert names(target.parent) == [".corpus.bin.json", "corpus.bin"]
    assert "downloading" in capsys.readouterr().err
    download(server.source, target)
    assert len(server.asked) == 1
    assert capsys.readouterr() == ("", "")


def test_quiet_is_silent(server, target, capsys):
    download(RemoteFile(server.source.url), target, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_cut_connection_is_resumed_where_it_was_cut(server, target, capsys):
    server.cuts = [700_000, 300_000]
    download(server.source, target)
    assert target.read_bytes() == DATA
    assert [r for _, r in server.asked] == [None, "bytes=700000-", "bytes=1000000-"]
    assert "the connection broke after 700000 bytes; trying again in 0 s" in capsys.readouterr().err


def test_many_cuts_are_no_reason_to_give_up_while_it_gets_on(server, target):
    server.cuts = [100_000] * 14
    download(server.source, target)
    assert target.read_bytes() == DATA


def test_the_same_call_resumes_after_giving_up(server, target):
    interrupted(server, server.source, target)
    download(server.source, target)
    assert target.read_bytes() == DATA
    assert server.asked == [("/sets/corpus.bin", "bytes=600000-")]


@pytest.mark.parametrize("obedient", [True, False])
@pytest.mark.parametrize("known", [SHA256, None])
def test_a_file_that_changed_on_the_server_is_fetched_anew(server, target, obedient, known):
    """A server that obeys If-Range sends all of it; from one that does not, the new ETag shows it."""
    source = replace(server.source, sha256=known)
    server.data = DATA[::-1]
    server.obey_if_range = obedient
    interrupted(server, source, target)
    server.data = DATA
    server.etag = '"2"'
    download(source, target)
    assert target.read_bytes() == DATA
    assert len(server.asked) == (1 if obedient else 2)


def test_a_date_or_a_weak_etag_marks_a_version_too(server, target):
    server.etag = 'W/"1"'
    server.modified = "Sat, 21 Nov 2026 04:18:35 GMT"
    server.data = DATA[::-1]
    interrupted(server, server.source, target)
    server.data = DATA
    server.modified = "Sun, 22 Nov 2026 04:18:35 GMT"
    download(server.source, target)
    server.modified = server.etag = None
    assert target.read_bytes() == DATA


def test_without_a_mark_only_a_checksum_allows_to_resume(server, target, tmp_path):
    server.etag = None
    for source, resumed in (
        (server.source, "bytes=600000-"),
        (RemoteFile(server.source.url), None),
    ):
        interrupted(server, source, target)
        download(source, target)
        assert server.asked == [("/sets/corpus.bin", resumed)]
        assert target.read_bytes() == DATA
        target.unlink()


def test_a_server_without_ranges_starts_over(server, target):
    server.ranges = False
    server.cuts = [900_000]
    download(server.source, target)
    assert target.read_bytes() == DATA
    assert [r for _, r in server.asked] == [None, "bytes=900000-"]


def test_a_whole_part_needs_no_network(server, target, monkeypatch):
    interrupted(server, server.source, target)
    part_of(target).write_bytes(DATA)
    monkeypatch.setenv("DUPMAE_IR_OFFLINE", "1")
    download(server.source, target)
    assert target.read_bytes() == DATA
    assert server.asked == []


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_416_means_whole_or_start_over(server, target, extra):
    server.chunked = True  # so no length is known that would say it without asking
    interrupted(server, server.source, target)
    part_of(target).write_bytes(DATA + extra)
    download(server.source, target)
    assert target.read_bytes() == DATA
    assert [r for _, r in server.asked] == [f"bytes={len(DATA + extra)}-"] + [None] * bool(extra)


def test_busy_servers_are_asked_again(server, target):
    server.statuses = [503, 429, 500]
    download(server.source, target)
    assert len(server.asked) == 4


def test_the_waits_grow_and_end(server, target, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(transfer, "WAITS", (0.5, 1.0))
    monkeypatch.setattr(transfer.time, "sleep", waited.append)
    server.statuses = [503] * 9
    with pytest.raises(EnvironmentProblem, match="returned 503 Service Unavailable; put corpus"):
        download(server.source, target)
    assert waited == [0.5, 1.0]


@pytest.mark.parametrize("chunked", [True, False])
def test_a_truncated_body_is_never_accepted(server, target, chunked):
    """Also without a checksum: the length, or the end of the chunks, was not reached."""
    server.chunked = chunked
    server.cuts = [len(DATA) - 1, 0, 0, 0]
    with pytest.raises(EnvironmentProblem, match="broke"):
        download(RemoteFile(server.source.url), target)
    assert not target.exists()


def test_a_body_without_an_end_needs_something_to_verify_it(server, target):
    server.length = False
    with pytest.raises(EnvironmentProblem, match="no length and no checksum"):
        download(RemoteFile(server.source.url), target)
    download(server.source, target)
    target.unlink()
    server.cuts = [1_000_000]
    download(RemoteFile(server.source.url, size=len(DATA)), target)
    assert target.read_bytes() == DATA


def test_an_empty_file_is_a_file(server, target):
    server.data = b""
    download(
        RemoteFile(f"{server.url}/empty", sha256=hashlib.sha256(b"").hexdigest(), size=0), target
    )
    assert target.read_bytes() == b""


# --- verifying ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_wrong_checksum_names_both_and_the_next_try_starts_clean(server, target, kind):
    wanted = "0" * len({"md5": MD5, "sha256": SHA256}[kind])
    found = {"md5": MD5, "sha256": SHA256}[kind]
    with pytest.raises(EnvironmentProblem) as e:
        download(RemoteFile(server.source.url, **{kind: wanted}), target)
    assert f"corpus.bin from {server.source.url}: {kind} {found}, expected {wanted}" in str(e.value)
    assert e.value.exit_status == 1
    assert names(target.parent) == []
    download(RemoteFile(server.source.url, **{kind: found.upper()}), target)
    assert server.asked[-1] == ("/sets/corpus.bin", None)


def test_a_wrong_size_is_seen_before_the_body(server, target):
    with pytest.raises(
        EnvironmentProblem, match=f"the server has {len(DATA)} bytes, expected 17; put"
    ):
        download(RemoteFile(server.source.url, size=17), target)
    assert names(target.parent) == []


@pytest.mark.parametrize("wrong", [{"sha256": MD5}, {"size": 3}])
def test_a_file_put_there_by_hand_is_verified_and_never_removed(server, target, wrong):
    target.parent.mkdir()
    target.write_bytes(DATA)
    with pytest.raises(InputError, match=r"expected .*; delete it"):
        download(replace(server.source, **wrong), target)
    assert target.exists()
    download(server.source, target)
    assert server.asked == []


def test_digests_are_taken_once_and_again_after_a_change(server, target, monkeypatch):
    read: list[Path] = []
    real = transfer._digests
    monkeypatch.setattr(
        transfer, "_digests", lambda file, *rest: read.append(file) or real(file, *rest)
    )
    download(server.source, target)
    download(server.source, target)
    assert read == [part_of(target)]
    download(RemoteFile(server.source.url, md5=MD5), target)  # another kind was not taken yet
    assert read == [part_of(target), target]
    target.write_bytes(DATA[:-1] + b"?")
    os.utime(target, ns=(1, 1))
    with pytest.raises(InputError, match="sha256"):
        download(server.source, target)
    (target.parent / ".corpus.bin.json").write_text("[broken")
    with pytest.raises(InputError, match="sha256"):
        download(server.source, target)


def test_what_nothing_verified_says_so_with_its_digest(server, target, capsys):
    download(RemoteFile(server.source.url), target)
    assert f"not verified, because no checksum is known; sha256 {SHA256}" in capsys.readouterr().err
    assert SHA256 in (target.parent / ".corpus.bin.json").read_text()


# --- what cannot be had ------------------------------------------------------------------------------------------


def by_hand(source: RemoteFile, target: Path) -> str:
    return f"put corpus.bin (from {source.url}) at {target} and run the same command again"


def test_a_missing_file_says_what_to_put_where(server, target):
    server.statuses = [404]
    with pytest.raises(EnvironmentProblem) as e:
        download(server.source, target)
    assert (
        str(e.value)
        == f"{server.source.url}: the server returned 404 Not Found; {by_hand(server.source, target)}"
    )
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("host", "problem"),
    [("127.0.0.1:9", "[Cc]onnection refused"), ("nowhere.invalid", "[Nn]ame|not known|resolution")],
)
def test_nobody_there_says_so_at_once(server, target, monkeypatch, host, problem):
    monkeypatch.setattr(transfer.time, "sleep", lambda _: pytest.fail("waited for nobody"))
    source = RemoteFile(f"http://{host}/sets/corpus.bin")
    try:
        raise FileNotFoundError("what the caller was handling")
    except FileNotFoundError:
        with pytest.raises(EnvironmentProblem, match=problem) as e:
            download(source, target)
    assert str(e.value).endswith(by_hand(source, target))
    assert "\n" not in str(e.value)
    assert "caller" not in str(e.value)


@pytest.mark.parametrize("variable", ["DUPMAE_IR_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_means_offline(server, target, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(EnvironmentProblem) as e:
        download(server.source, target)
    assert (
        str(e.value)
        == f"corpus.bin is missing and {variable} is set; {by_hand(server.source, target)}"
    )
    assert server.asked == []
    target.write_bytes(DATA)
    download(server.source, target)
    assert server.asked == []


def test_a_mirror_holds_hosts_as_folders(server, target, monkeypatch):
    download(
        RemoteFile("https://data.example:8443/a/b.zip?v=1", sha256=SHA256),
        target,
        mirror=f"{server.url}/m/",
    )
    assert server.asked == [("/m/data.example:8443/a/b.zip?v=1", None)]
    target.unlink()
    monkeypatch.setenv("DUPMAE_IR_MIRROR", server.url)
    download(RemoteFile("http://user:secret@data.example/a/b.zip", sha256=SHA256), target)
    assert server.asked[1:] == [("/data.example/a/b.zip", None)]


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//[", "data:,x"])
def test_redirects_out_of_the_web_are_refused(server, target, to):
    server.redirect = to
    with pytest.raises(EnvironmentProblem, match="put corpus"):
        download(server.source, target)
    assert not target.exists()


def test_https_stays_https(target):
    download = transfer._Transfer(
        RemoteFile("https://h/corpus.bin"), "https://h/corpus.bin", target, quiet=True
    )
    answer = SimpleNamespace(
        is_redirect=True, url="https://h/corpus.bin", headers={"location": "//other/x"}
    )
    download._check_redirect(answer)
    answer.headers["location"] = "http://h/corpus.bin"
    with pytest.raises(EnvironmentProblem, match="redirects to http://h/corpus"):
        download._check_redirect(answer)


def test_redirects_within_are_followed_but_not_for_ever(server, target):
    server.redirect = "/sets/corpus.bin"
    with pytest.raises(EnvironmentProblem, match="30 redirects"):
        download(server.source, target)


@pytest.mark.parametrize(
    ("url", "mirror"),
    [
        ("file:///etc/passwd", None),
        ("ftp://host/x", None),
        ("x.zip", None),
        ("http:///x", None),
        ("http://[/x", None),
        ("https://host/x", "file:///tmp"),
    ],
)
def test_only_the_web(server, target, url, mirror):
    with pytest.raises(UsageError, match="http"):
        download(RemoteFile(url), target, mirror=mirror)


def test_encoded_on_the_way_is_refused_unless_the_file_is_that(server, target):
    server.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(EnvironmentProblem, match="sent as gzip"):
        download(server.source, target)
    download(RemoteFile(f"{server.url}/corpus.tsv.gz", sha256=SHA256), target)
    assert target.read_bytes() == DATA


def test_a_full_disk_is_one_line(server, target, monkeypatch):
    target.parent.mkdir()
    free = archives.shutil.disk_usage(target.parent)
    with monkeypatch.context() as m:
        m.setattr(archives.shutil, "disk_usage", lambda _: free._replace(free=1000))
        with pytest.raises(
            OutputError, match=r"1\.5 MB to download, but the disk has only 0\.0 MB"
        ):
            download(server.source, target)
    part_of(target).unlink()
    part_of(target).symlink_to("/dev/full")
    with pytest.raises(OutputError, match="the disk is full; nothing is lost"):
        download(server.source, target)
    assert not target.exists()


def test_a_folder_is_no_target(server, tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        download(server.source, tmp_path)


def test_names_and_places(monkeypatch, tmp_path):
    assert RemoteFile("https://h/a/b%20c.zip?x=/y#z").name == "b c.zip"
    assert RemoteFile("https://h/a%2F..%2Fb").name == "b"
    for url in ("https://h", "https://h/", "https://h/..", "https://h/a/%2e%2e"):
        with pytest.raises(UsageError, match="names no file"):
            _ = RemoteFile(url).name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DUPMAE_IR_CACHE", raising=False)
    assert cache_folder() == tmp_path / "dupmae_ir"
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path / "c"))
    assert cache_folder() == tmp_path / "c"
    monkeypatch.delenv("DUPMAE_IR_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "dupmae_ir"


# --- several processes -------------------------------------------------------------------------------------------

_DOWNLOAD = """
import sys
from pathlib import Path
from dupmae_ir.io.transfer import RemoteFile, download
download(RemoteFile(sys.argv[1], sha256=sys.argv[2]), Path(sys.argv[3]))
"""


def process(source: RemoteFile, target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _DOWNLOAD, source.url, str(source.sha256), str(target)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_two_processes_share_one_download(server, target):
    server.slow = 0.05
    first = process(server.source, target)
    wait_for(lambda: server.asked)
    second = process(server.source, target)
    outputs = [p.communicate(timeout=60)[1] for p in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert f"process {first.pid} is downloading corpus.bin" in outputs[1]
    assert len(server.asked) == 1
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_half_way_is_resumed(server, target, how):
    server.slow = 0.05
    part = part_of(target)
    victim = process(server.source, target)
    wait_for(lambda: part.exists() and part.stat().st_size >= 300_000)
    victim.send_signal(how)
    victim.communicate(timeout=30)
    assert victim.returncode != 0
    have = part.stat().st_size
    assert 300_000 <= have < len(DATA)
    assert not target.exists()
    server.slow = 0
    download(server.source, target)
    assert [r for _, r in server.asked] == [None, f"bytes={have}-"]
    assert target.read_bytes() == DATA
    assert names(target.parent) == [".corpus.bin.json", "corpus.bin"]


# --- unpacking ---------------------------------------------------------------------------------------------------

FILES = {
    "set/corpus.jsonl": b'{"_id": "1"}\n' * 1000,
    "set/qrels/test.tsv": b"a\tb\n" * 128,
    "set/empty": b"",
}


def zipped(path: Path, files: dict[str, bytes] | list[tuple[zipfile.ZipInfo | str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items() if isinstance(files, dict) else files:
            z.writestr(name, data)
    return path


def tarred(
    path: Path, files: dict[str, bytes] | list[tuple[tarfile.TarInfo, bytes]], form: int = 2
) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w", format=form) as t:
        for info, data in (
            [(entry(n), d) for n, d in files.items()] if isinstance(files, dict) else files
        ):
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


MAKERS = [("a.zip", zipped), ("a.tar", tarred), ("a.tar.gz", tarred), ("a.tgz", tarred)]


@pytest.mark.parametrize(("name", "make"), MAKERS)
def test_what_was_packed_comes_out(tmp_path, name, make):
    archive = make(tmp_path / name, FILES)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "older").write_text("x")
    assert unpack(archive, folder, quiet=True) == folder
    assert contents(folder) == FILES
    assert names(tmp_path) == sorted([name, "out"])


@pytest.mark.parametrize(("name", "make"), MAKERS)
def test_only_what_is_wanted(tmp_path, name, make):
    archive = make(tmp_path / name, {f"./{k}": v for k, v in FILES.items()})
    unpack(archive, tmp_path / "out", lambda n: n == "set/corpus.jsonl", quiet=True)
    assert contents(tmp_path / "out") == {"set/corpus.jsonl": FILES["set/corpus.jsonl"]}
    with pytest.raises(InputError, match="holds no file of those wanted"):
        unpack(archive, tmp_path / "out", lambda n: False, quiet=True)
    assert contents(tmp_path / "out") != {}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_folders_and_long_names(tmp_path, form):
    name = "set/" + "long/" * 30 + "name"
    archive = tarred(
        tmp_path / "a.tar", [(entry("./set/", tarfile.DIRTYPE), b""), (entry(name), b"x")], form
    )
    unpack(archive, tmp_path / "out", quiet=True)
    assert contents(tmp_path / "out") == {name: b"x"}


def test_a_gzip_file_becomes_one_file(tmp_path):
    archive = tmp_path / "collection.tsv.gz"
    archive.write_bytes(gzip.compress(DATA[:999]) + gzip.compress(DATA[999:]))
    unpack(archive, tmp_path / "out", quiet=True)
    assert contents(tmp_path / "out") == {"collection.tsv": DATA}


def special(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (mode | 0o644) << 16
    return info


ESCAPES = ["../x", "a/../../x", "/x", "C:\\x", "c:/x", "..\\x", "\\x", "a\\..\\..\\x", "//host/x"]
BAD_ZIPS = [([("ok", b"1"), (name, b"2")], "outside the folder") for name in ESCAPES] + [
    ([(special("l", stat.S_IFLNK), b"/etc/passwd")], "a symbolic link"),
    ([(special("d", stat.S_IFCHR), b"")], "a device"),
    ([(special("p", stat.S_IFIFO), b"")], "a device"),
    ([("a", b"1"), ("./a", b"2")], "in it twice"),
    ([("a", b"1"), ("a/b", b"2")], "in it twice"),
    ([("a/b", b"1"), ("a", b"2")], "in it twice"),
    ([(".", b"1")], "in it twice"),
    ([("a/", b"")], "holds no file"),
    ([], "holds no file"),
]
BAD_TARS = [
    ([(entry("ok"), b"1"), (entry(name), b"2")], "outside the folder") for name in ESCAPES
] + [
    ([(entry("l", tarfile.SYMTYPE, "../../etc/passwd"), b"")], "a symbolic link"),
    ([(entry("l", tarfile.SYMTYPE, "/etc"), b""), (entry("l/passwd"), b"2")], "a symbolic link"),
    ([(entry("a"), b"1"), (entry("l", tarfile.LNKTYPE, "a"), b"")], "a hard link"),
    ([(entry("l", tarfile.LNKTYPE, "/etc/passwd"), b"")], "a hard link"),
    ([(entry("d", tarfile.CHRTYPE), b"")], "a device"),
    ([(entry("d", tarfile.BLKTYPE), b"")], "a device"),
    ([(entry("d", tarfile.FIFOTYPE), b"")], "a device"),
    ([(entry("a"), b"1"), (entry("a"), b"2")], "in it twice"),
    ([(entry("a/", tarfile.DIRTYPE), b"")], "holds no file"),
]
BAD = [("a.zip", zipped, *bad) for bad in BAD_ZIPS]
BAD += [(name, tarred, *bad) for bad in BAD_TARS for name in ("a.tar", "a.tgz")]


@pytest.mark.parametrize(("name", "make", "members", "problem"), BAD)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_would_do_harm_is_refused_and_leaves_no_trace(tmp_path, name, make, members, problem):
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    archive = make(inner / name, members)
    folder = inner / "out"
    folder.mkdir()
    (folder / "older").write_text("x")
    with pytest.raises(InputError, match=problem) as e:
        unpack(archive, folder, quiet=True)
    assert str(e.value).startswith(f"{archive}: ")
    assert contents(tmp_path) == {
        f"deep/er/{name}": archive.read_bytes(),
        "deep/er/out/older": b"x",
    }


def test_an_encrypted_zip_is_refused(tmp_path):
    archive = zipped(tmp_path / "a.zip", {"a": b"x"})
    data = bytearray(archive.read_bytes())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + at] |= 1
    archive.write_bytes(data)
    with pytest.raises(InputError, match="'a' is encrypted"):
        unpack(archive, tmp_path / "out", quiet=True)


def test_an_unread_method_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as z:
        z.writestr("a", b"x")
    with pytest.raises(InputError, match="compressed by method 12"):
        unpack(tmp_path / "a.zip", tmp_path / "out", quiet=True)


@pytest.mark.parametrize("name", ["a.zip", "a.tgz", "a.gz"])
def test_a_bomb_does_not_go_off(tmp_path, monkeypatch, name):
    """100 MB of zeros where 10 MB are free: refused before (or as soon as) 10 MB are written."""
    big = bytes(100_000_000)
    if name == "a.gz":
        (tmp_path / name).write_bytes(gzip.compress(big, 1))
    else:
        (zipped if name == "a.zip" else tarred)(tmp_path / name, {"a": b"x", "zeros": big})
    free = archives.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: free._replace(free=10_000_000))
    written: list[int] = []
    real = archives._pour
    monkeypatch.setattr(
        archives, "_pour", lambda *script: (written.append(n) or n for n in real(*script))
    )
    with pytest.raises(OutputError, match="more than the disk has room for"):
        unpack(tmp_path / name, tmp_path / "out", quiet=True)
    assert sum(written) < 10_000_000
    assert names(tmp_path) == [name]


def test_many_small_members_are_counted_together(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "a.zip", {str(i): bytes(1000) for i in range(20)})
    free = archives.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: free._replace(free=10_000))
    with pytest.raises(OutputError, match="'9' unpacks to more"):
        unpack(archive, tmp_path / "out", quiet=True)


@pytest.mark.parametrize("announced", [b"\x01\0\0\0", b"\xff\xff\0\0"])
def test_a_member_of_another_size_than_announced_is_refused(tmp_path, announced):
    archive = zipped(tmp_path / "a.zip", {"a": bytes(5000)})
    data = archive.read_bytes().replace((5000).to_bytes(4, "little"), announced)
    archive.write_bytes(data)
    with pytest.raises(InputError, match="a damaged archive"):
        unpack(archive, tmp_path / "out", quiet=True)


@pytest.mark.parametrize(("name", "make"), [*MAKERS, ("a.gz", None)])
def test_a_truncated_archive_is_refused_wherever_it_was_cut(tmp_path, name, make):
    archive = tmp_path / name
    if make:
        make(archive, FILES)
    else:
        archive.write_bytes(gzip.compress(DATA[:5000]))
    data = archive.read_bytes()
    end = (
        data.rindex(b"\n") + 1 if name == "a.tar" else len(data)
    )  # a tar ends in zeros that say nothing
    for length in [*range(0, end, max(1, end // 25)), end - 1]:
        archive.write_bytes(data[:length])
        with pytest.raises(InputError, match="delete it and fetch it again") as e:
            unpack(archive, tmp_path / "out", quiet=True)
        assert str(e.value).startswith(f"{archive}: ")
    assert names(tmp_path) == [name]


@pytest.mark.parametrize(("name", "make"), MAKERS)
def test_a_damaged_archive_is_one_line_or_whole(tmp_path, name, make):
    """Any byte changed: refused in one line, or (a date, a mode) harmless. Plain tar has no checksum of contents, and
    the list at the end of a zip has none of its own, so that a file may be lost there but never changed."""
    archive = make(tmp_path / name, FILES)
    data = archive.read_bytes()
    chance = random.Random(1)
    for _ in range(50):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        archive.write_bytes(damaged)
        with suppress(InputError, OutputError):
            unpack(archive, tmp_path / "out", quiet=True)
            found = set(contents(tmp_path / "out").values())
            packed = set(FILES.values())
            assert name == "a.tar" or found == packed or (name == "a.zip" and found < packed)
    assert set(names(tmp_path)) <= {name, "out"}


def test_a_web_page_is_no_archive(tmp_path):
    (tmp_path / "a.zip").write_text("<html>please log in</html>")
    with pytest.raises(
        InputError, match="not a zip, tar or gzip archive; delete it and fetch it again"
    ):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    with pytest.raises(InputError, match="zip: no such file"):
        unpack(tmp_path / "b.zip", tmp_path / "out")
    with pytest.raises(UsageError, match="is a file"):
        unpack(tmp_path / "a.zip", tmp_path / "a.zip")


def test_what_a_killed_call_left_is_cleared_away(tmp_path):
    archive = zipped(tmp_path / "a.zip", FILES)
    (tmp_path / ".out.aside").mkdir()
    (tmp_path / ".out.aside" / "half").write_text("x")
    unpack(archive, tmp_path / "out", quiet=True)
    assert contents(tmp_path / "out") == FILES
    assert names(tmp_path) == ["a.zip", "out"]


def test_an_error_of_the_callers_own_is_not_dressed_up(tmp_path):
    def wanted(_: str) -> bool:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        unpack(zipped(tmp_path / "a.zip", FILES), tmp_path / "out", wanted, quiet=True)
    assert names(tmp_path) == ["a.zip"]
