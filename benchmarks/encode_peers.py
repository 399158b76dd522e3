"""Encoding passages into both parts in one pass, against sentence-transformers' optimised backends in two.

    python benchmarks/encode_peers.py [--shape minilm] [--passages 48] [--threads 1]

Rows 1 to 3 of the second round in benchmarks/archive.md.
The same weights (drawn; --shape) on the same texts (MS MARCO's
lengths), tokenisation included. `dupmae-ir export` writes the [CLS] part as a SentenceTransformer and the OT part as a
SparseEncoder; the peers are these two, one after the other, batch size 32, sorted by length:

  OpenVINO            backend="openvino" in the precision that it chooses (bfloat16 where the processor has it)
  OpenVINO, float32   the same with INFERENCE_PRECISION_HINT f32
  ONNX int8           backend="onnx", dynamically quantised (export_dynamic_quantized_onnx_model); a reference
  ours                TextEncoder.encode_documents: [CLS] and the top 384 words in one pass. "mixed" has the products of
                      the layers in bfloat16 and everything else in float32 (--dtype mixed)

The backends need optimum, whose releases require versions of transformers and sentence-transformers below the pinned
ones, so they get an environment of their own: `pip install 'dupmae-ir[benchmarks-encode]'`, without constraints.txt. A
backend that is not installed is left out and named.

Gate: our float32 form and OpenVINO in float32 have the plain padded model's vectors ([CLS] to 1e-4 and 1e-3) and at
least 99 % of its top 384 words; our mixed form has 99 % of the words too. The share is reported for every form.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import passages
import torch

from dupmae_ir.export import ExportConfig
from dupmae_ir.export import run as export
from dupmae_ir.models.inference.encoder import TextEncoder
from encode import plain_vectors

TOP_K = 384
BATCH = 32
OURS = {
    "ours, float32": ("float32", ("cls", "ot")),
    "ours, mixed": ("mixed", ("cls", "ot")),
    "ours, bfloat16": ("bfloat16", ("cls", "ot")),
    "ours, float32, [CLS] alone": ("float32", ("cls",)),
    "ours, bfloat16, [CLS] alone": ("bfloat16", ("cls",)),
}
OPENVINO = "OpenVINO"
OPENVINO_32 = "OpenVINO, float32"
INT8 = "ONNX int8"
GOALS = {"minilm": (1, 4.0), "base": (2, 3.0)}
"""The row and the goal of each shape."""
MAX_CLS_DIFFERENCE = {"ours, float32": 1e-4, "ours, mixed": np.inf, OPENVINO_32: 1e-3}
"""The forms with a gate."""
MIN_SHARED_WORDS = 0.99


class Pair:
    """The two exported parts, opened with one backend."""

    def __init__(self, folder: Path, backend: str, kwargs: Mapping[str, Any]) -> None:
        import sentence_transformers as st

        settings = {"device": "cpu", "backend": backend, "model_kwargs": dict(kwargs)}
        self.dense = st.SentenceTransformer(str(folder / "cls"), **settings)
        self.sparse = st.SparseEncoder(str(folder / "ot"), max_active_dims=TOP_K, **settings)

    def cls(self, texts: list[str]) -> np.ndarray:
        """[CLS] (n, 384)."""
        return self.dense.encode(texts, batch_size=BATCH, show_progress_bar=False)

    def ot(self, texts: list[str]) -> torch.Tensor:
        """Weights of the top words, sparse (n, V)."""
        return self.sparse.encode(texts, batch_size=BATCH, show_progress_bar=False)

    def vectors_and_words(self, texts: list[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """[CLS] and the words of each text."""
        rows = self.ot(texts).to_dense().numpy()
        words = [np.flatnonzero(row > 0) for row in rows]
        assert all(len(ids) <= TOP_K for ids in words)
        return self.cls(texts), words


def openvino_pair(folder: Path, threads: int, precision: str | None) -> Pair:
    """OpenVINO's pair; ``precision`` None leaves the choice to it."""
    import optimum.intel  # noqa: F401 (named in the message when it is missing)

    config = {"INFERENCE_NUM_THREADS": str(threads), "PERFORMANCE_HINT": "LATENCY"}
    if precision:
        config["INFERENCE_PRECISION_HINT"] = precision
    return Pair(folder, "openvino", {"ov_config": config})


