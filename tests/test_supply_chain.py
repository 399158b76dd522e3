"""Pins with hashes agree with the pins that CI uses, and the audit says what it could not compare."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))

import audit  # noqa: E402
import install  # noqa: E402
import pin_hashes  # noqa: E402


def pins(name: str) -> dict[str, str]:
    """Package -> version; pins for other Pythons are left out."""
    lines = (ROOT / name).read_text().splitlines()
    rows = [
        re.match(r"([A-Za-z0-9_.-]+)==([^ ;]+)(?: *; python_version (\S+) \"3.12\")?", line)
        for line in lines
    ]
    return {re.sub(r"[-_.]+", "-", m[1]).lower(): m[2] for m in rows if m and m[3] != ">="}


def test_hashes_are_of_the_pinned_versions() -> None:
    pinned = pins("constraints.txt")
    hashed = pins("constraints-hashes.txt")
    both = pinned.keys() & hashed.keys()
    assert len(both) > 20
    differ = {name: (pinned[name], hashed[name]) for name in both if pinned[name] != hashed[name]}
    assert differ == {}, "run make hashes"
    text = (ROOT / "constraints-hashes.txt").read_text()
    assert all(
        re.search(r" --hash=sha256:[0-9a-f]{64}$", row)
        for row in text.splitlines()
        if not row.startswith("#")
    )


def test_a_report_becomes_requirements() -> None:
    def item(name: str, version: str, **download: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "version": version}, "download_info": download}

    file = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    rows = [
        item("torch", "2.0+cpu", **file),
        item("A_b.c", "1", **file),
        item("dupmae-ir", "0.1", dir_info={}),
    ]
    places = {"python_version": "3.11", "platform_system": "Linux", "platform_machine": "x86_64"}
    made = pin_hashes.pinned({"install": rows, "environment": places})
    hashed = [row for row in made.splitlines() if not row.startswith("#")]
    assert hashed == [
        f"a-b-c==1 --hash=sha256:{'ab' * 32}",
        f"torch==2.0 --hash=sha256:{'ab' * 32}",
    ]
    with pytest.raises(SystemExit, match="x: pip's report has no sha256"):
        pin_hashes.pinned({"install": [item("x", "1", archive_info={})], "environment": places})


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_installs_only_hashed_files() -> None:
    def commands(*words: str) -> str:
        return subprocess.run(
            ["make", "-n", "VENV=none", "test", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    hashed = commands("HASHES=1")
    assert (
        hashed.count("--require-hashes --only-binary :all: --requirement constraints-hashes.txt")
        == 1
    )
    assert hashed.count("pip --disable-pip-version-check install") == hashed.count("--no-deps") + 1
    assert "--require-hashes" not in commands()
    assert "tools/install.py" in commands()
    assert "tools/install.py" not in hashed


PRINTED = r"""
:env:.default-timeout='180'
:env:.find-links='/wheels'
global.constraint='/etc/pins.txt'
global.extra-index-url='\nhttps://a.example/simple\nhttps://b.example/simple'
global.find-links='/elsewhere'
freeze.timeout='10'
install.no-index='false'
"""


def test_uv_installs_under_the_settings_of_pip() -> None:
    settings = install.pip_settings(PRINTED)
    assert settings["constraint"] == ["/etc/pins.txt"]
    assert install.uv_variables(settings) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_SYSTEM_CERTS": "1",
        "UV_HTTP_TIMEOUT": "180",
        "UV_FIND_LINKS": "/wheels",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_NO_INDEX": "false",
    }


@pytest.mark.parametrize(
    ("failing", "installers"), [((), ["uv"]), (("uv",), ["uv", "pip"]), (("get uv",), ["pip"])]
)
def test_pip_installs_where_uv_does_not(
    failing: tuple[str, ...], installers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def run(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        what = "get uv" if command[-1] == "uv" else command[2]
        if command[-1] == "PACKAGE":
            used.append(what)
        return subprocess.CompletedProcess(command, int(what in failing), "")

    monkeypatch.setattr(install.subprocess, "run", run)
    assert install.main(["PACKAGE"]) == 0
    assert used == installers


FINE = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("rows", "status", "printed", "said"),
    [
        ([FINE], 0, "1 packages compared, 0 advisories\n", ""),
        ([FINE, WEAK], 1, "b 2: X-1, fixed in 3\n2 packages compared, 1 advisories\n", ""),
        (
            [FINE, SKIPPED],
            3,
            "1 packages compared, 0 advisories\n",
            "1 could not be compared: c (not found)\n",
        ),
        ([], 3, "0 packages compared, 0 advisories\n", ""),
    ],
)
def test_the_audit_says_what_it_compared(
    rows: list[Any], status: int, printed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.report(rows) == status
    assert tuple(capsys.readouterr()) == (printed, said)


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (([FINE], ""), "it knows no advisory of jinja2==2.4.1"),
        (([], "ServiceError: no route"), "ServiceError: no route"),
    ],
)
def test_an_audit_without_advisories_is_no_success(
    control: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "audited", lambda *words: control)
    assert audit.main() == 3
    error = capsys.readouterr().err
    assert error.startswith("nothing was compared: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("name", "commands"), [
    ("nightly", ["make HASHES=1 test-all", "-m tests.campaign --only ${{ matrix.part }}"]),
    ("security", ["make HASHES=1 audit"]),
    ("weekly", ["make HASHES=1 .venv/.installed-dev", "-m tests.campaign --only load --seconds 18000"]),
])  # fmt: skip
def test_hosted_workflows_install_pinned_files_only(name: str, commands: list[str]) -> None:
    """Actions by commit, files by sha256, and no right to write."""
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    assert all(command in text for command in commands)
    assert all(
        re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", use) for use in re.findall(r"uses: (\S+)", text)
    )
    assert "permissions:\n  contents: read\n" in text
    assert ": write" not in text
    for line in re.findall(r"- run: make (.*)", text):
        assert line.startswith("HASHES=1 ")
        subprocess.run(["make", "-n", *line.split()], cwd=ROOT, capture_output=True, check=True)


def test_every_part_of_the_campaign_runs_at_night() -> None:
    from tests.campaign import PARTS

    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert re.findall(r"part: \[(.*)\]", text) == [", ".join(PARTS)]
