"""The weights of a safetensors file as numpy arrays, without torch; and the format of weights in 8 bits.

Weights in 8 bits are in ``model.compact.safetensors``, about half the size of float16.

Every matrix ``NAME`` (r, c) is stored as int8 codes of the same name and shape, and one bfloat16 factor for each 64
consecutive weights of a row, ``NAME.scale`` (r, c / 64 rounded up). A weight is its code times its factor, which is the
largest absolute weight of the group divided by 127, rounded up; it differs from the original by at most half of that.

Three kinds of matrices keep their weights: position and token type embeddings, which are added to every token; those
named by ``keep``, as float16; and diagonal ones, stored as the vector ``NAME.diagonal`` (r,) alone. A matrix of zeros
has no codes: ``NAME`` is (0, c). Vectors and integer tensors are stored as they are. The metadata contain
``dupmae_ir.compact``, the version of the format, which includes the size of a group.

The name differs from ``model.safetensors`` because a program that does not know the format would load the codes as
weights; this way it finds no weights at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import safe_open

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import COMPACT, WEIGHTS, is_compact

VERSION = "2"
METADATA = "dupmae_ir.compact"  #: key of the version in the file's metadata
SCALE = ".scale"
DIAGONAL = ".diagonal"
GROUP = 64  #: weights with one factor
_DTYPES: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
}


class CodedMatrix(NamedTuple):
    """A matrix in 8 bits."""

    codes: np.ndarray  #: (r, c) int8
    factors: np.ndarray  #: (r, groups) float32


class StoredWeights(Mapping[str, np.ndarray]):
    """Weights by name, decoded when they are read: floating-point and 8-bit weights as float32, others unchanged.

    Args:
        path: a safetensors file.
        compact: whether the file contains 8-bit weights.

    Raises :class:`CheckpointError` for a file that is damaged or of another format or version; damaged 8-bit weights
    are reported when they are read.
    """

    def __init__(self, path: Path, compact: bool = False) -> None:
        self.path = path
        try:
            with safe_open(path, framework="np") as file:
                version = (file.metadata() or {}).get(METADATA)
            self._stored = _read_arrays(path.read_bytes())
        except Exception as e:  # what safetensors raises depends on its version
            raise CheckpointError(
                f"{path}: not readable as safetensors: {one_line(e, 300)}"
            ) from None
        if compact and version is None:
            raise CheckpointError(
                f"{path}: not a file of 8-bit weights: its metadata have no {METADATA}"
            )
        # Codes under the name of an ordinary file would be loaded as weights, so the opposite mistake is refused too.
        expected_version = VERSION if compact else None
        if version != expected_version:
            raise CheckpointError(
                f"{path}: version {version} of 8-bit weights is not the one that is read here "
                f"({expected_version or 'none'}); export the model again"
            )

        self._factors: dict[str, np.ndarray] = {}
        if compact:
            for key in [name for name in self._stored if name.endswith(SCALE)]:
                self._factors[key.removesuffix(SCALE)] = self._stored.pop(key)
        for name in self._factors:
            if name not in self._stored:
                raise self._damage(f"has {name}{SCALE} but no {name}")

    def __contains__(self, name: object) -> bool:
        return name in self._stored or f"{name}{DIAGONAL}" in self._stored

    def __iter__(self) -> Iterator[str]:
        return (name.removesuffix(DIAGONAL) for name in self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, name: str) -> np.ndarray:
        """The complete array."""
        diagonal = self._stored.get(name + DIAGONAL)
        if diagonal is None:
            return self.rows(name, slice(None))
        if diagonal.ndim != 1 or diagonal.dtype.kind != "f" or not np.isfinite(diagonal).all():
            raise self._damage(f"{name}{DIAGONAL} must be a vector of finite numbers")
        return np.diag(diagonal.astype(np.float32))

    def rows(self, name: str, rows: Sequence[int] | slice) -> np.ndarray:
        """The selected rows of a matrix, or entries of a vector."""
        coded = self.coded(name)
        if coded is not None:
            return decode(coded.codes[rows], coded.factors[rows])
        selection = self._stored[name][rows]
        if selection.dtype.kind == "f":
            if not np.isfinite(selection).all():
                raise self._damage(f"{name} has a weight that is not finite")
            return selection.astype(np.float32)
        # The stored arrays are read-only views of the file's bytes.
        return selection.copy()

    def coded(self, name: str) -> CodedMatrix | None:
        """The codes and factors of a matrix in 8 bits; None for weights that are stored in another way."""
        codes = self._stored.get(name)
        factors = self._factors.get(name)
        if codes is None:
            return None
        if factors is None:
            if codes.dtype == np.int8:
                raise self._damage(f"{name} has no {name}{SCALE}")
            return None
        if codes.dtype != np.int8 or codes.ndim != 2:
            raise self._damage(
                f"{name} must be a matrix of int8, got {codes.ndim} dimensions of {codes.dtype}"
            )
        # A matrix of zeros has factors but no codes.
        row_count = len(codes) or len(factors)
        group_count = math.ceil(codes.shape[1] / GROUP)
        if factors.shape != (row_count, group_count) or not np.isfinite(factors).all():
            raise self._damage(f"{name}{SCALE} must be {row_count} x {group_count} finite numbers")
        if len(codes) == 0:
            codes = np.zeros((row_count, codes.shape[1]), np.int8)
        return CodedMatrix(codes, factors)

    def _damage(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}; the file is damaged")


def decode(codes: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """int8 codes (r, c) and float32 factors (r, groups) -> float32 weights (r, c)."""
    weights = codes.astype(np.float32)
    for group in range(factors.shape[1]):
        weights[:, group * GROUP : (group + 1) * GROUP] *= factors[:, group : group + 1]
    return weights


def _read_arrays(contents: bytes) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file that has been checked, as read-only views of its contents.

    ``safetensors.deserialize`` would copy each.
    """
    header_bytes = int.from_bytes(contents[:8], "little")
    header = json.loads(contents[8 : 8 + header_bytes])
    data = memoryview(contents)[8 + header_bytes :]
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            arrays[name] = _array(entry["dtype"], entry["shape"], data[start:end])
    return arrays


def _array(dtype: str, shape: Sequence[int], data: memoryview) -> np.ndarray:
    """A tensor of a safetensors file; bfloat16 becomes float32."""
    if dtype == "BF16":
        # numpy has no bfloat16, which is the upper half of a float32.
        upper_halves = np.frombuffer(data, np.uint16).astype(np.uint32)
        return (upper_halves << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, _DTYPES[dtype]).reshape(shape)


def read_stored(folder: Path) -> StoredWeights | None:
    """The weights of a model folder; None if they are in another format or in several files.

    Raises :class:`CheckpointError` for two formats in the same folder, and for a damaged file.
    """
    if is_compact(folder):
        return StoredWeights(folder / COMPACT, compact=True)
    weight_files = [name for name in WEIGHTS if (folder / name).is_file()]
    if weight_files != ["model.safetensors"]:
        return None
    return StoredWeights(folder / "model.safetensors")