def int8_pair(folder: Path, threads: int) -> Pair:
    """ONNX Runtime's pair with weights and activations in 8 bits."""
    import onnxruntime
    import optimum.onnxruntime  # noqa: F401
    from sentence_transformers.backend import export_dynamic_quantized_onnx_model

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    kwargs = {"provider": "CPUExecutionProvider", "session_options": options}
    plain = Pair(folder, "onnx", kwargs)
    for part, model in (("cls", plain.dense), ("ot", plain.sparse)):
        export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder / part))
    file = "onnx/model_qint8_avx512_vnni.onnx"
    return Pair(folder, "onnx", kwargs | {"file_name": file})


def peers(folder: Path, threads: int) -> tuple[dict[str, Pair], dict[str, str]]:
    """The backends that can be opened here, and why others cannot."""
    makers: dict[str, Callable[[], Pair]] = {
        OPENVINO: lambda: openvino_pair(folder, threads, None),
        OPENVINO_32: lambda: openvino_pair(folder, threads, "f32"),
        INT8: lambda: int8_pair(folder, threads),
    }
    pairs = {}
    missing = {}
    for name, make in makers.items():
        try:
            pairs[name] = make()
        except ImportError as e:
            missing[name] = str(e)
            print(
                f"{name} is left out: {e}; pip install 'dupmae-ir[benchmarks-encode]'", flush=True
            )
    return pairs, missing


def agreement(expected: np.ndarray, words: list[np.ndarray]) -> float:
    """Share of the plain model's words (n, 384) that another form has."""
    shares = []
    for expected_ids, ids in zip(expected, words, strict=True):
        shares.append(len(np.intersect1d(expected_ids, ids)) / len(expected_ids))
    return float(np.mean(shares))


def check(
    folder: Path, texts: list[str], encoders: Mapping[str, TextEncoder], pairs: Mapping[str, Pair]
) -> tuple[str, dict[str, float]]:
    """The gate, and the share of the plain model's words that each form has."""
    expected_cls, expected_words, _ = plain_vectors(folder, texts)
    shares = {}
    differences = {}
    for name, encoder in encoders.items():
        if "[CLS]" in name:  # without words
            continue
        encoded = encoder.encode_documents(texts)
        assert encoded.cls is not None
        assert encoded.ot is not None
        words = [encoded.ot[row].indices for row in range(len(texts))]
        differences[name] = float(np.abs(encoded.cls - expected_cls).max())
        shares[name] = agreement(expected_words, words)
    for name, pair in pairs.items():
        cls, words = pair.vectors_and_words(texts)
        differences[name] = float(np.abs(cls - expected_cls).max())
        shares[name] = agreement(expected_words, words)

    for name, max_difference in MAX_CLS_DIFFERENCE.items():
        if name not in differences:  # a backend that is not installed
            continue
        if differences[name] > max_difference or shares[name] < MIN_SHARED_WORDS:
            raise SystemExit(
                f"{name}: [CLS] differs by {differences[name]:.1e}, {shares[name]:.1%} of the words are the same"
            )
    text = ", ".join(f"{name} {shares[name]:.1%} (to {differences[name]:.1g})" for name in shares)
    return (
        f"share of the plain float32 model's top {TOP_K} words, and the difference of [CLS]: {text}",
        shares,
    )


def two_passes(
    seconds: dict[str, list[float]], pairs: Mapping[str, Pair]
) -> dict[str, list[float]]:
    """``seconds`` with the sum of each backend's two parts."""
    sums = {}
    for name in pairs:
        turns = zip(seconds[f"{name}, dense"], seconds[f"{name}, sparse"], strict=True)
        sums[f"{name}, dense + sparse"] = [dense + sparse for dense, sparse in turns]
    return seconds | sums


