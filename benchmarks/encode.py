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
from functools import partial
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
    splade_modules = [words, SpladePooling("max")]
    sparse = st.SparseEncoder(modules=splade_modules, device=device, max_active_dims=TOP_K)

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
        options = {"batch_size": batch, "show_progress_bar": False}
        rows = sparse.encode(texts, **options)
        # The sparse encoder leaves its rows in tensors, so the vectors are left there too.
        vectors = dense.encode(texts, convert_to_tensor=True, **options)
        return rows, vectors

    return encode


def pyserini_encoders(folder: Path) -> Any:
    """Pyserini's two encoders, called as its encode command does."""
    # Our module is imported first: without it, importing Pyserini requires the key of a paid service.
    from dupmae_ir.pyserini import DocumentEncoder  # noqa: F401 # isort: skip
    from pyserini.encode import AutoDocumentEncoder, SpladeDocumentEncoder

    with quiet_transformers():
        sparse = SpladeDocumentEncoder(str(folder), device="cpu")
        dense = AutoDocumentEncoder(str(folder), device="cpu")

    def encode(texts: list[str]) -> None:
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            sparse.encode(texts=batch, max_length=180)
            dense.encode(texts=batch, max_length=180)

    return encode


def plain_vectors(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] (n, 384), words and weights (n, 384) from transformers' own padded model, one text at a time."""
    model, tokenizer, _ = load_model(folder)
    side = model.side("document").eval()
    cls = []
    words = []
    weights = []
    with torch.inference_mode():
        for text in texts:
            tokens = tokenizer([text], truncation=True, max_length=180, return_tensors="pt")
            ids = tokens["input_ids"]
            dense, sparse = side(ids, torch.ones_like(ids))
            top, values = strongest(sparse, TOP_K)
            cls.append(dense[0].numpy())
            words.append(top[0].numpy())
            weights.append(values[0].numpy())
    return np.stack(cls), np.stack(words), np.stack(weights)


def check(folder: Path, texts: list[str], encoders: dict[str, TextEncoder]) -> str:
    """The gate of the module's docstring; raises if it fails. Returns a sentence with the differences."""
    cls, words, weights = plain_vectors(folder, texts)

    ours = encoders["ours, float32"].encode_documents(texts)
    assert ours.cls is not None
    assert ours.ot is not None
    assert np.abs(ours.cls - cls).max() < 1e-4
    max_difference = 0.0
    for number, (ids, values) in enumerate(zip(words, weights, strict=True)):
        row = ours.ot[number]
        assert np.array_equal(np.sort(row.indices), np.sort(ids)), (
            f"text {number}: other words than the plain form"
        )
        # The plain form's values are in descending order.
        order = np.lexsort((row.indices, -row.data))
        difference = float(np.abs(row.data[order] - values).max())
        max_difference = max(max_difference, difference)
    assert max_difference < 1e-5, max_difference

    half = encoders["ours, bfloat16"].encode_documents(texts)
    assert half.ot is not None
    shares = []
    for number, ids in enumerate(words):
        shared_words = np.intersect1d(half.ot[number].indices, ids)
        shares.append(len(shared_words) / TOP_K)
    shared = np.mean(shares)
    assert shared > 0.95, shared

    exported = _exported(folder, texts, ours)
    return (
        f"float32: the same {TOP_K} words as the plain form for {len(texts)} of {len(texts)} texts, weights to "
        f"{max_difference:.1e}; {exported}; bfloat16 keeps {shared:.1%} of the words"
    )


def _exported(folder: Path, texts: list[str], ours: Any) -> str:
    """Our vectors against sentence-transformers' on the exported model."""
    import sentence_transformers as st

    from dupmae_ir.export import ExportConfig
    from dupmae_ir.export import run as export

    sample = texts[:16]
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        for part in ("cls", "ot"):
            export(ExportConfig(model=str(folder), output=str(out / part), part=part, quiet=True))
        dense_encoder = st.SentenceTransformer(str(out / "cls"), device="cpu")
        sparse_encoder = st.SparseEncoder(str(out / "ot"), device="cpu")
        dense = dense_encoder.encode(sample)
        sparse = sparse_encoder.encode(sample, convert_to_sparse_tensor=False)

    our_weights = ours.ot[: len(sample)].toarray()
    their_weights = sparse.cpu().numpy()
    # Words with nearly equal weights at the border of the top 384 may differ.
    in_both = (our_weights > 0) & (their_weights > 0)
    assert in_both.sum() > 0.998 * (our_weights > 0).sum()

    cls_difference = float(np.abs(dense - ours.cls[: len(sample)]).max())
    weight_difference = float(np.abs(our_weights - their_weights)[in_both].max())
    difference = max(cls_difference, weight_difference)
    assert difference < 1e-4
    return f"sentence-transformers' own vectors of the exported model to {difference:.1e}"


def product_rates() -> dict[str, Any]:
    """Large matrix products of the head's and the layers' kind, as work for the turns."""
    work = {}
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(4096, 768).to(dtype)
        weight = torch.randn(3072, 768).to(dtype)
        packed = onednn_linear(weight, torch.zeros(3072, dtype=dtype))
        name = str(dtype).removeprefix("torch.")
        work[f"product {name}, torch.mm"] = partial(torch.mm, x, weight.t())
        work[f"product {name}, oneDNN packed"] = partial(packed, x)
    return work


