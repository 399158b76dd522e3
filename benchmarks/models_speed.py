"""Encoding with the shapes of BGE-M3 and ModernBERT, against FlagEmbedding and sentence-transformers on a CPU.

    python benchmarks/models_speed.py FOLDER [--shape small] [--texts 128] [--threads 2]   # FOLDER/scifact, ...
    python benchmarks/models_speed.py FOLDER --join 16 --texts 8    # texts of thousands of tokens

Random weights of each shape (--shape base: XLM-R-base and ModernBERT-base; small: 6 and 10 layers, d = 384), real texts
of four collections, titles of a few words to whole abstracts, tokenised on both sides, all in one process:

  token_weight   vectors and token weights: FlagEmbedding's BGEM3FlagModel; vectors alone: sentence-transformers
  ModernBERT     mean of all tokens, unit length: sentence-transformers

Everything is float32, batches of 32 (the peers sort texts by length too, and pad); "mixed" is our --dtype mixed, with
products in bfloat16. FlagEmbedding computes its first batch twice, to try whether it fits into memory: with few texts
that shows. It is not among the extras (`pip install FlagEmbedding`), and is left out and named when missing.

Gate: vectors equal the peers' to 1e-4, token weights FlagEmbedding's, with the same tokens, to 1e-4.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from dupmae_ir.io.collections import read_collection
from dupmae_ir.models import load_encoder

BATCH = 32
OURS = ("float32", "mixed")
SIZES = {
    "small": (
        {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1536,
        },
        {
            "hidden_size": 384,
            "num_hidden_layers": 10,
            "num_attention_heads": 6,
            "intermediate_size": 576,
        },
    ),
    "base": (
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        {
            "hidden_size": 768,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "intermediate_size": 1152,
        },
    ),
}
"""Sizes of XLM-R and ModernBERT."""
VOCABULARIES = (250_002, 50_368)
COLLECTIONS = ("scifact", "cranfield", "cacm", "vaswani")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def read_texts(folder: Path, count: int, join: int) -> list[str]:
    """``count`` texts of the four collections in turn, each of ``join`` documents."""
    rng = np.random.default_rng(0)
    pools = []
    for name in COLLECTIONS:
        documents = [document.joined(" ") for document in read_collection(folder / name)]
        pools.append(
            [
                documents[i]
                for i in rng.permutation(len(documents))[: -(-count // len(COLLECTIONS)) * join]
            ]
        )
    return [" ".join(pools[n % 4][n // 4 * join : (n // 4 + 1) * join]) for n in range(count)]


def train_tokenizers(texts: list[str], length: int) -> list[PreTrainedTokenizerFast]:
    """Unigram tokenizers with XLM-R's special tokens for each model, made from the texts.

    Pieces that occur in no text fill the vocabularies.
    """
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=8000, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    trained.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "cls": "<s>",
        "unk": "<unk>",
        "pad": "<pad>",
        "mask": "<mask>",
    }
    special = {f"{name}_token": token for name, token in names.items()}
    made = []
    for size in VOCABULARIES:
        described = json.loads(trained.to_str())
        pieces = described["model"]["vocab"]
        pieces += [[f"\u2581\u2581{n}", -99.0] for n in range(size - len(pieces))]
        backend = Tokenizer.from_str(json.dumps(described))
        made.append(
            PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=length, **special)
        )
    return made


def write_models(
    folder: Path, shape: str, tokenizers: list[PreTrainedTokenizerFast], length: int
) -> tuple[Path, Path]:
    """A folder with BGE-M3's files, and a sentence encoder."""
    torch.manual_seed(0)
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    xlm_r, modern = SIZES[shape]
    m3 = XLMRobertaConfig(
        vocab_size=VOCABULARIES[0],
        max_position_embeddings=length + 2,
        type_vocab_size=1,
        **ids,
        **xlm_r,
    )
    mb = ModernBertConfig(
        vocab_size=VOCABULARIES[1],
        max_position_embeddings=length,
        cls_token_id=0,
        sep_token_id=2,
        **ids,
        **modern,
    )
    folders = folder / "token_weight", folder / "modernbert"
    kinds = zip(
        folders,
        tokenizers,
        (XLMRobertaModel(m3), ModernBertModel(mb)),
        ("cls", "mean"),
        strict=True,
    )
    for path, tokenizer, model, pooling in kinds:
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
        types = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
        listed = [
            {
                "idx": n,
                "name": str(n),
                "path": where,
                "type": f"sentence_transformers.models.{name}",
            }
            for n, (where, name) in enumerate(types.items())
        ]
        width = model.config.hidden_size
        settings = {"word_embedding_dimension": width, "pooling_mode_cls_token": pooling == "cls"}
        files = {
            "modules.json": listed,
            "1_Pooling/config.json": settings | {"pooling_mode_mean_tokens": pooling == "mean"},
            "sentence_bert_config.json": {"max_seq_length": length, "do_lower_case": False},
        }
        for name in ("1_Pooling", "2_Normalize"):
            (path / name).mkdir()
        for name, content in files.items():
            (path / name).write_text(json.dumps(content))
    for name, rows in (("sparse", 1), ("colbert", int(m3.hidden_size))):
        layer = torch.nn.Linear(int(m3.hidden_size), rows)
        torch.save(layer.state_dict(), folders[0] / f"{name}_linear.pt")
    return folders


