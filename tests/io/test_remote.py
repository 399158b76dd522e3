"""URLs, transfers that are watched, and what becomes of the errors of libraries."""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dupmae_ir.errors import EnvironmentProblem, InputError, UsageError
from dupmae_ir.io import transfer
from dupmae_ir.io.collections import LinesCollection, file_digests
from dupmae_ir.io.transfer import Remote, is_url, watched, without_credentials

fsspec = pytest.importorskip("fsspec", reason="needs the extra: pip install 'dupmae-ir[s3]'")


@pytest.fixture
def store() -> Iterator[Remote]:
    """A folder in memory."""
    yield Remote("memory://box/")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b/c", True),
        ("HTTPS://h", True),
        ("s3:/b/c", False),
        ("C://x", False),
        ("irds:a/b", False),
        ("a/b", False),
    ],
)
def test_what_is_a_url(text: str, expected: bool) -> None:
    assert is_url(text) == expected
    assert not is_url(Path(text))


def test_a_stalled_transfer_ends_and_a_slow_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUPMAE_IR_PATIENCE", "0.2")
    moved: list[int] = []

    def slow(report: transfer.Moved) -> str:
        for _ in range(8):
            time.sleep(0.05)
            report(3)
        return "done"

    assert watched("s3://b/slow", slow, moved.append) == "done"
    assert moved == [3] * 8
    release = threading.Event()
    ended = threading.Event()

    def stalled(report: transfer.Moved) -> None:
        try:
            release.wait(30)
            report(1)
        except TimeoutError:
            ended.set()

    with pytest.raises(
        EnvironmentProblem,
        match=r"^s3://b/x: no byte for 0\.2 s \(DUPMAE_IR_PATIENCE\); check the net",
    ):
        watched("s3://b/x", stalled)
    release.set()
    assert ended.wait(30), "a thread that was given up goes on"


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_patience_is_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DUPMAE_IR_PATIENCE", text)
    with pytest.raises(
        UsageError, match=f"DUPMAE_IR_PATIENCE={text}: expected a number of seconds"
    ):
        transfer.patience()


def test_errors_of_libraries_are_one_line_without_credentials() -> None:
    def fail(error: BaseException) -> None:
        def job(_: transfer.Moved) -> None:
            raise error

        watched("s3://b/x", job)

    with pytest.raises(EnvironmentProblem) as found:
        fail(RuntimeError("cannot reach https://me:word@host/x\nat all"))
    assert str(found.value) == "s3://b/x: cannot reach https://host/x at all"
    with pytest.raises(
        EnvironmentProblem, match="Forbidden; check the credentials in the environment"
    ):
        fail(PermissionError("Forbidden"))
    with pytest.raises(OSError, match="full"):
        fail(OSError(errno.ENOSPC, "full"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert without_credentials("a s3://u:p@b/c and s3://d/e@f") == "a s3://b/c and s3://d/e@f"


@pytest.mark.parametrize(
    "url",
    [
        "s3://u:p@b/x",
        "https://h/x?X-Amz-Signature=1",
        "https://h/x?access_token=1",
        "memory://u:p@b/x",
    ],
)
def test_credentials_in_a_url_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="must not contain credentials") as found:
        Remote(url)
    assert "u:p" not in str(found.value)


def test_a_file_is_sent_and_fetched_in_pieces(
    store: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_BLOCK", 1000)
    source = tmp_path / "source"
    target = tmp_path / "target"
    contents = bytes(range(256)) * 41
    source.write_bytes(contents)
    digest = hashlib.sha256(contents).hexdigest()
    moved: list[int] = []
    file = store / "folder" / "file"
    assert file.size() is None
    assert file.read() is None
    assert file.send(source, moved.append) == digest
    assert moved == [1000] * 10 + [496]
    assert (file.size(), file.read()) == (len(contents), contents)
    for there in (0, 1, 5000, len(contents)):
        target.write_bytes(contents[:there])
        assert file.fetch(target) == digest
        assert target.read_bytes() == contents
    file.remove()
    file.remove()
    assert file.size() is None
    with pytest.raises(FileNotFoundError):
        file.fetch(target)


def test_collections_behind_urls(store: Remote, tmp_path: Path) -> None:
    lines = [f'{{"_id": "d{n}", "text": "words {n}"}}\n' for n in range(6)]
    (store / "c" / "p10.jsonl").write("".join(lines[4:]).encode())
    (store / "c" / "p9.jsonl").write("".join(lines[:4]).encode())
    (store / "c" / "p9.jsonl.meta.json").write(b"{}")
    found = LinesCollection("memory://box/c")
    assert [document.docid for document in found] == [f"d{n}" for n in range(6)]
    assert [one.path for one in found.inputs] == [
        "memory://box/c/p9.jsonl",
        "memory://box/c/p10.jsonl",
    ]
    assert found.bytes_read == found.total_bytes == sum(map(len, lines))
    assert found.digests()["corpus"] == found.read_digests()["corpus"]
    assert file_digests("memory://box/c") == [one.sha256 for one in found.inputs]
    (store / "c" / "p9.jsonl").write(b'{"_id": "d0"}\n')
    with pytest.raises(InputError, match=r"^memory://box/c/p9\.jsonl:1: no text: expected"):
        LinesCollection("memory://box/c/p9.jsonl").check()
    (store / "d" / "a.txt").write(b"x")
    with pytest.raises(InputError, match=r"^memory://box/d: no collection in this folder"):
        LinesCollection("memory://box/d")
    with pytest.raises(InputError, match=r"^memory://box/e: no such file or folder"):
        LinesCollection("memory://box/e")


def test_a_scheme_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^nope://a: Protocol not known: nope$"):
        Remote("nope://a")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "s3fs" else name)
    with pytest.raises(
        EnvironmentProblem, match=r"^s3:// needs s3fs: pip install 'dupmae-ir\[s3\]'$"
    ):
        Remote("s3://b/x")
