"""Write the prompt of a language model: a question, the passages that answer it, and where each one is from.

python examples/prompt_with_sources.py [FOLDER QUESTION]
"""

import sys
import tempfile
from pathlib import Path

from dupmae_ir import Searcher, build_index

LIBRARY = Path(tempfile.__file__).parent
QUESTION = "how do I wait until a lock is released?"


def prompt(searcher: Searcher, question: str, passages: int = 3) -> str:
    hits = searcher.search(question, hits=passages)
    lines = ["Answer from these passages and name the numbers of those you used.", ""]
    for number, shown in enumerate(searcher.describe(question, [hit.docid for hit in hits]), 1):
        where = shown.document.metadata
        lines += [
            f"[{number}] {where['path']}, {where.get('heading', shown.document.title)}",
            shown.document.text,
            "",
        ]
    return "\n".join([*lines, f"Question: {question}"])


def main(folder: str = "", question: str = QUESTION) -> None:
    index = Path(tempfile.mkdtemp()) / "index"
    corpus = folder or [LIBRARY / "asyncio" / name for name in ("locks.py", "timeouts.py")]
    build_index(corpus, index)
    print(prompt(Searcher.open(index), question))


if __name__ == "__main__":
    main(*sys.argv[1:])
