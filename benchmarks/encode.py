"""Encoding passages into both parts: ours in one pass against the encoders that people use, each as it is used.

    python benchmarks/encode.py [--shape base] [--passages 64] [--threads 2]

Rows 1 to 4, 6 and 7 of benchmarks/archive.md, and row 5 of its second table. The same weights (drawn; --shape) on the
same texts (MS MARCO's lengths), tokenisation included, every variant in every turn of one process:

  ours            TextEncoder.encode_documents: [CLS] (384) and the top 384 words, one pass; float32, bfloat16, and
                  bfloat16 without the OT part
  st              sentence-transformers: SparseEncoder (MLMTransformer, SpladePooling, 384 active dims) and then
                  SentenceTransformer (Transformer, Pooling cls, Dense 384), batch size 32; float32 and bfloat16
  pyserini        SpladeDocumentEncoder and AutoDocumentEncoder, batches of 32 in the order of the texts, as its encode
                  command does; float32

Gate: on all texts our float32 vectors equal the plain padded model's (the same words in the same order, weights to
1e-5, [CLS] to 1e-4) and sentence-transformers' on the exported model (weights and [CLS] to 1e-4, same words but for
ties at the border). Our bfloat16 keeps at least 95% of the words.

The machine's limit is measured in the same turns: the rate of a large bfloat16 matrix product (4096 x 3072 x 768, by
the faster of torch.mm and oneDNN with a packed weight).
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import harness
import numpy as np
import passages
import torch

from dupmae_ir.models.checkpoints.loading import load_model, quiet_transformers
from dupmae_ir.models.inference.cpu_linear import onednn_linear
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.pooling import strongest

OURS = {
    "ours, float32": ("float32", ("cls", "ot")),
    "ours, bfloat16": ("bfloat16", ("cls", "ot")),
    "ours, bfloat16, [CLS] alone": ("bfloat16", ("cls",)),
}
TOP_K = 384
BATCH = 32
SMALL_LAYERS = (
    "MiniLM's layers are small: attention, normalisation, the choice of words and Python take a larger share beside "
    "their products"
)


def sentence_transformers(
    folder: Path,
    dtype: torch.dtype,
    device: str = "cpu",
    batch: int = BATCH,
    compiled: bool = False,
) -> Any:
    """The two models of sentence-transformers; a call encodes the texts with one, then the other."""
    import sentence_transformers as st
    from sentence_transformers.models import Dense, Pooling, Transformer
    from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling

    with quiet_transformers():
        words = MLMTransformer(str(folder), max_seq_length=180)
        encoder = Transformer(str(folder), max_seq_length=180)
    sparse = st.SparseEncoder(
        modules=[words, SpladePooling("max")], device=device, max_active_dims=TOP_K
    )
    width = encoder.auto_model.config.hidden_size
    project = Dense(width, 384, bias=False, activation_function=torch.nn.Identity())
    retriever, _, _ = load_model(folder)
    project.linear.weight.data = retriever.side("document").projection.weight.data.clone()
    dense = st.SentenceTransformer(modules=[encoder, Pooling(width, "cls"), project], device=device)
    for model in (sparse, dense):
        model.to(dtype)
    if compiled:
        for module in (words, encoder):
            module.auto_model = torch.compile(module.auto_model, dynamic=True)

    def encode(texts: list[str]) -> tuple[Any, Any]:
        rows = sparse.encode(texts, batch_size=batch, show_progress_bar=False)
        return rows, dense.encode(
            texts, batch_size=batch, show_progress_bar=False, convert_to_tensor=True
        )

    return encode


def pyserini_encoders(folder: Path) -> Any:
    """Pyserini's two encoders, called as its encode command does."""
    # Imported by our module first, since Pyserini's own import wants the key of a paid service.
    from dupmae_ir.pyserini import DocumentEncoder  # noqa: F401 # isort: skip
    from pyserini.encode import AutoDocumentEncoder, SpladeDocumentEncoder

    with quiet_transformers():
        sparse = SpladeDocumentEncoder(str(folder), device="cpu")
        dense = AutoDocumentEncoder(str(folder), device="cpu")

    def encode(texts: list[str]) -> None:
        for start in range(0, len(texts), BATCH):
            sparse.encode(texts=texts[start : start + BATCH], max_length=180)
            dense.encode(texts=texts[start : start + BATCH], max_length=180)

    return encode