class Variants:
    """What is timed. Each returns vectors (n, d), and a token's weight by its id for each text if it has them."""

    def __init__(self, folders: tuple[Path, Path], texts: list[str], length: int) -> None:
        self.texts = texts
        self.length = length
        self.missing = dict[str, str]()
        self.work: dict[str, Callable[[], tuple[np.ndarray, list[dict[int, float]]]]] = {}
        m3, mb = map(str, folders)
        self._flag("token_weight, FlagEmbedding", m3)
        for dtype in OURS:
            self._ours(f"token_weight, ours, {dtype}", m3, ("cls", "ot"), dtype)
        for name, path in (("token_weight, vectors alone", m3), ("ModernBERT", mb)):
            self._peer(f"{name}, sentence-transformers", path)
            for dtype in OURS:
                self._ours(f"{name}, ours, {dtype}", path, ("cls",), dtype)

    def _flag(self, name: str, folder: str) -> None:
        try:
            from FlagEmbedding import BGEM3FlagModel
        except ImportError as e:
            self.missing[name] = str(e)
            print(f"{name} is left out: {e}; pip install FlagEmbedding", flush=True)
            return
        model = BGEM3FlagModel(folder, use_fp16=False, devices="cpu")

        def encode() -> tuple[np.ndarray, list[dict[int, float]]]:
            out = model.encode(
                self.texts, batch_size=BATCH, max_length=self.length, return_sparse=True
            )
            return out["dense_vecs"], [
                {int(i): float(w) for i, w in one.items()} for one in out["lexical_weights"]
            ]

        self.work[name] = encode

    def _peer(self, name: str, folder: str) -> None:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(folder, device="cpu")
        self.work[name] = lambda: (
            model.encode(self.texts, batch_size=BATCH, show_progress_bar=False),
            [],
        )

    def _ours(self, name: str, folder: str, parts: tuple[str, ...], dtype: str) -> None:
        encoder = load_encoder(
            folder, parts=parts, dtype=dtype, document_length=self.length, top_k=10_000
        )
        print(f"{name}: {encoder.running}", flush=True)

        def encode() -> tuple[np.ndarray, list[dict[int, float]]]:
            made = encoder.encode_documents(self.texts)
            rows = [] if made.ot is None else [made.ot[n] for n in range(len(self.texts))]
            return made.cls, [
                dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in rows
            ]

        self.work[name] = encode

    def check(self) -> str:
        """The gate; what was found."""
        found = {name: work() for name, work in self.work.items()}
        off = {"vectors": 0.0, "weights": 0.0}
        for peer, (vectors, weights) in found.items():
            family, _, program = peer.rpartition(", ")
            if program in OURS:
                continue
            ours = found[f"{family}, ours, float32"]
            off["vectors"] = max(off["vectors"], float(np.abs(ours[0] - vectors).max()))
            for mine, theirs in zip(ours[1], weights, strict=False):
                if mine.keys() != theirs.keys():
                    raise SystemExit(f"{peer}: other tokens have a weight")
                off["weights"] = max([off["weights"], *(abs(mine[i] - theirs[i]) for i in mine)])
        if max(off.values()) > 1e-4:
            raise SystemExit(f"{off}")
        vectors = f"vectors equal the peers' to {off['vectors']:.0e}"
        return f"{vectors}, token weights FlagEmbedding's to {off['weights']:.0e}"


def claims_of(
    wall: Mapping[str, list[float]],
    used: Mapping[str, list[float]],
    gate: str,
    shape: str,
    said: str,
) -> list[harness.Claim]:
    """Each of ours against its peer, by wall time."""
    claims = []
    for peer in wall:
        family, _, program = peer.rpartition(", ")
        for dtype in () if program in OURS else OURS:
            ours = f"{family}, ours, {dtype}"
            note = f"{harness.speedup(used, peer, ours):.3g}x by processor time; {said}"
            figure = harness.speedup(wall, peer, ours)
            what = f"encode, {family}, {shape}"
            claims.append(
                harness.Claim(
                    1, what, f"ours, {dtype}", program, figure, 3.0, gate=gate, note=note, round=4
                )
            )
    return claims


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=tuple(SIZES), default="small")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--join", type=int, default=1, help="documents of a text (default: 1)")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if args.threads > 1 else "false"
    texts = read_texts(args.folder, args.texts, args.join)
    length = 512 if args.join == 1 else 8192
    with tempfile.TemporaryDirectory() as work:
        tokenizers = train_tokenizers(texts, length)
        sizes = [len(ids) for ids in tokenizers[0](texts, truncation=True)["input_ids"]]
        lengths = f"{min(sizes)} to {max(sizes)} tokens, {sum(sizes) / len(sizes):.0f} on average"
        print(f"{len(texts)} texts: {lengths}", flush=True)
        variants = Variants(write_models(Path(work), args.shape, tokenizers, length), texts, length)
        gate = variants.check()
        print(gate, flush=True)
        wall, used = harness.both_times(variants.work, args.repeats, warm=0)
    said = f"{len(texts)} texts of {lengths}"
    claims = claims_of(wall, used, gate, f"{args.shape}{', long' * (args.join > 1)}", said)
    rows = [
        [n, *(f"{len(texts) / statistics.median(s[n]):.1f}" for s in (wall, used))] for n in wall
    ]
    details: dict[str, Any] = {
        "table": {"header": ["", "texts a second", "texts a processor-second"], "rows": rows},
        "threads": args.threads,
        "lengths": lengths,
        "missing": variants.missing,
    }
    name = f"models_speed{'_base' * (args.shape == 'base')}{'_long' * (args.join > 1)}"
    harness.report(
        name, claims, wall | {f"{n}, processor": s for n, s in used.items()}, args, details
    )


if __name__ == "__main__":
    main()
