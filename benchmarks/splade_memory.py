"""Peak memory of encoding at SPLADE-v3's shape: sentence-transformers' SparseEncoder against this encoder.

    python benchmarks/splade_memory.py [--texts 32] [--length 512]

A BERT-base masked LM with random weights (12 layers, d = 768, V = 30,522), a batch of 32 texts of 512 word pieces, on a
CPU in float32. Each form runs in a process of its own. Two figures are its resident memory (Linux only): the
peak of the whole, libraries and weights included, and how far encoding rises above the loaded model.

Gate: both give the same 384 largest weights of each text to 1e-4; the status is 1 if they do not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

from dupmae_ir.console import table

TOP_K = 384
FORMS = ("sentence-transformers", "dupmae_ir")


def write_model(folder: Path) -> None:
    """The model folder, with the modules that both programs read."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {
        name: i for i, name in enumerate([*names, *(f"w{i}" for i in range(30522 - len(names)))])
    }
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {f"{name.strip('[]').lower()}_token": name for name in names}
    plain = folder.with_name("lm")
    BertForMaskedLM(BertConfig(initializer_range=0.05)).save_pretrained(plain)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=512, **special
    ).save_pretrained(plain)
    modules = [MLMTransformer(str(plain), max_seq_length=512), SpladePooling("max")]
    SparseEncoder(modules=modules, device="cpu", max_active_dims=TOP_K).save_pretrained(str(folder))


def encode(form: str, folder: str, texts: list[str], out: str) -> None:
    """Encode the texts, save the weights and print bytes: of the loaded model, at its peak, and at that of encoding."""

    def measured(name: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.split(f"{name}:")[1].split()[0])

    def loaded() -> None:
        sizes.extend([measured("VmRSS"), measured("VmHWM")])
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # the peak starts again from what is resident now

    sizes: list[int] = []
    if form == FORMS[0]:
        from sentence_transformers import SparseEncoder

        model = SparseEncoder(folder, device="cpu")
        loaded()
        found = model.encode_document(
            texts, batch_size=len(texts), convert_to_sparse_tensor=False
        ).numpy()
    else:
        from dupmae_ir.models import load_encoder

        encoder = load_encoder(folder, parts=("ot",), top_k=TOP_K, device="cpu")
        loaded()
        sparse = encoder.encode_documents(texts).ot
        assert sparse is not None
        found = sparse.toarray()
    np.save(out, found)
    print(*sizes, measured("VmHWM"))


def main() -> int:
    parser = harness.arguments(__doc__, repeats=1)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    texts = [
        " ".join(f"w{i}" for i in rng.integers(0, 30000, args.length)) for _ in range(args.texts)
    ]
    if args.form:
        encode(args.form, f"{args.folder}/model", texts, f"{args.folder}/{args.form}.npy")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder, "model"))
        peaks = []
        rises = []
        for form in FORMS:
            command = [sys.executable, __file__, "--form", form, "--folder", folder]
            command += ["--texts", str(args.texts), "--length", str(args.length)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            at_rest, loading, encoding = map(int, out.splitlines()[-1].split())
            peaks.append(max(loading, encoding))
            rises.append(encoding - at_rest)
        theirs, ours = (np.load(f"{folder}/{form}.npy") for form in FORMS)
    largest = np.abs(theirs - ours).max()
    rows = [
        [form, *(f"{size / 2**30:.2f} GiB" for size in sizes)]
        for form, *sizes in zip(FORMS, peaks, rises, strict=True)
    ]
    header = ["encoder", "peak of the process", "rise while encoding"]
    print(table(rows, header))
    print(
        f"ratios {peaks[0] / peaks[1]:.2f}, {rises[0] / rises[1]:.1f}; largest difference of a weight {largest:.1e}"
    )
    if not largest < 1e-4:
        return 1
    harness.report("splade_memory", [], {}, args, {"table": {"header": header, "rows": rows}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
