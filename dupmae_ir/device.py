"""Choice of device, precision, batch size, threads and search engine; each choice is returned with its reason.

:func:`torch_threads`, :func:`faiss_threads` and :func:`blas_threads` limit the threads of the libraries.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from dupmae_ir.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    import torch
    from threadpoolctl import LibController, ThreadpoolController


CPU_BATCH = 4096
"""Word pieces of a forward pass on a CPU, see :func:`pick_batch_tokens`."""
GPU_BATCH = 1 << 16
"""Enough rows for products at full rate; a window of documents has more than one batch, so that copies overlap."""
BYTES_PER_PIECE = 1 << 17
"""Upper estimate of the memory of one word piece: activations of a BERT-large layer and a share of its logits."""

_ACCELERATORS = ("nvidiactl", "nvidia0", "nvhost-ctrl", "kfd", "dxg")
"""Device files of accelerators that torch supports: NVIDIA, its small boards, AMD, and Windows' own in its Linux."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
MIXED = "mixed"
"""Precision of encoding: bfloat16 products in the layers for documents, where the CPU has them; otherwise float32."""
CPU_INFO = Path("/proc/cpuinfo")
LITTLE_WORK = 1 << 18
"""Numbers (impacts, or rows times queries) that numpy handles in a few milliseconds."""
MUCH_WORK = 128 * LITTLE_WORK
"""Numbers that numpy handles in about the time that loading takes: a process that got so far is likely to go on."""
IMPACT_SEARCHES = ("lucene", "postings", "auto")
"""How impacts are searched."""


class Threaded(Protocol):
    """Settings with a number of threads."""

    @property
    def threads(self) -> int | None:
        """CPU threads; 0 or None = the default."""


C = TypeVar("C", bound=Threaded)
T = TypeVar("T")
P = ParamSpec("P")


def pick_device(wanted: str = "auto") -> tuple[torch.device, str]:
    """The torch device for ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``, and the reason.

    Raises :class:`UsageError` for an unknown device or one that this machine lacks.
    """
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
        raise UsageError(
            f"no device named {wanted!r}; use auto, cpu, cuda, cuda:N or mps"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"`device` {wanted}: this torch ({torch.__version__}) finds no CUDA device; use cpu"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"`device` {wanted}: no Apple GPU here; use cpu")
    # torch accepts any number here, and fails when it allocates memory.
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"`device` {wanted}: only {torch.cuda.device_count()} CUDA device(s) here")
    return device, "asked for"


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``values`` of the CPU on ``device``; the copy to a CUDA device is queued, and not waited for."""
    if device.type == "cuda":
        # Only a copy from pinned memory runs beside the computation.
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def is_plain_cpu(wanted: str) -> bool:
    """Whether :func:`pick_device` returns the CPU, as far as this can be known without importing torch.

    False in doubt: ``auto`` on other systems than Linux, or where a device file of an accelerator is there.
    """
    if wanted != "auto":
        return wanted == "cpu"
    if sys.platform != "linux":
        return False
    return not any(Path("/dev", name).exists() for name in _ACCELERATORS)


def pick_dtype(wanted: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype for ``auto``, ``float32``, ``bfloat16`` or ``float16``, and the reason.

    ``auto`` is bfloat16 if the hardware supports it natively, otherwise float32.
    """
    import torch

    if wanted == MIXED:
        raise UsageError(f"`dtype` {MIXED} is for encoding alone; use one of {', '.join(DTYPES)}")
    if wanted not in DTYPES:
        raise UsageError(f"`dtype` {wanted}: use one of {', '.join(DTYPES)}")
    if wanted != "auto":
        if wanted == "float16" and device.type == "cpu":
            raise UsageError(
                "`dtype` float16 is slow and imprecise on a CPU; use float32 or bfloat16"
            )
        return getattr(torch, wanted), "asked for"
    if device.type == "cuda":
        # GPUs before Ampere emulate bfloat16, which is slower than float32.
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, "the GPU supports bfloat16"
        return torch.float32, "the GPU does not support bfloat16"
    if device.type == "cpu" and cpu_supports_bf16():
        return torch.bfloat16, "the CPU supports bfloat16"
    return torch.float32, "no native bfloat16 support found"


