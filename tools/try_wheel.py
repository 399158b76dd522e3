"""Install a wheel outside the clone, index a folder with it, ask a question, run the demo, and measure.

    python tools/try_wheel.py                    # build the wheel, install it with all it needs in an empty environment
    python tools/try_wheel.py dist/X.whl         # try this file
    python tools/try_wheel.py --reuse            # a minute: requirements of this environment, without the demo

Prints MB of the wheel and of the environment, and seconds of the installation, of the first answer (indexing included)
and of the demo. Exit status 1 when a step fails or the first hit is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "documents,speed"
FILES = {
    "notes/logs.md": "# Log rotation\n\nEvery night a timer renames app.log and deletes copies older than 14 days.\n",
    "notes/backup.md": "# Backups\n\nRestore the newest full dump first, then apply the increments in order.\n",
    "pets.txt": "The cat sleeps on the boiler in winter and on the roof in summer.\n",
}
QUESTION = "when are old log files removed?"
ANSWER = "logs.md"


class Trial:
    """Commands of one environment, run in a folder outside the clone."""

    def __init__(self, python: Path, folder: Path, env: Mapping[str, str]) -> None:
        self.python = python
        self.folder = folder
        self.env = {**os.environ, **env}

    def folder_of_the_package(self) -> Path:
        """Where the package is imported from."""
        command = [str(self.python), "-c", "import dupmae_ir; print(dupmae_ir.__file__)"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=True
        )
        return Path(done.stdout.strip()).parent

    def run(self, *words: str, module: str = "dupmae_ir") -> str:
        """Standard output of ``python -m MODULE WORDS``; exits with its messages if it fails."""
        command = [str(self.python), "-m", module, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(
                f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout


def build(folder: Path) -> Path:
    """The wheel of this clone, without modules of an earlier build that have been deleted since."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def empty_environment(wheel: Path, folder: Path) -> Trial:
    """A new environment with the wheel, its extras and what they require, in the versions of constraints.txt."""
    venv.create(folder / "environment", with_pip=True)
    python = next((folder / "environment").glob("[bS][ic][nr]*/python*"))
    trial = Trial(python, folder, {})
    words = ("--constraint", str(ROOT / "constraints.txt"), f"{wheel}[{EXTRAS}]")
    trial.run("install", "--quiet", *words, module="pip")
    return trial


def this_environment(wheel: Path, folder: Path) -> Trial:
    """The wheel in front of this environment's packages."""
    target = folder / "environment"
    trial = Trial(Path(sys.executable), folder, {"PYTHONPATH": str(target)})
    trial.run("install", "--quiet", "--no-deps", "--target", str(target), str(wheel), module="pip")
    return trial


def answer(trial: Trial) -> None:
    """Index the folder and ask; exits if the first hit is another file."""
    for name, text in FILES.items():
        path = trial.folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    trial.run("encode", "--corpus", "docs", "--index", "index", "--quiet")
    found = trial.run("search", "--index", "index", "--query", QUESTION, "--hits", "1", "--json")
    if ANSWER not in found:
        sys.exit(f"{QUESTION!r}: {ANSWER} is not the first hit\n{found}")


def main() -> None:
    """Try the wheel and print the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument(
        "--reuse", action="store_true", help="the requirements of this environment; no demo"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        wheel = options.wheel.resolve() if options.wheel else build(folder)
        measured = {"wheel, MB": wheel.stat().st_size / 1e6}
        started = time.monotonic()
        trial = (this_environment if options.reuse else empty_environment)(wheel, folder)
        measured["installation, s"] = time.monotonic() - started
        if not trial.folder_of_the_package().resolve().is_relative_to(folder):
            sys.exit(
                f"the package is imported from {trial.folder_of_the_package()}, not from the wheel"
            )
        files = [
            path
            for path in (folder / "environment").rglob("*")
            if path.is_file() and not path.is_symlink()
        ]
        measured["environment, MB"] = sum(path.stat().st_size for path in files) / 1e6
        started = time.monotonic()
        answer(trial)
        measured["first answer, s"] = time.monotonic() - started
        if not options.reuse:
            trial.run("doctor", "--quiet")
            started = time.monotonic()
            print(trial.run("demo", "--output", "demo"))
            measured["demo, s"] = time.monotonic() - started
        for what, value in measured.items():
            print(f"{what:18} {value:8.1f}")


if __name__ == "__main__":
    main()
