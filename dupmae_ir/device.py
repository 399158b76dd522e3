"""What the machine has. Choices made for the user come back with their reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from dupmae_ir.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    import torch

CPU_BATCH = 4096
BYTES_PER_PIECE = 1 << 17
"""Activations of one word piece in a BERT-large layer and its share of a vocabulary chunk, generously."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
ENGINES = ("lucene", "postings", "auto")
"""What can find documents by their impacts."""


class Threaded(Protocol):
    """A command's settings that say how many threads."""

    @property
    def threads(self) -> int | None: ...


C = TypeVar("C", bound=Threaded)
T = TypeVar("T")


def pick_device(wanted: str = "auto") -> tuple[torch.device, str]:
    """The torch device for ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``, and why. A mistyped name is refused."""
    import torch

    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), f"{torch.cuda.get_device_name(0)} found"
        if torch.backends.mps.is_available():
            return torch.device("mps"), "Apple GPU found"
        return torch.device("cpu"), "no accelerator found"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UsageError(f"no device named {wanted!r}; use auto, cpu, cuda, cuda:N or mps") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {wanted}: this torch ({torch.__version__}) sees no CUDA device; use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"--device {wanted}: no Apple GPU here; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {wanted}: only {torch.cuda.device_count()} CUDA device(s) here")
    return device, "asked for"


def pick_dtype(wanted: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The arithmetic of the forward pass, and why. ``auto`` is bfloat16 where the hardware multiplies it natively."""
    import torch

    if wanted not in DTYPES:
        raise UsageError(f"--dtype {wanted}: use one of {', '.join(DTYPES)}")
    if wanted != "auto":
        if wanted == "float16" and device.type == "cpu":
            raise UsageError("--dtype float16 is slow and imprecise on a CPU; use float32 or bfloat16")
        return getattr(torch, wanted), "asked for"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported():
            return torch.bfloat16, "the GPU multiplies bfloat16"
        return torch.float32, "the GPU has no bfloat16"
    if device.type == "cpu" and cpu_multiplies_bf16():
        return torch.bfloat16, "the CPU multiplies bfloat16"
    return torch.float32, "no bfloat16 arithmetic found"


def cpu_multiplies_bf16() -> bool:
    """True where the processor has AVX512-BF16 or AMX-BF16; elsewhere torch emulates bfloat16, slowly."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks)


def processors() -> int:
    """As many as this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _lent(number: Callable[[], int], tell: Callable[[int], object], threads: int) -> Iterator[None]:
    """A library's number of threads is ``threads`` in here, then what it was."""
    before = number()
    tell(threads)
    try:
        yield
    finally:
        tell(before)


def torch_threads(threads: int | None) -> AbstractContextManager[None]:
    """So many threads for torch in here; then the number it had, so that one step of a recipe does not decide for the
    next. None and 0 leave its number alone."""
    if not threads:
        return nullcontext()
    import torch

    return _lent(torch.get_num_threads, torch.set_num_threads, threads)


def on_its_threads(run: Callable[[C], T]) -> Callable[[C], T]:
    """``run(config)`` with :func:`torch_threads` of ``config.threads``."""

    @wraps(run)
    def limited(config: C) -> T:
        with torch_threads(config.threads):
            return run(config)

    return limited


def faiss_threads(threads: int) -> AbstractContextManager[None]:
    """So many threads for faiss in here. The number is OpenMP's and torch's products have it too, so it is put back:
    left behind, it would make an encoder that was told to run on one thread run on all. threadpoolctl does as much in a
    millisecond, which is longer than a query takes."""
    import faiss

    return _lent(faiss.omp_get_max_threads, faiss.omp_set_num_threads, threads)


def pick_batch_tokens(device: torch.device) -> tuple[int, str]:
    """Word pieces, padding included, of a forward pass, and why. Too many are halved when they do not fit."""
    import torch

    if device.type != "cuda":
        return CPU_BATCH, "measured: more is no faster, and less stalls at the vocabulary"
    free, _ = torch.cuda.mem_get_info(device)
    return max(CPU_BATCH, min(free // 2 // BYTES_PER_PIECE, 1 << 18)), f"for half of {free / 2**30:.0f} GiB free"


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory did not suffice, on a GPU or a CPU: torch has no one class for both."""
    import torch

    said = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or any(
        words in said for words in ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc")
    )


def pick_engine(wanted: str, index: str | Path) -> tuple[str, str]:
    """Lucene or postings for ``lucene``, ``postings`` or ``auto``, and why. A mistyped name is refused.

    ``auto`` takes postings where the index folder has them and numba is installed.
    """
    if wanted not in ENGINES:
        raise UsageError(f"--engine {wanted}: use one of {', '.join(ENGINES)}")
    if wanted != "auto":
        return wanted, "asked for"
    if not Path(index, "postings", "meta.json").is_file():
        return "lucene", f"no postings in {index}"
    import importlib.util

    if importlib.util.find_spec("numba") is None:
        return "lucene", "numba is not installed"
    return "postings", "postings and numba found"


def need_packages(what: str, packages: Iterable[str], extra: str = "train") -> None:
    """Raise :class:`EnvironmentProblem` for the first package of the ``extra`` that is not installed."""
    import importlib.util

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise EnvironmentProblem(f"{what} needs {package}: pip install 'dupmae-ir[{extra}]'")
