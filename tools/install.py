"""Install packages into this environment with uv, under pip's settings; with pip where uv does not succeed.

    python tools/install.py --constraint constraints.txt --editable '.[dev]'

uv takes a tenth of pip's processor time: it resolves, downloads and unpacks in parallel and compiles nothing in
advance. It does not read pip's configuration, so mirrors, local wheels, constraints and certificates are handed over.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}
"""pip's setting -> uv's variable, and what separates its values."""
SECTIONS = ("global", "install", ":env:")
"""Sections of pip's settings; a later one has precedence."""


def pip_settings(printed: str) -> dict[str, list[str]]:
    """Setting -> values, from the output of ``pip config list``."""
    rows = re.findall(r"^(.+?)\.([\w-]+)='(.*)'$", printed, re.M)
    settings = {}
    for section in SECTIONS:
        for row_section, name, value in rows:
            if row_section == section:
                settings[name.removeprefix("default-")] = value.replace("\\n", " ").split()
    return settings


def uv_variables(settings: dict[str, list[str]]) -> dict[str, str]:
    """The environment in which uv installs what pip would: the best version of all indexes, from the same places."""
    joined = {
        var: sep.join(settings[name]) for name, (var, sep) in VARIABLES.items() if name in settings
    }
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1", **joined}


def main(words: list[str]) -> int:
    """Install; the exit status of the installer."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    printed = subprocess.run(
        [*pip, "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = pip_settings(printed)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    for path in settings.get("constraint", ()):
        uv += ["--constraint", path]
    env = {**uv_variables(settings), **os.environ}
    if not subprocess.run(
        [*pip, "install", "-qq", "--constraint", str(PINS), "uv"], check=False
    ).returncode:
        if not subprocess.run([*uv, *words], env=env, check=False).returncode:
            return 0
        print("uv did not succeed; installing with pip", file=sys.stderr)
    return subprocess.run([*pip, "install", "-qq", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
