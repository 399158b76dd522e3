"""Start-up of our commands against importing Pyserini's Lucene searchers.

    python benchmarks/startup.py [--documents 500]

Whole processes in turns, from ``exec`` to exit, with a warm disk cache. The peer is the cost of every stock Pyserini
search before it opens an index: ``python -c "import pyserini.search.lucene"``, on the Java that dupmae_ir finds
(with JAVA_HOME, JVM_PATH and OPENAI_API_KEY, without which Pyserini 1.6 cannot be imported). Ours: two help pages,
``doctor`` up to its first finding (its total is reported as well), and ``search --query`` on an index of the standard
library's documentation with the embedded model, from process start to the printed answer: as it is, with Lucene in
place of the postings, and the way it was before (torch and Lucene).

Wall times depend on other work on the machine, so a table of processor seconds is recorded beside them.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import ROOT, Claim, arguments, bars, in_turns, middle, report, speedup

from dupmae_ir import pyserini
from dupmae_ir.collections.stdlib import stdlib_documents
from dupmae_ir.io.publishing import atomic_write

PEER = "import pyserini.search.lucene"
QUERY = "count how often each word occurs in a list"
HELP = "dupmae-ir --help"
ENCODE_HELP = "encode --help"
DOCTOR = "doctor, to its last line"
FIRST = "doctor, to its first finding"
SEARCH = "search --query"
BY_LUCENE = "search --query --impact-search lucene"
BEFORE = "search --query by torch and Lucene"
TORCH = """
import sys
from dupmae_ir import models
from dupmae_ir.search.__main__ import main
models.load_lazy_encoder = models.load_encoder
sys.exit(main(sys.argv[1:]))
"""
"""``search`` with the query encoded by torch."""
STAGES = """
import time
ends = {"Python": time.perf_counter()}
import numpy
ends["import of numpy"] = time.perf_counter()
import atexit, gc, json, sys
atexit.register(gc.freeze)  # as every command does
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer
from dupmae_ir.models.inference import query_model
from dupmae_ir.search import run
from dupmae_ir.search.__main__ import show
from dupmae_ir.search.answers import answer_query, open_search
from dupmae_ir.search.config import SearchConfig
ends["import of dupmae_ir, tokenizers and regex"] = time.perf_counter()
read = PlainTokenizer.read
def timed_read(folder):
    start = time.perf_counter()
    tokenizer = read(folder)
    ends["tokenizer"] = ends["import of dupmae_ir, tokenizers and regex"] + time.perf_counter() - start
    return tokenizer
