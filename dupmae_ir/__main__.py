"""``dupmae-ir VERB ...``, the same as ``python -m dupmae_ir.VERB ...``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from dupmae_ir import __version__
from dupmae_ir.registry import suggest

VERBS = {
    "demo": "encode, search and evaluate an embedded collection, to see it all work",
    "collections": "MS MARCO, DL, NQ, TriviaQA and BEIR by name: list, show, get (download and verify), check",
    "encode": "a collection to an index folder: dense vectors and impacts in one pass",
    "encode.merge": "the indexes of all shards of a collection to the index of the whole",
    "encode.queries": "topics to the encoded queries that stock Pyserini commands read",
    "encode.segment": "long documents to overlapping passages, for search --max-passage",
    "search": "topics against an index: dense, impact, or their exact sum (hybrid)",
    "search.fusion": "run files joined by ranks or scores",
    "eval": "runs against judgements: trec_eval's measures, side by side, significance, an HTML report",
    "eval.case": "one query, three lists: what [CLS], OT and their sum find, and by which terms",
    "eval.space": "queries and passages in the vector space: a t-SNE picture, KL and JS divergence",
    "eval.answers": "DPR's top-k answer accuracy of a run: NQ, TriviaQA",
    "eval.regressions": "the papers' numbers and our own, from download to verdict: run, list, report, accept",
    "index": "bm25: the baseline's index; show: what an index folder holds, and whether it is whole",
    "doctor": "what this machine has and lacks, with the fix for each",
    "pretrain": "text to a pre-trained checkpoint",
    "pretrain.augment": "a corpus with the queries or continuations that a model writes about its texts",
    "export": "a model folder for sentence-transformers",
    "finetune": "query-passage pairs to a fine-tuned checkpoint",
    "finetune.convert": "published training data (MS MARCO, DPR, BEIR, Tevatron, ...) to pairs or mined files",
    "finetune.mine": "hard negatives for every query, from BM25 or a model's own search",
    "finetune.cross_encoder": "mined negatives to a cross-encoder, the teacher of distillation",
    "finetune.score": "a cross-encoder's scores of every positive and negative",
}


def main(argv: list[str] | None = None) -> int:
    """Hand over to the verb's own ``main``; only that verb is imported."""
    verb, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if verb in ("-h", "--help", "help"):
        print(_help())
        return 0
    if verb in ("-V", "--version"):
        print(f"dupmae-ir {__version__}")
        return 0
    verbs = _there()
    if verb not in verbs:
        known = ", ".join(verbs)
        print(f"dupmae-ir: no command named {verb!r}; there are {known}.{suggest(verb, verbs)}", file=sys.stderr)
        return 2
    return _main_of(verb)(rest)


def _there() -> dict[str, str]:
    """The verbs whose code is in this installation."""
    return {verb: line for verb, line in VERBS.items() if _file(verb).is_file()}


def _file(verb: str) -> Path:
    path = Path(__file__).parent.joinpath(*verb.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def _main_of(verb: str) -> Callable[[list[str]], int]:
    suffix = ".__main__" if _file(verb).name == "__main__.py" else ""
    return importlib.import_module(f"dupmae_ir.{verb}{suffix}").main


def _help() -> str:
    verbs = _there()
    width = max(map(len, verbs)) + 2
    lines = "\n".join(f"  {verb.ljust(width)}{line}" for verb, line in verbs.items())
    return (
        "usage: dupmae-ir COMMAND ...\n\n"
        "Masked-auto-encoder retrievers as an extension of Pyserini.\n\n"
        f"commands:\n{lines}\n\n"
        "dupmae-ir COMMAND --help says more; python -m dupmae_ir.COMMAND is the same."
    )


if __name__ == "__main__":
    sys.exit(main())
