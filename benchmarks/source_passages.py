"""Folders of source code as passages: is a function cut that fits in one, is a line lost, and what does it cost?

    python benchmarks/source_passages.py FOLDER...       # compared with line-based reading, which uses no grammar

A passage has at most 250 word pieces of the embedded model. A function that fits, with its comments, counts as cut if
a passage begins inside it. Encoding time depends on the total of word pieces, headings included. The seconds are for
reading and cutting.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.io.documents.files import find_files
from dupmae_ir.io.documents.passages import TextSpan, structured_passages
from dupmae_ir.io.documents.readers.code import read_code
from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable
from dupmae_ir.io.documents.readers.registry import language_of
from dupmae_ir.io.documents.readers.source import read_source
from dupmae_ir.models.word_pieces import WordPieces, read_word_pieces

LENGTH = 250
OVERLAP = 40


@dataclass
class Counts:
    """What became of the files of a folder."""

    files: int = 0
    characters: int = 0
    passages: int = 0
    pieces: int = 0
    functions: int = 0
    """Definitions that fit in a passage."""
    cut: int = 0
    lost: int = 0
    """Files with a line that is in no passage."""
    seconds: float = 0.0

    def add(self, extracted: Extracted, spans: Sequence[TextSpan], pieces: WordPieces) -> None:
        """Count a file."""
        text = extracted.text
        self.files += 1
        self.characters += len(text)
        self.passages += len(spans)
        for span in spans:
            self.pieces += len(pieces.starts(f"{span.heading}\n{text[span.start : span.end]}"))
        self.lost += has_lost_lines(text, spans)
        starts = sorted(span.start for span in spans)
        for name, section in extracted.sections():
            if name and len(pieces.starts(text[section])) <= LENGTH:
                self.functions += 1
                # White space above the first statement is in no passage.
                begin = section.start + len(text[section]) - len(text[section].lstrip())
                self.cut += any(begin < start < section.stop for start in starts)


def has_lost_lines(text: str, spans: Sequence[TextSpan]) -> bool:
    """Whether anything but white space is between passages."""
    reached = 0
    for span in spans:
        if text[reached : span.start].strip():
            return True
        reached = max(reached, span.end)
    return bool(text[reached:].strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    args = parser.parse_args()
    pieces = read_word_pieces(None)
    assert pieces is not None  # the embedded model has a tokenizer
    print(
        "folder, languages: files, MB | by lines: passages, pieces, s | by grammar: passages,",
        end=" ",
    )
    print("pieces, s | definitions that fit, cut | files with lost lines")
    for folder in args.folders:
        print(report(folder, pieces), flush=True)


def report(folder: Path, pieces: WordPieces) -> str:
    """The line of a folder."""
    by_lines = Counts()
    by_grammar = Counts()
    languages = set()
    for file in find_files([folder]).files:
        language = language_of(file.name)
        if not language:
            continue
        data = file.path.read_bytes()
        try:
            measure(by_lines, data, "", pieces)
            measure(by_grammar, data, language, pieces)
        except Unreadable:
            continue
        languages.add(language)
    return (
        f"{folder.name}, {' '.join(sorted(languages))}: {by_grammar.files:,}, "
        f"{by_grammar.characters / 1e6:.2f} | {by_lines.passages:,}, {by_lines.pieces:,}, "
        f"{by_lines.seconds:.2f} | {by_grammar.passages:,}, {by_grammar.pieces:,}, "
        f"{by_grammar.seconds:.2f} | {by_grammar.functions:,}, {by_grammar.cut} | {by_grammar.lost}"
    )


def measure(counts: Counts, data: bytes, language: str, pieces: WordPieces) -> None:
    """Read and cut a file, by its grammar or without a language by lines, and count it."""
    began = time.perf_counter()
    extracted = read_source(data, language) if language else read_code(data)
    spans = list(structured_passages(extracted, lambda _: LENGTH, OVERLAP, pieces))
    counts.seconds += time.perf_counter() - began
    counts.add(extracted, spans, pieces)


if __name__ == "__main__":
    main()
