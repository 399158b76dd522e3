"""A searcher in many threads, in a forked process, with little memory, and in batches of every size."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.io.runs import read_run
from dupmae_ir.search.__main__ import main as search
from dupmae_ir.types import Query

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.jvm

OPENED_BY_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
start = Barrier(8)

def opened(number):
    start.wait()
    from dupmae_ir.search.searcher import Searcher
    hits = Searcher.open(sys.argv[1], impact_search="lucene").search("quick brown fox", 5)
    return [(hit.docid, hit.score) for hit in hits]

with ThreadPoolExecutor(8) as pool:
    first, *others = pool.map(opened, range(8))
assert first and all(other == first for other in others), (first, others)
"""
FORKED = """
import os, sys
from dupmae_ir.search.searcher import Searcher

def forked(searcher):
    print([hit.docid for hit in searcher.search("quick brown fox", 5)])

searcher = Searcher.open(sys.argv[1], impact_search="lucene")
searcher.search("quick brown fox", 5)
child = os.fork()
if not child:
    try:
        forked(searcher)
        os._exit(0)
    except Exception as e:
        print(type(e).__name__, e, flush=True)
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 60 texts, encoded by a tiny model with weights."""
    import torch
    from transformers import BertForMaskedLM

    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever

    folder = tmp_path_factory.mktemp("processes")
    torch.manual_seed(7)
    sizes = {"hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4}
    lm = BertForMaskedLM(tiny_config(**sizes))
    tokenizer = tiny_tokenizer()
    model = Retriever(lm, torch.nn.Linear(96, 48, bias=False), *excluded_ids(tokenizer)).eval()
    save_model(
        folder / "model",
        model,
        tokenizer,
        ModelConfig(document_length=32, query_length=16, top_k=6),
    )
    rng = random.Random(0)
    rows = [
        {"_id": f"d{n}", "text": " ".join(rng.choices(WORDS, k=rng.randint(3, 20)))}
        for n in range(60)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = [
        "--model",
        str(folder / "model"),
        "--corpus",
        str(folder / "corpus.jsonl"),
        "--dtype",
        "float32",
    ]
    assert encode([*flags, "--index", str(folder / "index"), "--device", "cpu", "--quiet"]) == 0
    return folder / "index"


def python(code: str, *words: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    bound = f"ulimit -v {limit}; " if limit else ""
    return subprocess.run(
        ["bash", "-c", f'{bound}exec "$@"', "bash", sys.executable, "-c", code, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.nightly
def test_eight_threads_open_at_once(index: Path) -> None:
    done = python(OPENED_BY_THREADS, index)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_after_a_fork_java_is_an_error(index: Path) -> None:
    """Without it, a search may still answer, and the first garbage collection waits for threads that are gone."""
    done = python(FORKED, index)
    assert done.returncode == 0, done.stderr
    answer, status = done.stdout.splitlines()
    assert status == "7"
    assert answer.startswith("EnvironmentProblem this process was forked")
    assert "spawn" in answer


def test_java_without_memory_is_one_line(index: Path) -> None:
    """2 GiB of address space do not hold the heap and the code of a JVM besides torch."""
    code = "import sys; from dupmae_ir.index.__main__ import main; sys.exit(main(sys.argv[1:]))"
    made = index.parent / "bm25"
    done = python(
        code, "bm25", "--corpus", index.parent / "corpus.jsonl", "--index", made, limit=1_500_000
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Java does not start with the" in done.stderr
    assert not made.exists()


def test_runs_do_not_depend_on_the_batch_size(index: Path, tmp_path: Path) -> None:
    """Bit for bit: the scores of a run are written with all their digits."""
    rng = random.Random(1)
    topics = tmp_path / "queries.tsv"
    topics.write_text(
        "".join(f"q{n}\t{' '.join(rng.choices(WORDS, k=rng.randint(1, 12)))}\n" for n in range(40))
    )
    runs = {}
    for size in (1, 7, 256):
        output = tmp_path / f"{size}.trec"
        flags = [
            "--topics",
            str(topics),
            "--output",
            str(output),
            "--batch-size",
            str(size),
            "--hits",
            "20",
        ]
        assert search(["--index", str(index), *flags, "--device", "cpu", "--quiet"]) == 0
        runs[size] = output.read_bytes()
    assert runs[1] == runs[7] == runs[256]
    assert len(read_run(tmp_path / "1.trec")) == 40


def test_answers_do_not_depend_on_the_batch_size(index: Path) -> None:
    from dupmae_ir.search.config import SearchSettings
    from dupmae_ir.search.searcher import Searcher

    topics = [Query(f"q{n}", " ".join(WORDS[n % 7 : n % 7 + n % 9 + 1])) for n in range(30)]
    for mode in ("dense", "impact", "hybrid"):
        found = []
        for size in (1, 7, 256):
            searcher = Searcher.open(index, device="cpu", settings=SearchSettings(batch_size=size))
            found.append([answer.hits for answer in searcher.answers(topics, 10, mode)])
        assert found[0] == found[1] == found[2], mode
