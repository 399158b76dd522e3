"""Models of the Hugging Face cache by name, and ``models get`` against a stand-in of the hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models import load_encoder
from dupmae_ir.models.names import cached_folder, model_folder

NAME = "someone/tiny"
COMMIT = "a" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, for this process too."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


def put(cache: Path, model: Path) -> Path:
    """Place a model in the cache as huggingface_hub does."""
    home = cache / "models--someone--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    snapshot = home / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for file in model.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    return snapshot


def test_a_cached_model_is_found_by_name(cache, tiny_folder):
    snapshot = put(cache, tiny_folder)
    assert model_folder(NAME) == snapshot
    assert load_encoder(NAME).digest == load_encoder(tiny_folder).digest


def test_a_folder_takes_precedence_and_a_missing_model_is_not_fetched(
    cache, tiny_folder, tmp_path, monkeypatch
):
    with pytest.raises(
        CheckpointError, match=r"no such model folder; .* but by dupmae-ir models get"
    ):
        load_encoder(NAME)
    assert cached_folder("not a name!") is None
    put(cache, tiny_folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert model_folder(NAME) == Path(NAME)


class Hub(BaseHTTPRequestHandler):
    """What ``snapshot_download`` asks for."""

    files: dict[str, bytes]

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/models/{NAME}/revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            self._send(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode())
        elif self.path.startswith(f"/api/models/{NAME}/tree/"):
            tree = [
                {"type": "file", "path": n, "size": len(b), "oid": _oid(b)}
                for n, b in self.files.items()
            ]
            self._send(json.dumps(tree).encode())
        elif self.path.startswith(f"/{NAME}/resolve/"):
            name = self.path.rpartition("/")[2]
            self._send(
                self.files[name], {"ETag": f'"{_oid(self.files[name])}"', "X-Repo-Commit": COMMIT}
            )
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def _send(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(tiny_folder: Path) -> Iterator[str]:
    """Address of a hub with one model."""
    files = {path.name: path.read_bytes() for path in tiny_folder.iterdir()} | {
        "modeling.py": b"raise SystemExit"
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneModel", (Hub,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def command(*words: str, hub: str, cache: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "HF_ENDPOINT": hub,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    env |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    arguments = [sys.executable, "-m", "dupmae_ir", "models", *words]
    return subprocess.run(arguments, capture_output=True, text=True, env=env, check=False)


def test_get_fetches_a_model_without_its_code(hub, cache, tiny_folder):
    done = command("get", NAME, "--json", hub=hub, cache=cache)
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["folder"])
    assert folder == model_folder(NAME)
    assert not (folder / "modeling.py").exists()
    assert load_encoder(NAME).digest == load_encoder(tiny_folder).digest


def test_mistakes_are_one_line(hub, cache):
    missing = command("get", "someone/else", hub=hub, cache=cache)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "the hub has no such model" in missing.stderr
    offline = command("get", NAME, hub="http://127.0.0.1:9", cache=cache)
    assert (offline.returncode, offline.stderr.count("\n")) == (1, 1)
    assert "check the network" in offline.stderr