def claims_of(
    shape: str, wall: dict[str, Any], used: dict[str, Any], gate: str, shares: Mapping[str, float]
) -> list[harness.Claim]:
    """The rows that these seconds allow."""
    claims = []

    def claim(row: int, what: str, ours: str, peer: str, goal: float, note: str) -> None:
        if peer not in used:  # its backend is not installed
            return
        ratio = harness.speedup(used, peer, ours)
        note = f"{harness.speedup(wall, peer, ours):.3g}x by wall time; {note}"
        text = f"{what}, {passages.NAMES[shape]}, processor time"
        claims.append(
            harness.Claim(row, text, ours, peer, ratio, goal, gate=gate, note=note, round=2)
        )

    layers_share = harness.speedup(used, "ours, float32, [CLS] alone", "ours, float32")
    if shape in GOALS:
        row, goal = GOALS[shape]
        for backend, ours in ((OPENVINO, "ours, mixed"), (OPENVINO_32, "ours, float32")):
            note = (
                f"the layers take {layers_share:.0%} of our time, the product with the vocabulary and the choice of "
                f"words the rest; the peer keeps {shares.get(backend, 0):.1%} of the words"
            )
            peer = f"{backend}, dense + sparse"
            if peer in used:
                ratio = harness.speedup(used, peer, "ours, bfloat16")
                note += f"; our bfloat16 form, with {shares['ours, bfloat16']:.1%} of the words, is {ratio:.3g}x"
            claim(row, "encode both parts, 99 % of the words", ours, peer, goal, note)

    if shape == "minilm":
        note = "products in the same dtype on both sides; the rest is attention, normalisation and tokenising"
        for dtype, backend in (("bfloat16", OPENVINO), ("float32", OPENVINO_32)):
            ours = f"ours, {dtype}, [CLS] alone"
            claim(3, "encode [CLS] alone", ours, f"{backend}, dense", 1.0, note)
    return claims


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--shape", choices=tuple(passages.SHAPES), default="minilm")
    parser.add_argument("--passages", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if args.threads > 1 else "false"
    texts = passages.passages(args.passages)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(passages.model_folder(args.shape))
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for part in ("cls", "ot"):
            export(ExportConfig(model=str(folder), output=str(out / part), part=part, quiet=True))
        encoders = {}
        for name, (dtype, parts) in OURS.items():
            encoders[name] = TextEncoder.load(folder, dtype=dtype, parts=parts)
        pairs, missing = peers(out, args.threads)
        gate, shares = check(folder, texts, encoders, pairs)
        print(gate, flush=True)

        work: dict[str, Any] = {}
        for name, encoder in encoders.items():
            work[name] = partial(encoder.encode_documents, texts)
        for name, pair in pairs.items():
            work[f"{name}, dense"] = partial(pair.cls, texts)
            work[f"{name}, sparse"] = partial(pair.ot, texts)
        wall, used = harness.both_times(work, args.repeats)
        wall = two_passes(wall, pairs)
        used = two_passes(used, pairs)

    claims = claims_of(args.shape, wall, used, gate, shares)
    rows = []
    speeds = {}
    for name in used:
        speed = args.passages / statistics.median(used[name])
        wall_speed = args.passages / statistics.median(wall[name])
        rows.append([name, f"{speed:.1f}", f"{wall_speed:.1f}"])
        # The picture has no bar for the sparse part alone.
        if not name.endswith(", sparse"):
            speeds[name] = speed
    details = {
        "table": {"header": ["", "passages a processor-second", "passages a second"], "rows": rows},
        "words_shared": shares,
        "threads": args.threads,
        "passages": args.passages,
        "missing": missing,
        "running": {name: encoder.running for name, encoder in encoders.items()},
    }
    title = f"Encoding passages, {passages.NAMES[args.shape]}, {args.threads} thread(s)"
    picture = harness.bars(title, "passages a processor-second", speeds, tuple(OURS))
    name = "encode_peers" if args.shape == "minilm" else f"encode_peers_{args.shape}"
    seconds = wall | {f"{variant}, processor": taken for variant, taken in used.items()}
    harness.report(name, claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
