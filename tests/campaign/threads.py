"""Queries from eight threads of one process, opens without end, and processes whose threads all open at once.

``python -m tests.campaign.threads --seconds 300``. Java runs in this process, so the processes are forked first.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from making_commands import write_inputs
from tiny_models import WORDS

from tests.campaign.forked import finished, start

THREADS = 8
PROCESSES, OPENS, QUERIES = 100, 1000, 50_000


def run(seconds: float, seed: int = 0) -> dict[str, int]:
    """A third of the time each: processes, opens, queries. Returns the counts, and how many were wrong."""
    import dupmae_ir.encode.run
    import dupmae_ir.search.searcher  # noqa: F401  (imported once, for all children)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if finished(start(lambda: _inputs(folder / "inputs"), folder / "errors")):
            raise RuntimeError((folder / "errors").read_text())
        index = folder / "inputs" / "trained"
        counts = _processes(index, folder / "errors", seconds / 3)
        counts |= _opens(index, seconds / 3)
        return counts | _queries(index, seconds / 3, seed)


def _inputs(folder: Path) -> int:
    from dupmae_ir.__main__ import main

    write_inputs(folder, lambda words: main([*map(str, words)]))
    flags = ["--model", folder / "retriever", "--corpus", folder / "corpus.jsonl", "--index", folder / "trained"]
    return main(["encode", *map(str, flags), "--device", "cpu", "--quiet"])


def _found(searcher: Any, text: str) -> list[tuple[str, float]]:
    return [(hit.docid, hit.score) for hit in searcher.search(text, 10)]


def _opened_by_threads(index: Path) -> int:
    from dupmae_ir.search.searcher import Searcher

    together = Barrier(THREADS)

    def opened(_: int) -> list[tuple[str, float]]:
        together.wait()
        return _found(Searcher.open(index, device="cpu"), "quick brown fox")

    with ThreadPoolExecutor(THREADS) as pool:
        first, *others = pool.map(opened, range(THREADS))
    return int(not first or any(other != first for other in others))


def _processes(index: Path, errors: Path, seconds: float) -> dict[str, int]:
    end, counts = time.monotonic() + seconds, Counter(processes=0, processes_wrong=0)
    while counts["processes"] < PROCESSES and time.monotonic() < end:
        status = finished(start(lambda: _opened_by_threads(index), errors))
        counts.update(processes=1, processes_wrong=int(status != 0))
        if status:
            print(f"a process ended with {status}: {errors.read_text()[-600:]}", file=sys.stderr)
    return dict(counts)


def _opens(index: Path, seconds: float) -> dict[str, int]:
    from dupmae_ir.search.searcher import Searcher

    end, opens = time.monotonic() + seconds, 0
    wanted = _found(Searcher.open(index, device="cpu"), "quick brown fox")
    wrong, files, most = 0, _open_files(), 0
    while opens < OPENS and time.monotonic() < end:
        wrong += _found(Searcher.open(index, device="cpu"), "quick brown fox") != wanted
        opens += 1
        most = max(most, _open_files())
    return {"opens": opens, "opens_wrong": wrong, "files_before": files, "files_at_most": most}


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _queries(index: Path, seconds: float, seed: int) -> dict[str, int]:
    from dupmae_ir.search.searcher import Searcher

    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(300)]
    searcher = Searcher.open(index, device="cpu")
    wanted = {text: _found(searcher, text) for text in texts}
    end = time.monotonic() + seconds

    def soak(number: int) -> tuple[int, int]:
        own, done, wrong = random.Random(number), 0, 0
        while done < QUERIES // THREADS and time.monotonic() < end:
            text = own.choice(texts)
            wrong += _found(searcher, text) != wanted[text]
            done += 1
        return done, wrong

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(soak, range(THREADS)))
    return {"queries": sum(done for done, _ in results), "queries_wrong": sum(wrong for _, wrong in results)}


def main() -> int:
    """Print the counts; 1 if one was wrong."""
    seconds = float(sys.argv[sys.argv.index("--seconds") + 1]) if "--seconds" in sys.argv else 300.0
    counts = run(seconds, int(time.time()))
    print(json.dumps(counts))
    return int(any(n for name, n in counts.items() if name.endswith("wrong")))


if __name__ == "__main__":
    sys.exit(main())
