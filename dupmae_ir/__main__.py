"""``dupmae-ir COMMAND ...``, the same as ``python -m dupmae_ir.COMMAND ...``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from dupmae_ir import __version__
from dupmae_ir.console import guarded
from dupmae_ir.registry import suggest

COMMANDS = {
    "get started": {
        "demo": "encode, search and evaluate an embedded collection",
        "doctor": "check this machine and show how to fix problems",
    },
    "collections": {
        "collections": "list, download, verify and prepare MS MARCO, TREC DL, NQ, TriviaQA and BEIR"
    },
    "models": {"models": "list the models that commands accept by name; download one"},
    "index and search": {
        "encode": "encode a collection into an index: dense vectors and term impacts in one pass",
        "encode.merge": "merge the indexes of all shards of a collection",
        "encode.queries": "encode topics into the query files that stock Pyserini commands read",
        "encode.passages": "split long documents into overlapping passages, for search --max-passage",
        "index": "build BM25, quantised dense and postings indexes; show and verify an index",
        "search": "search an index: dense, impact, or their exact sum (hybrid)",
        "servers": "load an index into a search engine: PostgreSQL with pgvector, Qdrant, Milvus",
        "serve": "serve indexes: a REST API, a page that shows why each hit was found, tools for assistants (MCP)",
    },
    "evaluate": {
        "eval": "evaluate runs with trec_eval's measures, significance tests and an HTML report",
        "eval.answers": "compute DPR's top-k answer accuracy of a run (NQ, TriviaQA)",
        "eval.regressions": "reproduce published and recorded results, from download to verdict",
    },
    "train": {
        "pretrain": "pre-train a checkpoint on text",
        "pretrain.tokenizer": "train a tokenizer on a corpus, for pre-training from scratch",
        "pretrain.augment": "generate queries or continuations for the texts of a corpus",
        "finetune": "fine-tune a checkpoint on query-passage pairs",
        "finetune.convert": "convert published training data (MS MARCO, DPR, BEIR, Tevatron, ...)",
        "finetune.mine": "mine hard negatives with BM25 or with a model",
        "finetune.cross_encoder": "train a cross-encoder on mined negatives, as a teacher for distillation",
        "finetune.score": "score mined positives and negatives with a cross-encoder or with fused lists",
        "export": "export a model for sentence-transformers",
    },
}
"""Groups of the help page -> command -> one line of help."""

VERBS = {verb: line for group in COMMANDS.values() for verb, line in group.items()}


def main(argv: list[str] | None = None) -> int:
    """Import the named command, and no other, and run its own ``main``. Returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    verb, *rest = words or ["--help"]
    if verb in ("-h", "--help", "help"):
        print(_help())
        return 0
    if verb in ("-V", "--version"):
        print(f"dupmae-ir {__version__}")
        return 0
    if verb not in VERBS:
        known = ", ".join(VERBS)
        print(
            f"dupmae-ir: no command named {verb!r}; known: {known}.{suggest(verb, VERBS)}",
            file=sys.stderr,
        )
        return 2
    module = f"dupmae_ir.{verb}"
    if Path(__file__).parent.joinpath(*verb.split(".")).is_dir():
        module += ".__main__"
    # The import is guarded as well: it takes a second, and Ctrl-C should not end it with a traceback.
    return guarded(lambda: importlib.import_module(module).main(rest), f"dupmae-ir {verb}")


def _help() -> str:
    width = max(map(len, VERBS)) + 2
    paragraphs = [
        "usage: dupmae-ir COMMAND ...",
        "Train, index and search with masked-autoencoder retrievers on top of Pyserini.",
    ]
    for title, verbs in COMMANDS.items():
        lines = [f"{title}:"]
        for verb, line in verbs.items():
            lines.append(f"  {verb.ljust(width)}{line}")
        paragraphs.append("\n".join(lines))
    paragraphs.append(
        "Run dupmae-ir COMMAND --help for the options of a command; python -m dupmae_ir.COMMAND is equivalent."
    )
    return "\n\n".join(paragraphs)


if __name__ == "__main__":
    sys.exit(main())
