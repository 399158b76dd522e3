"""Made-up requests over the whole of /openapi.json: no fault of the server, and every answer as it is documented."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("schemathesis", reason="pip install schemathesis")

from support.serving import serving

from dupmae_ir.serve.http_server import make_server
from dupmae_ir.serve.run import listen

pytestmark = [pytest.mark.jvm, pytest.mark.nightly]
SETTINGS = Path(__file__).with_name("schemathesis.toml")


def test_schemathesis_finds_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    with serving(folders["docs"], folders["dense"], port=0) as client:
        listener = listen(client.service.config)
        listener.listen(64)
        server = make_server(client.app, client.service.config, lambda: None)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/openapi.json"
            program = Path(sys.executable).with_name("schemathesis")
            flags = [
                "--config-file",
                SETTINGS,
                "run",
                address,
                "--max-examples",
                "30",
                "--seed",
                "1",
                "--no-color",
            ]
            done = subprocess.run(
                [program, *flags], capture_output=True, text=True, cwd=tmp_path, check=False
            )
        finally:
            server.should_exit = True
            thread.join(30)
    assert done.returncode == 0, "\n".join(line[:300] for line in done.stdout.splitlines()[-150:])
