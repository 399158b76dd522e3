"""The weights of a safetensors file as numpy arrays, 8-bit ones decoded; without torch.

:mod:`dupmae_ir.models.checkpoints.compact` describes 8-bit weights and reads them for torch; a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from dupmae_ir.models.checkpoints.layout import COMPACT, WEIGHTS, is_compact

VERSION = "2"
METADATA = "dupmae_ir.compact"  #: key of the version in the file's metadata
SCALE, DIAGONAL = ".scale", ".diagonal"
GROUP = 64  #: weights with one factor
_KINDS: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "I8": np.int8}


class StoredWeights(Mapping[str, np.ndarray]):
    """Weights by name, decoded to float32 when they are asked for.

    Args:
        path: a safetensors file.
        compact: whether it is one of 8-bit weights.

    Raises ValueError for a file that cannot be read or is not of this format, KeyError for a tensor of other numbers.
    """

    def __init__(self, path: Path, compact: bool = False) -> None:
        try:
            with safe_open(path, framework="np") as file:
                version = (file.metadata() or {}).get(METADATA)
            read = deserialize(path.read_bytes())
        except SafetensorError as e:
            raise ValueError(f"{path}: {e}") from None
        if version != (VERSION if compact else None):
            raise ValueError(f"{path}: version {version} of 8-bit weights")
        self._stored = {name: _array(t["dtype"], t["shape"], t["data"]) for name, t in read}

    def __contains__(self, name: object) -> bool:
        return name in self._stored or f"{name}{DIAGONAL}" in self._stored

    def __iter__(self) -> Iterator[str]:
        for name in self._stored:
            if not (name.endswith(SCALE) and name.removesuffix(SCALE) in self._stored):
                yield name.removesuffix(DIAGONAL)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> np.ndarray:
        """The whole array, float32."""
        if (diagonal := self._stored.get(name + DIAGONAL)) is not None:
            return np.diag(diagonal.astype(np.float32))
        if len(scale := self._stored.get(name + SCALE, ())) and not len(self._stored[name]):
            return np.zeros((len(scale), self._stored[name].shape[1]), np.float32)
        return self.rows(name, slice(None))

    def rows(self, name: str, rows: Sequence[int] | slice) -> np.ndarray:
        """Some rows of a matrix, or numbers of a vector, float32."""
        codes = self._stored[name][rows]
        if name + SCALE not in self._stored:
            if codes.dtype == np.int8:
                raise ValueError(f"{name} has no {name}{SCALE}")
            return codes.astype(np.float32)
        found, factors = codes.astype(np.float32), self._stored[name + SCALE][rows]
        if codes.dtype != np.int8 or not np.isfinite(factors).all():
            raise ValueError(f"{name} is damaged")
        for group in range(factors.shape[1]):
            found[:, group * GROUP : (group + 1) * GROUP] *= factors[:, group : group + 1]
        return found


def _array(kind: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    if kind == "BF16":  # numpy has none; it is the upper half of float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, _KINDS[kind]).reshape(shape)


def read_stored(folder: Path) -> StoredWeights | None:
    """The weights of a model folder; None for files of other formats, or several files.

    Raises :class:`CheckpointError` for two formats beside each other, ValueError for a damaged file.
    """
    if is_compact(folder):
        return StoredWeights(folder / COMPACT, compact=True)
    found = [name for name in WEIGHTS if (folder / name).is_file()]
    return StoredWeights(folder / found[0]) if found == [WEIGHTS[0]] else None
