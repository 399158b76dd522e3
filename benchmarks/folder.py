"""A folder of mixed documents: seconds to make it searchable, to synchronise it after edits, and to answer.

    python benchmarks/folder.py                    # 500 files: half of /usr/share/doc, half of Python's HTML pages
    python benchmarks/folder.py --files 100 --keep runs/folder

Needs a Debian system with python3-doc (``apt-get install python3-doc``). The draw is fixed by ``--seed``. Every step is
the command that a user types, in a process of its own; wall and processor time are reported, since the machine may be
busy.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dupmae_ir.index.format.manifest import META
from dupmae_ir.io.jobs import work_folder

DEBIAN = Path("/usr/share/doc")
KINDS = {".txt", ".md", ".html", ".rst", ".pl", ".c", ".sh", ".py", ".xml", ".gz", ".pdf", ".json"}
LARGEST = 20_000, 60_000
"""Bytes of a file of Debian's and of Python's: books of hundreds of pages would hide the rest."""
QUESTIONS = (
    "how do I rotate the logs?",
    "wait for a lock with a timeout",
    "read a compressed archive",
)
_LOOK_SECONDS = 0.02
EDITED = "A note: read the guide before you change log files.\n"


def draw(files: int, seed: int, to: Path) -> int:
    """Copy a fixed draw of documents into the folder ``to``; returns their bytes."""
    chosen = random.Random(seed)
    manual = next(iter(sorted(DEBIAN.glob("python3.*/html"))), None)
    if manual is None:
        sys.exit("Python's pages are missing; run: apt-get install python3-doc")
    debian = [
        path
        for path in sorted(DEBIAN.rglob("*"))
        if path.suffix in KINDS and "changelog" not in path.name and "python3" not in str(path)
    ]
    manual = manual.resolve()
    pages = sorted(manual.rglob("*.html"))
    size = 0
    for name, base, paths, largest in (
        ("debian", DEBIAN, debian, LARGEST[0]),
        ("python", manual, pages, LARGEST[1]),
    ):
        fitting = [path for path in paths if path.is_file() and path.stat().st_size < largest]
        for path in chosen.sample(fitting, min(files // 2, len(fitting))):
            target = to / name / path.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            size += path.stat().st_size
    return size


def timed(what: str, words: Sequence[str | Path], given: str = "") -> str:
    """Run ``dupmae-ir WORDS``, print a row of its times, and return what it printed."""
    before = os.times()
    started = time.perf_counter()
    command = [sys.executable, "-m", "dupmae_ir", *map(str, words)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    wall = time.perf_counter() - started
    after = os.times()
    used = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    print(f"| {what} | {wall:.1f} | {used:.1f} |", flush=True)
    return done.stdout + done.stderr


def until_words(docs: Path, index: Path) -> None:
    """Print a row with the seconds of ``dupmae-ir encode`` until the folder can be searched by words. The command is
    stopped then, and its index removed."""
    command = [sys.executable, "-m", "dupmae_ir", "encode", "--quiet"]
    started = time.perf_counter()
    encoding = subprocess.Popen([*command, "--corpus", str(docs), "--index", str(index)])
    while encoding.poll() is None and not (index / META).exists():
        time.sleep(_LOOK_SECONDS)
    print(
        f"| encode, until it can be searched by words | {time.perf_counter() - started:.1f} | |",
        flush=True,
    )
    encoding.kill()
    encoding.wait()
    shutil.rmtree(index)
    shutil.rmtree(work_folder(index), ignore_errors=True)


def edit(folder: Path, seed: int) -> None:
    """A new file, one with a line more, and one less."""
    (folder / "rotation.md").write_text(
        "# Log rotation\n\nTo rotate the logs now, run `logrotate --force`.\n"
    )
    texts = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in {".txt", ".md", ".rst"} and path.is_file()
    )
    changed, gone = random.Random(seed).sample(
        [path for path in texts if path.name != "rotation.md"], 2
    )
    changed.write_bytes(EDITED.encode() + changed.read_bytes())
    gone.unlink()


def main() -> None:
    """Draw, encode, synchronise, ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--keep", type=Path, help="folder that is kept, instead of a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        where = arguments.keep or Path(temporary)
        docs = where / "docs"
        index = where / "index"
        size = draw(arguments.files, arguments.seed, docs)
        print(f"{sum(p.is_file() for p in docs.rglob('*'))} files, {size / 1e6:.1f} MB\n")
        print("| step | seconds | of processor |\n|:--|--:|--:|")
        both = ("--corpus", docs, "--index", index)
        until_words(docs, index)
        said = [timed("encode", ("encode", *both))]
        said.append(timed("sync, nothing changed", ("index", "sync", *both)))
        edit(docs, arguments.seed)
        said.append(timed("sync, one file new, one changed, one gone", ("index", "sync", *both)))
        timed("first answer: search --query", ("search", "--index", index, "--query", QUESTIONS[0]))
        typed = "".join(f"{question}\n" for question in QUESTIONS)
        said.append(
            timed(
                "three answers of search --interactive",
                ("search", "--index", index, "--interactive"),
                typed,
            )
        )
        print(
            "\n"
            + "\n".join(
                line
                for text in said
                for line in text.splitlines()
                if ":" in line and " documents" in line
            )
        )


if __name__ == "__main__":
    main()
