"""Every command that makes something, on a few made-up texts: for the contract of jobs and for the campaign."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.index_samples import first_segment
from support.rerank_samples import write_base, write_mined
from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

COMPUTE = ("--device", "cpu", "--threads", 1, "--dtype", "float32")
TRAINING = (
    "--batch-size",
    4,
    "--log-steps",
    1,
    "--save-steps",
    1,
    "--device",
    "cpu",
    "--threads",
    1,
)


@dataclass(frozen=True)
class Making:
    """A command that makes ``target`` in the folder ``out`` from the files of :func:`write_inputs` in ``inputs``."""

    name: str
    words: Callable[
        [Path, Path], list[Any]
    ]  #: (inputs, out) -> the command, without --quiet and --json
    target: str  #: in ``out``, or in the folder of the only segment of ``out``/index
    other: tuple[Any, ...] = ()  #: flags that change the contents
    named: str = ""  #: what an error about them must say: the flag and both values
    adds_to_index: bool = (
        False  #: the target is a part of the copy of an index in ``out``, or that copy
    )
    index: str = "index"  #: which index of ``inputs`` is copied
    in_segment: bool = False  #: the target is a part of the only segment of that copy

    def prepare(self, inputs: Path, out: Path) -> None:
        """Make the folder ``out``."""
        out.mkdir(parents=True)
        if self.adds_to_index:
            shutil.copytree(inputs / self.index, out / "index", symlinks=True)

    def made(self, out: Path) -> Path:
        """Where the target is."""
        return (first_segment(out / "index") if self.in_segment else out) / self.target


def _encode(inputs: Path, index: Path, *more: Any) -> list[Any]:
    corpus = inputs / "corpus.jsonl"
    return [
        "encode",
        "--model",
        "testing:hashing",
        "--corpus",
        corpus,
        "--index",
        index,
        "--scale",
        50,
        *more,
    ]


MAKING = [
    Making(
        "encode",
        lambda i, o: _encode(i, o / "made", "--window", 8),
        "made",
        ("--top-k", 7, "--scale", 20),
        "--top-k 32 (requested 7), --scale 50.0 (requested 20.0)",
    ),
    Making(
        "encode.merge",
        lambda i, o: ["encode.merge", i / "shard0", i / "shard1", "--index", o / "made"],
        "made",
    ),
    Making(
        "encode.passages",
        lambda i, o: [
            "encode.passages",
            "--corpus",
            i / "corpus.jsonl",
            "--output",
            o / "made.jsonl",
        ],
        "made.jsonl",
        ("--words", 3, "--stride", 2),
        "--words 200 (requested 3), --stride 100 (requested 2)",
    ),
    Making(
        "encode.queries",
        lambda i, o: [
            "encode.queries",
            "--index",
            i / "index",
            "--topics",
            i / "queries.tsv",
            "--output",
            o / "made",
        ],
        "made",
        ("--cap", 5),
        "--cap 1024 (requested 5)",
    ),
    Making(
        "index bm25",
        lambda i, o: ["index", "bm25", "--corpus", i / "corpus.jsonl", "--index", o / "made"],
        "made",
        ("--fields", "text"),
        '--fields [] (requested ["text"])',
    ),
    Making(
        "index dense",
        lambda _, o: ["index", "dense", "--index", o / "index"],
        "cls/rotated.bin",
        adds_to_index=True,
        in_segment=True,
    ),
    Making(
        "index postings",
        lambda _, o: ["index", "postings", "--index", o / "index"],
        "postings",
        adds_to_index=True,
        in_segment=True,
    ),
    Making(
        "index add",
        lambda i, o: ["index", "add", "--index", o / "index", "--corpus", i / "more.jsonl"],
        "index",
        adds_to_index=True,
    ),
    Making(
        "index update",
        lambda i, o: ["index", "update", "--index", o / "index", "--corpus", i / "changed.jsonl"],
        "index",
        adds_to_index=True,
    ),
    Making(
        "index sync",
        lambda i, o: ["index", "sync", "--index", o / "index", "--corpus", i / "changed.jsonl"],
        "index",
        adds_to_index=True,
    ),
    Making(
        "index delete",
        lambda _, o: ["index", "delete", "--index", o / "index", "--ids", "n3", "n5"],
        "index",
        adds_to_index=True,
    ),
    Making(
        "index compact",
        lambda _, o: ["index", "compact", o / "index"],
        "index",
        adds_to_index=True,
        index="segmented",
    ),
    Making(
        "finetune",
        lambda i, o: [
            *(
                "finetune",
                "--pairs",
                i / "pairs.jsonl",
                "--model",
                i / "masked_lm",
                "--output",
                o / "made",
                *TRAINING,
            ),
            *(
                "--steps",
                4,
                "--group-size",
                2,
                "--cls-dim",
                8,
                "--top-k",
                6,
                "--document-length",
                24,
            ),
        ],
        "made",
        ("--seed", 5),
        "--seed 0 (requested 5)",
    ),
    Making(
        "finetune.convert",
        lambda i, o: [
            "finetune.convert",
            "--format",
            "tsv",
            "--input",
            i / "pairs.tsv",
            "--output",
            o / "made.jsonl",
        ],
        "made.jsonl",
        ("--kind", "web"),
        '--kind "" (requested "web")',
    ),
    Making(
        "finetune.mine",
        lambda i, o: [
            "finetune.mine",
            "--pairs",
            i / "pairs.jsonl",
            "--by",
            "bm25",
            "--output",
            o / "made.jsonl",
        ],
        "made.jsonl",
        ("--depth", 3),
        "--depth 200 (requested 3)",
    ),
    Making(
        "finetune.mine by model",
        lambda i, o: [
            *(
                "finetune.mine",
                "--pairs",
                i / "pairs.jsonl",
                "--by",
                "model",
                "--output",
                o / "made.jsonl",
            ),
            *("--model", "testing:hashing", "--device", "cpu"),
        ],
        "made.jsonl",
        ("--depth", 3),
        "--depth 200 (requested 3)",
    ),
    Making(
        "finetune.mine by both",
        lambda i, o: [
            *(
                "finetune.mine",
                "--pairs",
                i / "pairs.jsonl",
                "--by",
                "both",
                "--output",
                o / "made.jsonl",
            ),
            *("--model", "testing:hashing", "--device", "cpu"),
        ],
        "made.jsonl",
        ("--k1", 1.5),
        "--k1 0.9 (requested 1.5)",
    ),
    Making(
        "finetune.score fused",
        lambda i, o: [
            *(
                "finetune.score",
                "--teacher",
                "fused",
                "--mined",
                i / "searched.jsonl",
                "--output",
                o / "made.jsonl",
            ),
            *("--model", "testing:hashing", *COMPUTE),
        ],
        "made.jsonl",
        ("--depth", 4),
        "--depth 1000 (requested 4)",
    ),
    Making(
        "finetune.score",
        lambda i, o: [
            *(
                "finetune.score",
                "--mined",
                i / "mined.jsonl",
                "--model",
                i / "teacher",
                "--output",
                o / "made.jsonl",
            ),
            *("--length", 40, *COMPUTE),
        ],
        "made.jsonl",
        ("--length", 30),
        "--length 40 (requested 30)",
    ),
    Making(
        "finetune.cross_encoder",
        lambda i, o: [
            *(
                "finetune.cross_encoder",
                "--mined",
                i / "mined.jsonl",
                "--model",
                i / "base",
                "--output",
                o / "made",
            ),
            *(*TRAINING, "--steps", 4, "--group-size", 3, "--length", 40),
        ],
        "made",
        ("--seed", 5),
        "--seed 42 (requested 5)",
    ),
    Making(
        "pretrain",
        lambda i, o: [
            *(
                "pretrain",
                "--method",
                "dupmae",
                "--model",
                i / "masked_lm",
                "--corpus",
                i / "corpus.jsonl",
            ),
            *(
                "--output",
                o / "made",
                "--cache",
                o / "cache",
                "--held-out",
                0,
                "--length",
                24,
                *TRAINING,
                "--steps",
                4,
            ),
        ],
        "made",
        ("--seed", 5),
        "--seed 42 (requested 5)",
    ),
    Making(
        "pretrain.tokenizer",
        lambda i, o: [
            *(
                "pretrain.tokenizer",
                "--corpus",
                i / "corpus.jsonl",
                "--output",
                o / "made",
                "--size",
                70,
            ),
            *("--layers", 1, "--width", 64, "--positions", 32),
        ],
        "made",
        ("--layers", 2),
        "--layers 1 (requested 2)",
    ),
    Making(
        "pretrain.augment",
        lambda i, o: [
            *(
                "pretrain.augment",
                "--task",
                "continuation",
                "--model",
                i / "gpt2",
                "--corpus",
                i / "corpus.jsonl",
            ),
            *(
                "--output",
                o / "made.jsonl",
                "--max-new-tokens",
                4,
                "--max-input",
                20,
                "--window",
                8,
                *COMPUTE,
            ),
        ],
        "made.jsonl",
        ("--temperature", 2),
        "--temperature 1.0 (requested 2.0)",
    ),
    Making(
        "export",
        lambda i, o: ["export", "--model", i / "retriever", "--output", o / "made"],
        "made",
        ("--part", "ot"),
        '--part "cls" (requested "ot")',
    ),
]


def write_inputs(folder: Path, run: Callable[[list[Any]], int]) -> Path:
    """What the commands of :data:`MAKING` read: texts, pairs, mined negatives, tiny models, an index and two shards.

    ``run`` runs a command. Nothing in the folder is written by the commands.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    write_mined(folder, queries=16, negatives=3)
    texts = [" ".join(rng.choices(WORDS, k=9)) for _ in range(24)]
    (folder / "queries.tsv").write_text(
        "".join(f"q{n}\t{text}\n" for n, text in enumerate(texts[:6]))
    )
    (folder / "pairs.tsv").write_text("".join(f"{text[:12]}\t{text}\n" for text in texts))
    pairs = [
        {"query": " ".join(t.split()[:2]), "positive": {"id": f"p{n}", "title": "", "text": t}}
        for n, t in enumerate(texts)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    documents = [
        {
            "_id": f"d{n}",
            "title": " ".join(rng.choices(WORDS, k=3)),
            "text": " ".join(rng.choices(WORDS, k=12)),
        }
        for n in range(60)
    ]
    (folder / "collection.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    _write_models(folder)
    assert (
        run(_encode(folder, folder / "index", "--quiet", "--no-postings")) == 0
    )  # index postings makes them
    mine = [
        "finetune.mine",
        "--pairs",
        folder / "pairs.jsonl",
        "--by",
        "model",
        "--model",
        "testing:hashing",
    ]
    assert run([*mine, "--device", "cpu", "--output", folder / "searched.jsonl", "--quiet"]) == 0
    _write_changes(folder, run)
    for n in range(2):
        assert (
            run(
                _encode(folder, folder / f"shard{n}", "--quiet", "--window", 8, "--shard", f"{n}/2")
            )
            == 0
        )
    return folder


def _write_changes(folder: Path, run: Callable[[list[Any]], int]) -> None:
    """Collections that differ from the index's, and an index with a second segment and a deleted document."""
    lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
    new = [
        json.dumps({"id": f"new{n}", "text": f"{WORDS[n]} and {WORDS[n + 1]}"}) + "\n"
        for n in range(3)
    ]
    (folder / "more.jsonl").write_text("".join(new))
    changed = json.dumps({"id": "n7", "text": "another text"}) + "\n"
    (folder / "changed.jsonl").write_text("".join([*lines[:7], changed, *lines[8:40], *new]))
    shutil.copytree(folder / "index", folder / "segmented", symlinks=True)
    assert (
        run(
            [
                "index",
                "add",
                "--index",
                folder / "segmented",
                "--corpus",
                folder / "more.jsonl",
                "--quiet",
            ]
        )
        == 0
    )
    assert run(["index", "delete", "--index", folder / "segmented", "--ids", "n1", "--quiet"]) == 0


def _write_models(folder: Path) -> None:
    import torch
    import transformers as tf

    from dupmae_ir.models.checkpoints.model_config import ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever

    write_base(folder / "base")
    write_base(folder / "teacher", labels=1)
    torch.manual_seed(1)
    tokenizer = tiny_tokenizer()
    lm = tf.BertForMaskedLM(tiny_config(initializer_range=0.05))
    lm.save_pretrained(folder / "masked_lm")
    tokenizer.save_pretrained(folder / "masked_lm")
    retriever = Retriever(lm, torch.nn.Linear(24, 8, bias=False), *excluded_ids(tokenizer)).eval()
    save_model(
        folder / "retriever",
        retriever,
        tokenizer,
        ModelConfig(document_length=32, query_length=16, top_k=6),
    )
    sizes = {"vocab_size": 29, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tf.GPT2LMHeadModel(tf.GPT2Config(**sizes, bos_token_id=4, eos_token_id=4)).save_pretrained(
        folder / "gpt2"
    )
    tokenizer.save_pretrained(folder / "gpt2")
