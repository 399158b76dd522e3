"""Passages of a text: sentences, headings, overlap and captions."""

from __future__ import annotations

import itertools
import random
import re
import time

import pytest
from support.document_samples import paragraphs

from dupmae_ir.io.documents.passages import _TOKEN, EstimatedTokens, structured_passages
from dupmae_ir.io.documents.readers.extracted import Extracted, Heading


def spans(text, length=30, overlap=10, **more):
    extracted = Extracted(text, **more)
    return list(structured_passages(extracted, lambda heading: length, overlap, EstimatedTokens()))


def test_passages_cover_the_text_and_are_not_too_long():
    rng = random.Random(3)
    for _ in range(60):
        words = rng.choices(
            [
                "word",
                "a",
                "internationalisation",
                "x.y",
                "Zürich",
                "検索エンジン",
                "end.",
                "End!",
                "\n\n",
                "\n",
            ],
            k=400,
        )
        text = " ".join(words)
        headings = sorted(rng.sample(range(len(text)), 5))
        lines = rng.random() < 0.5
        found = spans(
            text, headings=[Heading(start, 1 + start % 3, "H") for start in headings], lines=lines
        )
        covered = set()
        for start, end, _ in found:
            assert text[start:end].strip() == text[start:end] != ""
            assert len(_TOKEN.findall(text[start:end])) <= 30
            covered |= set(range(start, end))
        assert all(text[i].isspace() for i in set(range(len(text))) - covered)
        assert [s for s, _, _ in found] == sorted(s for s, _, _ in found)
        assert len({(s, e) for s, e, _ in found}) == len(found)


def test_passages_end_at_sentences_and_overlap_by_whole_sentences():
    text = paragraphs("topic", 30)
    found = spans(text, 60, 25)
    assert all(
        text[start:end].startswith("The retriever") and text[start:end].endswith("vector.")
        for start, end, _ in found
    )
    assert all(later.start < earlier.end for earlier, later in itertools.pairwise(found))
    without = spans(text, 60, 0)
    assert all(later.start >= earlier.end for earlier, later in itertools.pairwise(without))
    assert len(without) < len(found)


def test_no_passage_begins_with_sentences_of_the_section_before():
    small = "One\n\nA first. Another.\n\n"
    long_sentence = "a b c d e f g h i j k l m n o p q r s t u v w x y z 1 2 3 4.\n\n"
    text = f"{small}{long_sentence * 3}"
    headings = [Heading(0, 1, "One"), Heading(len(small), 1, "Two")]
    found = spans(text, 36, 8, headings=headings)
    assert [heading for _, _, heading in found] == ["One", "Two", "Two", "Two"]
    assert found[1].start == len(small)


def test_headings_begin_passages_and_short_sections_are_joined():
    parts = [f"Part {i}\n\n{paragraphs(f'part {i}', 3)}\n\n" for i in range(4)]
    text = "".join(parts) + "".join(f"Tiny {i}\n\nOne.\n\n" for i in range(5))
    headings = [
        Heading(m.start(), 1 if m[1] == "Part" else 2, m[0])
        for m in re.finditer(r"(Part|Tiny) \d(?=\n)", text)
    ]
    found = spans(text, 80, 20, headings=headings)
    assert [heading for _, _, heading in found] == [
        "Part 0",
        "Part 1",
        "Part 2",
        "Part 3",
        "Part 3 > Tiny 0",
        "Part 3 > Tiny 4",
    ] or [heading for _, _, heading in found][:5] == [
        "Part 0",
        "Part 1",
        "Part 2",
        "Part 3",
        "Part 3 > Tiny 0",
    ]
    assert all(text[start:].startswith(("Part", "Tiny")) for start, _, _ in found)


def test_no_passage_has_the_end_of_a_long_section_and_the_next_one():
    for sentences in range(5, 40):
        parts = [f"Part {i}\n\n{paragraphs(f'part {i}', sentences)}\n\n" for i in range(3)]
        text = "".join(parts)
        starts = list(itertools.accumulate(map(len, parts), initial=0))[:3]
        found = spans(text, 200, 40, headings=[Heading(start, 1, "H") for start in starts])
        assert not [
            span for span in found if any(span.start < start < span.end for start in starts)
        ]


def test_the_heading_of_a_passage_is_the_one_that_most_of_it_is_under():
    text = "Guide\n\nShort.\n\nLabels\n\n" + "A label names a file system. " * 4
    (found,) = spans(
        text, 80, 20, headings=[Heading(0, 1, "Guide"), Heading(text.index("Labels"), 2, "Labels")]
    )
    assert found.heading == "Guide > Labels"


def test_a_caption_is_with_what_follows_it():
    text = "".join(f"name{i}\n\nThis is what name{i} means and does.\n\n" for i in range(12))
    for length in range(20, 60):
        found = [text[start:end] for start, end, _ in spans(text, length, 8)]
        assert all(passage.endswith("does.") for passage in found)
        assert sum(text[start:end].count("means") for start, end, _ in spans(text, length, 0)) == 12


@pytest.mark.parametrize(
    "text",
    [
        "x" * 300_000,
        "a " * 150_000,
        "\n" * 300_000 + "a",
        ". " * 150_000,
        "." + " " * 300_000 + "x",
        "a\n" * 150_000,
    ],
)
def test_strange_texts_are_split_in_linear_time(text):
    started = time.process_time()
    spans(text, 200, 40)
    spans(text, 200, 40, lines=True)
    assert time.process_time() - started < 5