def pick_encoding(wanted: str, device: torch.device) -> tuple[str, torch.dtype, torch.dtype]:
    """(name of the precision, dtype of the weights, dtype of the products in the layers when documents are encoded).

    ``wanted`` is :data:`MIXED` or one of :func:`pick_dtype`. Raises :class:`UsageError` for others.
    """
    import torch

    if wanted == MIXED:
        products = torch.float32
        if device.type == "cpu" and cpu_supports_bf16():
            products = torch.bfloat16
        return MIXED, torch.float32, products
    dtype, _ = pick_dtype(wanted, device)
    return str(dtype).removeprefix("torch."), dtype, dtype


def cpu_supports_bf16() -> bool:
    """Whether the processor has AVX512-BF16 or AMX-BF16; without them torch emulates bfloat16, slowly."""
    import torch

    # Private names, which a version of torch may lack; bool() stands for a check that is missing, and is False.
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in checks)


def keep_few_kernels() -> None:
    """Let oneDNN keep 128 compiled products, not 1,024 that take gigabytes: each new shape of a batch adds one."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")


def processors() -> int:
    """Number of processors available to this process."""
    # Fewer than the machine has under taskset, in a container or in a job of a cluster. Only Linux tells.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's model name, and the instruction sets by which libraries select their kernels."""
    name = platform.processor() or platform.machine()
    if not CPU_INFO.is_file():
        return name
    # One "key : value" a line, repeated for every core; the last core's values are kept.
    values = {}
    for line in CPU_INFO.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        values[key.strip()] = value.strip()
    name = values.get("model name", name)
    supported = values.get("flags", "").split()
    sets = [one for one in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if one in supported]
    if not sets:
        return name
    return f"{name} ({' '.join(sets)})"


@contextmanager
def _temporarily(
    get: Callable[[], int], set_to: Callable[[int], object], threads: int
) -> Iterator[None]:
    """Set a library's number of threads and restore it afterwards."""
    before = get()
    set_to(threads)
    try:
        yield
    finally:
        set_to(before)


def torch_threads(threads: int | None) -> AbstractContextManager[None]:
    """Limit torch to ``threads`` threads inside this context.

    None and 0 keep torch's own number: one per available core, or OMP_NUM_THREADS. The former number is restored, so
    that one step of a recipe does not affect the next.
    """
    if not threads:
        return nullcontext()
    import torch

    return _temporarily(torch.get_num_threads, torch.set_num_threads, threads)


