"""Text of PDF files: pypdf, pypdfium2 and poppler's pdftotext on the same files.

    python benchmarks/pdf_readers.py FOLDER... [--pages 30] [--seconds 60]

Needs pypdf, pypdfium2, and pdftotext (Debian: poppler-utils). Each file is read in a process of its own, so that a
crash or a hang is counted, and costs no other file. The measures:

- files: read with text; without text; failed (an error, a crash, or more than --seconds).
- seconds: of reading alone, of all files.
- pairs: of all pairs of neighbouring words of pdftotext (in reading order, hyphens at line ends joined), the share
  that the reader has as well. Words run together, ligatures as one character, and columns in turns all lose pairs. Only
  files that both have read.
- long words: of all words, the share of letters only that have more than 25.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import subprocess
import time
from collections import Counter
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

_WORD = re.compile(r"\w+")
_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")
LONG_WORD = 25


def pypdf_text(path: str, pages: int) -> str:
    from pypdf import PdfReader

    reader = PdfReader(path)
    return "\n".join(page.extract_text() for page in reader.pages[:pages])


def pypdfium2_text(path: str, pages: int) -> str:
    import pypdfium2

    document = pypdfium2.PdfDocument(path)
    texts = []
    for number in range(min(pages, len(document))):
        text = document[number].get_textpage().get_text_bounded()
        # It marks a hyphen at the end of a line by a character of its own.
        texts.append(text.replace("\r\n", "\n").replace("\x02", "-\n"))
    return "\n".join(texts)


def pdftotext_text(path: str, pages: int) -> str:
    command = ["pdftotext", "-l", str(pages), "-enc", "UTF-8", path, "-"]
    return subprocess.run(command, check=True, capture_output=True).stdout.decode()


READERS = {"pypdf": pypdf_text, "pypdfium2": pypdfium2_text, "pdftotext": pdftotext_text}
REFERENCE = "pdftotext"


class Reading(NamedTuple):
    """What a reader made of a file; ``problem`` is empty if it was read."""

    text: str
    seconds: float
    megabytes: float
    problem: str


def _read(reader: str, path: str, pages: int, answers: Connection) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    try:
        text = READERS[reader](path, pages)
        problem = ""
    except Exception as e:
        text = ""
        problem = f"{type(e).__name__}: {e}"[:100]
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers.send(Reading(text, seconds, (peak - before) / 1024, problem))


def read(reader: str, path: str, pages: int, seconds: float) -> Reading:
    """Read a file in a process of its own."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_read, args=(reader, path, pages, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            process.kill()
            return Reading("", seconds, 0.0, f"more than {seconds:g} s")
        answer: Reading = ours.recv()
        return answer
    except EOFError:
        return Reading("", 0.0, 0.0, "ended its process")
    finally:
        process.join()


def words_of(text: str) -> list[str]:
    """The words of a text as it is read aloud: without hyphens at line ends, in lower case."""
    return _WORD.findall(_HYPHEN.sub("", text).lower())


def word_pairs(words: list[str]) -> Counter[tuple[str, str]]:
    """How often each pair of neighbouring words occurs."""
    return Counter(pairwise(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--pages", type=int, default=30, help="first pages of a file that are read")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for a file")
    parser.add_argument(
        "--output", type=Path, help="also write the figures of each file here, as JSON lines"
    )
    args = parser.parse_args()
    files = sorted(path for folder in args.folders for path in folder.rglob("*.pdf"))

    totals = {reader: Counter[str]() for reader in READERS}
    seconds = dict.fromkeys(READERS, 0.0)
    peaks = dict.fromkeys(READERS, 0.0)
    records = []
    for path in files:
        readings = {reader: read(reader, str(path), args.pages, args.seconds) for reader in READERS}
        expected = word_pairs(words_of(readings[REFERENCE].text))
        record: dict[str, object] = {"file": str(path)}
        for reader, reading in readings.items():
            words = words_of(reading.text)
            shared = (word_pairs(words) & expected).total()
            totals[reader]["failed"] += bool(reading.problem)
            totals[reader]["with text"] += bool(words)
            totals[reader]["without text"] += not words and not reading.problem
            totals[reader]["words"] += len(words)
            totals[reader]["long words"] += sum(
                len(word) > LONG_WORD and word.isalpha() for word in words
            )
            if not reading.problem:
                totals[reader]["pairs"] += expected.total()
                totals[reader]["shared pairs"] += shared
            seconds[reader] += reading.seconds
            peaks[reader] = max(peaks[reader], reading.megabytes)
            record[reader] = {
                "words": len(words),
                "pairs": round(shared / max(1, expected.total()), 4),
                "seconds": round(reading.seconds, 3),
                "problem": reading.problem,
            }
        records.append(record)

    print(f"{len(files)} files, at most {args.pages} pages of each\n")
    print(
        "| reader | with text | without | failed | words | pairs | long words | seconds | peak MB |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|")
    for reader, counts in totals.items():
        pairs = counts["shared pairs"] / max(1, counts["pairs"])
        long_words = counts["long words"] / max(1, counts["words"])
        print(
            f"| {reader} | {counts['with text']} | {counts['without text']} | {counts['failed']} | {counts['words']:,} "
            f"| {pairs:.4f} | {long_words:.5f} | {seconds[reader]:.1f} | {peaks[reader]:.0f} |"
        )
    if args.output:
        args.output.write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