def plain_vectors(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] (n, 384), words and weights (n, 384) from transformers' own padded model, one text at a time."""
    model, tokenizer, _ = load_model(folder)
    side = model.side("document").eval()
    cls, words, weights = [], [], []
    with torch.inference_mode():
        for text in texts:
            ids = tokenizer([text], truncation=True, max_length=180, return_tensors="pt")[
                "input_ids"
            ]
            dense, sparse = side(ids, torch.ones_like(ids))
            top, values = strongest(sparse, TOP_K)
            cls.append(dense[0].numpy())
            words.append(top[0].numpy())
            weights.append(values[0].numpy())
    return np.stack(cls), np.stack(words), np.stack(weights)


def check(folder: Path, texts: list[str], encoders: dict[str, TextEncoder]) -> str:
    """The gate of the module's text; raises when it fails. Returns what was found."""
    cls, words, weights = plain_vectors(folder, texts)
    ours = encoders["ours, float32"].encode_documents(texts)
    assert ours.cls is not None
    assert ours.ot is not None
    assert np.abs(ours.cls - cls).max() < 1e-4
    off = 0.0
    for row, (ids, values) in enumerate(zip(words, weights, strict=True)):
        mine = ours.ot[row]
        order = np.lexsort((mine.indices, -mine.data))
        assert np.array_equal(np.sort(mine.indices), np.sort(ids)), (
            f"text {row}: other words than the plain form"
        )
        off = max(off, float(np.abs(mine.data[order] - values).max()))
    assert off < 1e-5, off
    half = encoders["ours, bfloat16"].encode_documents(texts)
    assert half.ot is not None
    shared = np.mean(
        [len(np.intersect1d(half.ot[r].indices, words[r])) / TOP_K for r in range(len(texts))]
    )
    assert shared > 0.95, shared
    return (
        f"float32: the same {TOP_K} words as the plain form for {len(texts)} of {len(texts)} texts, weights to "
        f"{off:.1e}; {_exported(folder, texts, ours)}; bfloat16 keeps {shared:.1%} of the words"
    )


def _exported(folder: Path, texts: list[str], ours: Any) -> str:
    """Our vectors against sentence-transformers' on the exported model."""
    import sentence_transformers as st

    from dupmae_ir.export import ExportConfig
    from dupmae_ir.export import run as export

    few = texts[:16]
    with tempfile.TemporaryDirectory() as out:
        for part in ("cls", "ot"):
            export(
                ExportConfig(model=str(folder), output=str(Path(out) / part), part=part, quiet=True)
            )
        dense = st.SentenceTransformer(str(Path(out) / "cls"), device="cpu").encode(few)
        sparse = st.SparseEncoder(str(Path(out) / "ot"), device="cpu").encode(
            few, convert_to_sparse_tensor=False
        )
    apart = float(np.abs(dense - ours.cls[: len(few)]).max())
    theirs = sparse.cpu().numpy()
    rows = ours.ot[: len(few)].toarray()
    both = (rows > 0) & (theirs > 0)
    assert both.sum() > 0.998 * (rows > 0).sum()
    weights_apart = float(np.abs(rows - theirs)[both].max())
    assert max(apart, weights_apart) < 1e-4
    return f"sentence-transformers' own vectors of the exported model to {max(apart, weights_apart):.1e}"


def product_rates() -> dict[str, Any]:
    """Large matrix products of the head's and the layers' kind, as work for the turns."""
    work = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, w = torch.randn(4096, 768).to(dtype), torch.randn(3072, 768).to(dtype)
        own = onednn_linear(w, torch.zeros(3072, dtype=dtype))
        name = str(dtype).removeprefix("torch.")
        work[f"product {name}, torch.mm"] = lambda x=x, w=w: torch.mm(x, w.t())
        work[f"product {name}, oneDNN packed"] = lambda x=x, own=own: own(x)
    return work


