"""What values depend on besides configuration, weights and data: this code, the libraries and the processor."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dupmae_ir.index.format.manifest import versions

PACKAGE = Path(__file__).resolve().parents[2]
_CPU_INFO = Path("/proc/cpuinfo")


@cache
def code_digest() -> str:
    """sha256 of the package's Python sources, in order of their paths."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(threads: int) -> Mapping[str, Any]:
    """Everything that can change the last digits: versions, processor, threads. Equal fingerprints, equal bits."""
    libraries = {k: v for k, v in versions().items() if k not in ("java", "dupmae_ir")}
    return {
        **libraries,
        "numpy": _version("numpy"),
        "scipy": _version("scipy"),
        "pytrec_eval": _version("pytrec_eval-terrier"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": threads,
    }


def describe(environment: Mapping[str, Any]) -> str:
    """A fingerprint in one line, for reports."""
    names = ("python", "torch", "transformers", "faiss", "pyserini")
    libraries = ", ".join(f"{n} {environment[n]}" for n in names if environment.get(n))
    return f"{libraries}; {environment.get('processor')}, {environment.get('threads')} thread(s)"


def processor() -> str:
    """The processor's model name, and the instruction sets by which libraries select their kernels."""
    name, flags = platform.processor() or platform.machine(), ""
    if _CPU_INFO.is_file():
        parted = (line.partition(":") for line in _CPU_INFO.read_text(errors="replace").splitlines())
        lines = {key.strip(): value.strip() for key, _, value in parted}
        name = lines.get("model name", name)
        supported = set(lines.get("flags", "").split())
        flags = " ".join(f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in supported)
    return f"{name} ({flags})" if flags else name


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