def with_torch_threads(run: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Decorator: execute ``run(config, ...)`` inside :func:`torch_threads` with ``config.threads``."""

    @wraps(run)
    def limited(config: C, *args: P.args, **kwargs: P.kwargs) -> T:
        with torch_threads(config.threads):
            return run(config, *args, **kwargs)

    return limited


def faiss_threads(threads: int) -> AbstractContextManager[None]:
    """Limit faiss to ``threads`` threads inside this context.

    The setting is OpenMP's and affects torch as well, so it is restored: otherwise an encoder limited to one thread
    would run on all of them. threadpoolctl does the same in a millisecond, which is longer than a query takes.
    """
    import faiss

    return _temporarily(faiss.omp_get_max_threads, faiss.omp_set_num_threads, threads)


def pick_batch_tokens(device: torch.device) -> tuple[int, str]:
    """Word pieces per forward pass, and the reason; the encoder halves batches that do not fit."""
    import torch

    if device.type != "cuda":
        return (
            CPU_BATCH,
            "measured: larger batches are no faster, and smaller ones wait for the vocabulary projection",
        )
    free, _ = torch.cuda.mem_get_info(device)
    return gpu_batch(free), f"for half of {free / 2**30:.0f} GiB free, at most {GPU_BATCH:,}"


def gpu_batch(free: int) -> int:
    """Word pieces for ``free`` bytes of GPU memory: a power of two, since results depend on the batches in their last
    bits, and GPUs of one kind never have exactly the same free memory."""
    pieces = free // 2 // BYTES_PER_PIECE
    pieces = max(CPU_BATCH, min(pieces, GPU_BATCH))
    return 1 << (pieces.bit_length() - 1)


_OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "bad_alloc")
"""Words of torch's RuntimeErrors about memory, which have no class of their own."""


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` reports insufficient memory, on a GPU or a CPU; torch has no common class for both."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    message = str(error)
    return any(words in message for words in _OUT_OF_MEMORY)


def pick_impact_search(
    wanted: str, index: str | Path, problem: Callable[[], str | None] = lambda: None
) -> tuple[str, str]:
    """The engine for ``lucene``, ``postings`` or ``auto``, and the reason. Raises :class:`UsageError` for other names.

    ``auto`` is postings if the index folder has them, ``problem`` finds nothing wrong with them and numba is installed,
    otherwise Lucene; and postings where there is no Lucene index or no Pyserini.
    """
    if wanted not in IMPACT_SEARCHES:
        raise UsageError(f"`impact_search` {wanted}: use one of {', '.join(IMPACT_SEARCHES)}")
    if wanted != "auto":
        return wanted, "asked for"
    if not Path(index, "postings", "meta.json").is_file():
        return "lucene", f"no postings in {index}"
    if not any(Path(index, "ot").glob("segments_*")):
        return "postings", f"no Lucene index in {index}"
    if importlib.util.find_spec("pyserini") is None:
        return "postings", "Pyserini is not installed"
    if importlib.util.find_spec("numba") is None:
        return "lucene", "numba is not installed"
    defect = problem()
    if defect:
        return "lucene", f"the postings cannot be used: {defect}"
    return "postings", "postings and numba found"


_NUMBA_IMPORT = threading.Lock()
_left_to_numpy = 0
"""Numbers that numpy has handled in this process because compiled loops were not worth loading."""


def pays(numbers: int) -> bool:
    """Whether to use compiled loops for this amount of work; results are the same without.

    Importing numba and loading its cached functions takes a third of a second. False without numba, and for small work
    in a process that has neither loaded it nor done much without it.
    """
    global _left_to_numpy
    if "numba" in sys.modules or numbers > LITTLE_WORK or _left_to_numpy > MUCH_WORK:
        return _load_numba()
    # Threads may lose an addition to each other; then the loops are loaded a little later.
    _left_to_numpy += numbers
    return False


@cache
def _load_numba() -> bool:
    """Import numba; False if it is not installed.

    The modules with loops import parts of it. If two threads were the first to do so, each could wait for a part that
    the other one was importing, and Python would end both imports with an error.
    """
    if importlib.util.find_spec("numba") is None:
        return False
    with _NUMBA_IMPORT:
        importlib.import_module("numba")
    return True


def need_packages(what: str, packages: Iterable[str], extra: str = "train") -> None:
    """Raise :class:`EnvironmentProblem` for the first of the packages that is not installed; ``extra`` installs it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise EnvironmentProblem(f"{what} needs {package}: pip install 'dupmae-ir[{extra}]'")


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Limit numpy's matrix products to ``threads`` threads within this context; no limit without threadpoolctl.

    The limit is one of the whole process. If several threads use the context at a time, the lowest limit applies, and
    the last one to leave restores the limit that the first one found. A BLAS built on OpenMP has a limit per thread.
    """
    per_thread = _libraries().per_thread
    _PROCESS_LIMITS.add(threads)
    try:
        with nullcontext() if per_thread is None else per_thread.limit(limits=threads):
            yield
    finally:
        _PROCESS_LIMITS.remove(threads)


class _ProcessLimits:
    """The limits that threads want at present, and the limits before the first of them came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._before: list[int] = []

    def add(self, threads: int) -> None:
        """A thread has entered."""
        with self._lock:
            if not self._limits:
                libraries = _libraries().per_process
                self._before = [library.get_num_threads() for library in libraries]
            self._limits.append(threads)
            self._set()

    def remove(self, threads: int) -> None:
        """A thread leaves, not always in the order of entering."""
        with self._lock:
            # One of the equal limits; which thread's it was does not matter.
            self._limits.remove(threads)
            self._set()

    def _set(self) -> None:
        for library, before in zip(_libraries().per_process, self._before, strict=True):
            # threadpoolctl 3.8 ignores all threads but the first to set a number, silently.
            release = getattr(library, "clear_controlling_thread", lambda **_: None)
            release(force=True)
            library.set_num_threads(min(self._limits, default=before))
            release(force=True)


_PROCESS_LIMITS = _ProcessLimits()


class _Libraries(NamedTuple):
    """BLAS libraries by how they count their threads."""

    per_process: Sequence[LibController]  #: one number for the process
    per_thread: ThreadpoolController | None  #: a number for each thread (built on OpenMP)


@cache
def _libraries() -> _Libraries:
    """The BLAS libraries that are loaded at the first call. Finding them takes a millisecond, as long as a query."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return _Libraries((), None)
    from threadpoolctl import ThreadpoolController

    blas = ThreadpoolController().select(user_api="blas")
    per_thread = blas.select(threading_layer="openmp")
    per_process = []
    for library in blas.lib_controllers:
        if library not in per_thread.lib_controllers:
            per_process.append(library)
    return _Libraries(per_process, per_thread)
