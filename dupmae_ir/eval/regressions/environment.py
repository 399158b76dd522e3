"""What a number depends on besides configuration, weights and data: this code, the libraries and the processor."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]
_CPU_INFO = Path("/proc/cpuinfo")


@cache
def code_digest() -> str:
    """sha256 over the package's Python sources, in the order of their names."""
    whole = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        whole.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


def fingerprint(threads: int) -> dict[str, Any]:
    """Everything that may move the last digits: versions, processor, threads. Equal fingerprints, equal bits."""
    from dupmae_ir.index.manifest import versions

    found = {k: v for k, v in versions().items() if k not in ("java", "dupmae_ir")}
    return {
        **found,
        "numpy": _version("numpy"),
        "scipy": _version("scipy"),
        "pytrec_eval": _version("pytrec_eval-terrier"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": threads,
    }


def in_words(told: dict[str, Any]) -> str:
    """One line of a fingerprint for people."""
    names = ("python", "torch", "transformers", "faiss", "pyserini")
    libraries = ", ".join(f"{n} {told[n]}" for n in names if told.get(n))
    return f"{libraries}; {told.get('processor')}, {told.get('threads')} thread(s)"


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The model and the instructions that libraries choose their kernels by."""
    name, flags = platform.processor() or platform.machine(), ""
    if _CPU_INFO.is_file():
        parted = (line.partition(":") for line in _CPU_INFO.read_text(errors="replace").splitlines())
        lines = {key.strip(): value.strip() for key, _, value in parted}
        name = lines.get("model name", name)
        has = set(lines.get("flags", "").split())
        flags = " ".join(f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in has)
    return f"{name} ({flags})" if flags else name
