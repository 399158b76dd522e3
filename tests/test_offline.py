"""No connection is made by importing a module or by printing a help page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dupmae_ir.__main__ import VERBS

ROOT = Path(__file__).parents[1]
FORBIDDEN = """
import sys

def forbid(event, details):
    # urllib3 binds the loopback address once to see whether the machine has IPv6; accelerate imports it where boto3 is.
    if event == "socket.bind" and details[1] == ("::1", 0):
        return
    if event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        raise SystemExit(f"{event} {details!r}")

sys.addaudithook(forbid)
"""
EVERY_MODULE = (
    FORBIDDEN
    + """
import importlib, pkgutil, warnings
import dupmae_ir

warnings.simplefilter("ignore")
names = [m.name for m in pkgutil.walk_packages(dupmae_ir.__path__, "dupmae_ir.")]
assert len(names) > 150, len(names)
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as e:
        # Classes for a framework need the framework, which may be absent.
        if not name.startswith("dupmae_ir.integrations.") or e.name.startswith("dupmae_ir"):
            raise
"""
)
EVERY_HELP = (
    FORBIDDEN
    + """
from dupmae_ir.__main__ import main
for verb in sys.argv[1:]:
    try:
        assert main([verb, "--help"]) == 0
    except SystemExit as e:
        assert not e.code, (verb, e.code)
"""
)


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Without the environment variables that keep libraries from the network."""
    environment = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_hook_sees_a_connection() -> None:
    done = python(FORBIDDEN + "import socket; socket.create_connection(('127.0.0.1', 9), 1)")
    assert done.returncode == 1
    assert "socket." in done.stderr


def test_importing_every_module_makes_no_connection() -> None:
    done = python(EVERY_MODULE)
    assert done.returncode == 0, done.stderr[-2000:]


def test_help_makes_no_connection() -> None:
    done = python(EVERY_HELP, *VERBS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("usage: dupmae-ir") == len(VERBS)
