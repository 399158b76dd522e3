"""Options of ``dupmae-ir eval.answers``."""

from __future__ import annotations

from dataclasses import dataclass

from dupmae_ir.config import OutputOptions, option


@dataclass(frozen=True, kw_only=True)
class AnswersConfig(OutputOptions):
    """The share of queries that one of the first k passages answers: DPR's top-k accuracy, for NQ and TriviaQA. The
        collection
    is read once. Memory holds the run, the answers and 11 to 23 bytes per id of the collection (0.3 to 0.4 GB for
    Wikipedia's 21 million passages).

    Examples:
        python -m dupmae_ir.eval.answers --run nq.trec --answers dpr-nq/answers.jsonl --corpus dpr-nq/corpus.jsonl.gz
    """

    run: str = option(help="run file", group="input", metavar="FILE")
    answers: str = option(
        help='JSON lines of {"_id": query id, "answers": [...]}, or DPR\'s question<tab>[\'answer\', ...] lines '
        "(nq-test.qa.csv), whose ids are their line numbers from 0",
        group="input",
        metavar="FILE",
    )
    corpus: str = option(
        help="the collection that was searched, for example DPR's psgs_w100.tsv.gz", group="input", metavar="PATH"
    )
    k: tuple[int, ...] = option((1, 5, 20, 50, 100), "depths", group="accuracy", flag="-k", at_least=1)
    regex: bool = option(False, "answers are regular expressions", group="accuracy")
    per_query: bool = option(False, "also print the rank of each query's first answer", group="output")
    output: str | None = option(None, "file to write instead of printing", group="output", metavar="FILE")