def useful_flops(encoder: TextEncoder, texts: list[str], ot: bool) -> float:
    """Multiplications and additions of the weights with real word pieces; attention and the rest not counted."""
    pieces = sum(len(ids) for ids in encoder._tokenise(texts, "", 180))
    lm = encoder.model.side("document").lm
    layer_weights = sum(p.numel() for p in lm.bert.encoder.parameters() if p.dim() == 2)
    products = pieces * layer_weights
    if ot:
        width = lm.config.hidden_size
        head_weights = width * width + width * lm.config.vocab_size
        # [CLS] and [SEP] have no weights of words.
        products += (pieces - 2 * len(texts)) * head_weights
    return 2.0 * products


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
        encoders = {}
        for name, (dtype, parts) in OURS.items():
            encoders[name] = TextEncoder.load(folder, dtype=dtype, parts=parts)
        if args.profile:
            for name, encoder in encoders.items():
                encoder.encode_documents(texts)  # the first call is slow
                harness.print_profile(name, partial(encoder.encode_documents, texts))
            return

        gate = check(folder, texts, encoders)
        print(gate, flush=True)
        work: dict[str, Any] = {}
        for name, encoder in encoders.items():
            work[name] = partial(encoder.encode_documents, texts)
        for dtype in (torch.float32, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            peer = sentence_transformers(folder, dtype)
            work[f"sentence-transformers, {name}"] = partial(peer, texts)
        work["pyserini, float32"] = partial(pyserini_encoders(folder), texts)
        work |= product_rates()
        for name in list(work):
            if any(word in name for word in args.without):
                del work[name]

        seconds = harness.in_turns(work, args.repeats)
        flops = useful_flops(encoders["ours, bfloat16"], texts, True)
        running = {name: encoder.running for name, encoder in encoders.items()}
    report(args, seconds, gate, flops, running)


def product_flops_per_second(seconds: dict[str, list[float]], dtype: str) -> list[float]:
    """The rate of the faster product of each turn."""
    flops = 2.0 * 4096 * 3072 * 768
    variants = [times for name, times in seconds.items() if name.startswith(f"product {dtype}")]
    return [flops / min(turn) for turn in zip(*variants, strict=True)]


def report(
    args: Any, seconds: dict[str, list[float]], gate: str, flops: float, running: dict[str, Any]
) -> None:
    """Print the speeds and the claims, and save them."""
    turn_rates = {}
    rates = {}
    for dtype in ("float32", "bfloat16"):
        turn_rates[dtype] = product_flops_per_second(seconds, dtype)
        rates[dtype] = statistics.median(rate / 1e9 for rate in turn_rates[dtype])

    turns = zip(seconds["ours, bfloat16"], turn_rates["bfloat16"], strict=True)
    share = statistics.median(100 * flops / taken / rate for taken, rate in turns)

    bound = (
        f"here bfloat16 products run at {rates['bfloat16']:.0f} GFLOP/s and float32 at {rates['float32']:.0f}: "
        f"{rates['bfloat16'] / rates['float32']:.1f} to 1"
    )
    what = passages.NAMES[args.shape]
    claims = []

    def claim(
        row: int, text: str, ours: str, peer: str, goal: float, sense: str = ">=", note: str = ""
    ) -> None:
        # Variants left out by --without have no times.
        if peer in seconds and ours in seconds:
            ratio = harness.speedup(seconds, peer, ours)
            text = f"{text}, {what}"
            claims.append(harness.Claim(row, text, ours, peer, ratio, goal, sense, "x", gate, note))

    half = "ours, bfloat16"
    full = "ours, float32"
    mixed_dtypes = "encode passages, bfloat16 against float32"
    claim(1, mixed_dtypes, half, "sentence-transformers, float32", 10, note=bound)
    claim(2, "encode passages, both in bfloat16", half, "sentence-transformers, bfloat16", 3)
    claim(3, mixed_dtypes, half, "pyserini, float32", 15, note=bound)
    claim(4, "encode passages, both in float32", full, "sentence-transformers, float32", 1.8)
    of_machine = harness.Claim(
        5,
        f"share of the machine's bfloat16 product rate, {what}",
        half,
        "the machine",
        share,
        85,
        unit=" %",
        gate=gate,
        note=SMALL_LAYERS if args.shape != "base" else "",
        round=2,
    )
    # By multiplications the head is 28 % on top of its layers, and 110 % of MiniLM's.
    if args.shape == "base":
        claims.append(dataclasses.replace(of_machine, row=6, round=1))
        claim(7, "[CLS] and OT over [CLS] alone", f"{half}, [CLS] alone", half, 1.3, "<=")
    claims.append(of_machine)

    speeds = {}
    for name, taken in harness.middle(seconds).items():
        if not name.startswith("product"):
            speeds[name] = args.passages / taken
            print(f"{name:<36} {speeds[name]:8.1f} documents/s")

    details = {
        "documents_per_second": speeds,
        "product_gflops": rates,
        "share_of_product_rate": share,
        "threads": args.threads,
        "passages": args.passages,
        "shape": args.shape,
        "running": running,
    }
    title = f"Passages with both parts, {what}, {args.threads} threads"
    picture = harness.bars(title, "documents/s", speeds, tuple(OURS))
    name = "encode" if args.shape == "base" else f"encode_{args.shape}"
    harness.report(name, claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
