"""The trained model inside the package: size, card, both parts, learned expansions."""

from __future__ import annotations

import numpy as np
import pytest

from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.names import SMALL, embedded_folder

TEXTS = [
    "Penicillin was discovered in 1928 by Alexander Fleming, a Scottish physician.",
    "The heart pumps blood through the arteries of the body.",
    "Inflation is a rise of the general level of prices in an economy.",
    "A comet is an icy body that warms and releases gases when it passes close to the sun.",
]
QUERIES = [
    "who discovered penicillin",
    "what pumps blood",
    "rising prices",
    "icy bodies near the sun",
]


@pytest.fixture(scope="module")
def encoder():
    return TextEncoder.load(embedded_folder(SMALL))


def test_it_is_at_most_8_megabytes_and_its_card_says_what_it_is():
    folder = embedded_folder(SMALL)
    assert sum(p.stat().st_size for p in folder.iterdir()) <= 8e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    for text in (
        "Apache-2.0",
        "CC BY 4.0",
        "SciFact",
        "experiments/dupmae_small.py",
        "not the one to search with",
    ):
        assert text in card
    assert "| dupmae-small, sum |" in card


def test_it_has_both_parts_from_one_head(encoder):
    assert encoder.dim == 256
    assert len(encoder.terms) == 8192
    assert (encoder.settings.ot, encoder.settings.activation) == ("mlm", "log1p")


def test_each_part_and_the_sum_find_the_answers(encoder):
    documents = encoder.encode_documents(TEXTS)
    queries = encoder.encode_queries(QUERIES)
    dense = queries.cls @ documents.cls.T
    impact = (queries.ot @ documents.ot.T).toarray()
    for scores in (dense, impact, dense + impact):
        assert (scores.argmax(1) == np.arange(len(TEXTS))).mean() >= 0.75


def test_it_has_learned_words_that_the_text_does_not_contain(encoder):
    weights = encoder.encode_documents(TEXTS).ot
    own = encoder.tokenizer(TEXTS, add_special_tokens=False, truncation=True, max_length=126)[
        "input_ids"
    ]
    for row, ids in enumerate(own):
        found = set(weights[row].indices)
        assert len(found - set(ids)) > 20
        strongest = weights[row].indices[weights[row].data.argsort()[::-1][:3]]
        assert set(strongest) & set(ids)