PlainTokenizer.read = timed_read
config = SearchConfig(index=[sys.argv[1]], query=sys.argv[2])
search = open_search(config)
ends["weights and index"] = time.perf_counter()
answer = answer_query(config, search, config.query)
ends["query"] = time.perf_counter()
show(config, answer)
ends["display"] = time.perf_counter()
print(json.dumps(ends))
"""
"""The steps of ``search --query`` one after the other, and when each ends."""


class Commands:
    """The command lines; they run in child processes, and their output is checked."""

    def __init__(self, folder: Path, documents: int) -> None:
        java = pyserini.find_java()
        self.java = f"{java.version}"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.ours = {**os.environ, "PYTHONPATH": path}
        self.stock = {
            **self.ours,
            "JAVA_HOME": str(java.home),
            "JVM_PATH": str(java.library),
            "OPENAI_API_KEY": "unused",
        }
        self.index = folder / "index"
        self.first: list[float] = []
        self.ids: dict[str, list[str]] = {}
        self.processor: dict[str, list[float]] = {}
        self.by_stage: dict[str, list[float]] = {}
        self._make_index(folder / "corpus.jsonl", documents)

    def _make_index(self, corpus: Path, documents: int) -> None:
        with atomic_write(corpus) as out:
            for document in stdlib_documents()[:documents]:
                out.write(
                    json.dumps(
                        {"_id": document.docid, "title": document.title, "text": document.text}
                    )
                    + "\n"
                )
        self._run(
            "dupmae_ir.encode", "--corpus", str(corpus), "--index", str(self.index), "--quiet"
        )

    def _run(self, *arguments: str, expected: str = "") -> None:
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(
            command, env=self.ours, cwd=self.index.parent, capture_output=True, text=True
        )
        if done.returncode or expected not in done.stdout:
            raise SystemExit(
                f"{arguments}: status {done.returncode}, {done.stdout[-500:]}{done.stderr[-500:]}"
            )

    def peer(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PEER],
            env=self.stock,
            cwd=self.index.parent,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{PEER}: status {done.returncode}, {done.stderr[-500:]}")

    def help(self) -> None:
        self._run("dupmae_ir", "--help", expected="usage: dupmae-ir COMMAND")

    def encode_help(self) -> None:
        self._run("dupmae_ir.encode", "--help", expected="usage: dupmae-ir encode")

    def search(self) -> None:
        self._answer(SEARCH, "-m", "dupmae_ir.search")

    def by_lucene(self) -> None:
        self._answer(BY_LUCENE, "-m", "dupmae_ir.search", more=("--impact-search", "lucene"))

    def stages(self) -> None:
        """Note the seconds that each step of :data:`STAGES` takes."""
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", STAGES, str(self.index), QUERY],
            env=self.ours,
            cwd=self.index.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        ends = json.loads(done.stdout) | {"end of Python": time.perf_counter()}
        for name, end in ends.items():
            self.by_stage.setdefault(name, []).append(end - start)
            start = end

    def before(self) -> None:
        self._answer(BEFORE, "-c", TORCH, more=("--impact-search", "lucene"))

    def _answer(self, name: str, *program: str, more: Sequence[str] = ()) -> None:
        """Run a search and note its processor seconds; all of them print the same documents."""
        command = [
            sys.executable,
            *program,
            "--index",
            str(self.index),
            "--query",
            QUERY,
            "--json",
            *more,
        ]
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, env=self.ours, cwd=self.index.parent, capture_output=True, text=True
        )
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{name}: status {done.returncode}, {done.stderr[-500:]}")
        ids = [hit["docid"] for hit in json.loads(done.stdout)["hits"]]
        if ids != self.ids.setdefault("", ids):
            raise SystemExit(f"{name}: other documents than before: {ids}")
        taken = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
        self.processor.setdefault(name, []).append(taken)

    def doctor(self) -> None:
        """The whole command; the time to the first finding is recorded separately."""
        start = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "dupmae_ir.doctor"],
            env=self.ours,
            cwd=self.index.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            self.first.append(time.perf_counter() - start)
            rest = child.stdout.read()
        if child.returncode or not line.startswith("OK       python") or "All is well." not in rest:
            raise SystemExit(f"doctor: status {child.returncode}, {line}{rest[-500:]}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = arguments(__doc__, repeats=7)
    parser.add_argument(
        "--documents", type=int, default=500, help="documents in the index (default: 500)"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(Path(folder), args.documents)
        variants: dict[str, Callable[[], None]] = {
            PEER: commands.peer,
            HELP: commands.help,
            ENCODE_HELP: commands.encode_help,
            SEARCH: commands.search,
            BY_LUCENE: commands.by_lucene,
            BEFORE: commands.before,
            DOCTOR: commands.doctor,
            "stages": commands.stages,
        }
        seconds = in_turns(variants, args.repeats)
    del seconds["stages"]
    seconds[FIRST] = commands.first[-args.repeats :]

    def claim(name: str, goal: float, note: str = "") -> Claim:
        gate = "exit status 0 and the expected output in every run"
        share = 1 / speedup(seconds, PEER, name)
        return Claim(14, f"start-up of {name}", name, PEER, share, goal, "<=", "x", gate, note)

    claims = [claim(HELP, 0.15), claim(ENCODE_HELP, 0.15), claim(FIRST, 0.15), claim(SEARCH, 1.3)]
    processor = {name: taken[-args.repeats :] for name, taken in commands.processor.items()}
    for what, measured in (("time", seconds), ("processor time", processor)):
        share = 1 / speedup(measured, BEFORE, SEARCH)
        gate = "the same documents in the same order in every run"
        note = "the table of steps says what is left"
        claims.append(
            Claim(14, f"first answer, {what}", SEARCH, BEFORE, share, 0.25, "<=", "x", gate, note)
        )
    total = 1 / speedup(seconds, PEER, DOCTOR)
    print(
        f"doctor's nine checks, {DOCTOR}: {total:.2f}x of the peer; one of the checks is the same import"
    )
    taken = middle(seconds)
    rows = [
        [name, f"{taken[name]:.2f}", f"{statistics.median(processor[name]):.2f}"]
        for name in processor
    ]
    table = {"header": ["", "seconds", "processor seconds"], "rows": rows}
    stages = {
        "header": ["step of search --query", "ms"],
        "rows": [
            [name, f"{1000 * statistics.median(taken[-args.repeats :]):.0f}"]
            for name, taken in commands.by_stage.items()
        ],
    }
    details = {"table": table, "stages": stages, "java": commands.java, "documents": args.documents}
    details["doctor_total_ratio"] = round(total, 3)
    picture = bars(
        "Start-up, seconds (less is better)",
        "seconds",
        dict(sorted(taken.items(), key=lambda p: -p[1])),
        [name for name in taken if name != PEER],
    )
    report("startup", claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