def useful_flops(encoder: TextEncoder, texts: list[str], ot: bool) -> float:
    """Multiplications and additions of the weights with real word pieces; attention and the rest not counted."""
    pieces = sum(len(p) for p in encoder._tokenise(texts, "", 180))
    lm = encoder.model.side("document").lm
    layers = sum(p.numel() for n, p in lm.bert.encoder.named_parameters() if p.dim() == 2)
    width, words = lm.config.hidden_size, lm.config.vocab_size
    head = (pieces - 2 * len(texts)) * (width * width + width * words) if ot else 0
    return 2.0 * (pieces * layers + head)


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--shape", choices=tuple(passages.SHAPES), default="base")
    parser.add_argument("--passages", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--profile", action="store_true", help="only print the operators that take our time"
    )
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        help="variants whose names hold one of these are left out",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = passages.passages(args.passages)
    with passages.model_folder(args.shape) as folder:
        encoders = {n: TextEncoder.load(folder, dtype=d, parts=p) for n, (d, p) in OURS.items()}
        if args.profile:
            for name, encoder in encoders.items():
                encoder.encode_documents(texts)
                harness.print_profile(name, lambda e=encoder: e.encode_documents(texts))
            return
        gate = check(folder, texts, encoders)
        print(gate, flush=True)
        work: dict[str, Any] = {
            n: lambda e=e: e.encode_documents(texts) for n, e in encoders.items()
        }
        st = {
            "float32": sentence_transformers(folder, torch.float32),
            "bfloat16": sentence_transformers(folder, torch.bfloat16),
        }
        work |= {f"sentence-transformers, {n}": lambda e=e: e(texts) for n, e in st.items()}
        pyserini = pyserini_encoders(folder)
        work["pyserini, float32"] = lambda: pyserini(texts)
        work |= product_rates()
        work = {n: w for n, w in work.items() if not any(word in n for word in args.without)}
        seconds = harness.in_turns(work, args.repeats)
        flops = useful_flops(encoders["ours, bfloat16"], texts, True)
        running = {n: e.running for n, e in encoders.items()}
    report(args, seconds, gate, flops, running)


def report(
    args: Any, seconds: dict[str, list[float]], gate: str, flops: float, running: dict[str, Any]
) -> None:
    size = 2.0 * 4096 * 3072 * 768
    turns = range(args.repeats)

    def rate(turn: int, dtype: str) -> float:
        return size / min(s[turn] for n, s in seconds.items() if n.startswith(f"product {dtype}"))

    share = statistics.median(
        100 * flops / seconds["ours, bfloat16"][t] / rate(t, "bfloat16") for t in turns
    )
    rates = {d: statistics.median(rate(t, d) / 1e9 for t in turns) for d in ("float32", "bfloat16")}
    bound = (
        f"here bfloat16 products run at {rates['bfloat16']:.0f} GFLOP/s and float32 at {rates['float32']:.0f}: "
        f"{rates['bfloat16'] / rates['float32']:.1f} to 1"
    )
    what = passages.NAMES[args.shape]
    claims = []

    def claim(
        row: int, text: str, ours: str, peer: str, goal: float, sense: str = ">=", note: str = ""
    ) -> None:
        if peer in seconds and ours in seconds:
            found = harness.speedup(seconds, peer, ours)
            claims.append(
                harness.Claim(
                    row, f"{text}, {what}", ours, peer, found, goal, sense, "x", gate, note
                )
            )

    claim(
        1,
        "encode passages, bfloat16 against float32",
        "ours, bfloat16",
        "sentence-transformers, float32",
        10,
        note=bound,
    )
    claim(
        2,
        "encode passages, both in bfloat16",
        "ours, bfloat16",
        "sentence-transformers, bfloat16",
        3,
    )
    claim(
        3,
        "encode passages, bfloat16 against float32",
        "ours, bfloat16",
        "pyserini, float32",
        15,
        note=bound,
    )
    claim(
        4,
        "encode passages, both in float32",
        "ours, float32",
        "sentence-transformers, float32",
        1.8,
    )
    of_machine = harness.Claim(
        5,
        f"share of the machine's bfloat16 product rate, {what}",
        "ours, bfloat16",
        "the machine",
        share,
        85,
        unit=" %",
        gate=gate,
        note=SMALL_LAYERS if args.shape != "base" else "",
        round=2,
    )
    if (
        args.shape == "base"
    ):  # by multiplications the head is 28 % on top of its layers, and 110 % of MiniLM's
        claims.append(dataclasses.replace(of_machine, row=6, round=1))
        claim(
            7,
            "[CLS] and OT over [CLS] alone",
            "ours, bfloat16, [CLS] alone",
            "ours, bfloat16",
            1.3,
            "<=",
        )
    claims.append(of_machine)
    middle = harness.middle(seconds)
    speeds = {n: args.passages / s for n, s in middle.items() if not n.startswith("product")}
    for name, speed in speeds.items():
        print(f"{name:<36} {speed:8.1f} documents/s")
    harness.report(
        "encode" if args.shape == "base" else f"encode_{args.shape}",
        claims,
        seconds,
        args,
        {
            "documents_per_second": speeds,
            "product_gflops": rates,
            "share_of_product_rate": share,
            "threads": args.threads,
            "passages": args.passages,
            "shape": args.shape,
            "running": running,
        },
        harness.bars(
            f"Passages with both parts, {what}, {args.threads} threads",
            "documents/s",
            speeds,
            tuple(OURS),
        ),
    )


if __name__ == "__main__":
    main()
