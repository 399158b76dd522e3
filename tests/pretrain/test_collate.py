"""The effect of each choice of a recipe on a batch; every test fails if the choice is ignored."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_tokenizer

from dupmae_ir.pretrain.collate import COLLATORS, Draw, usable
from dupmae_ir.pretrain.recipes import Recipe, resolve
from dupmae_ir.pretrain.tokens import Cutting, Vocabulary, count_words, load_corpus

CLS = 3
SEP = 4
PAD = 0
MASK = 5
ROWS = [
    {
        "text": [
            "the cat sat on the mat the cat sat on the mat",
            "dog runs fast over the lazy fox dog runs fast over",
        ],
        "queries": ["cat", "mat cat"],
        "next": "quick brown fox jumps",
    },
    {
        "text": [
            "heap queue sorts list tree graph heap queue sorts list tree graph heap queue",
            "the heap",
            "the queue",
        ],
        "queries": ["heap sorts"],
    },
    {"text": ["cats dogs mats cats dogs mats cats dogs mats"], "queries": ["dogs"]},
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collate")
    path = folder / "c.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    tokenizer = tiny_tokenizer()
    corpus = load_corpus(path, tokenizer, Cutting(length=62), folder / "cache", quiet=True)
    vocabulary = Vocabulary.of(tokenizer, 29, "tiny")
    return corpus, vocabulary, count_words(corpus, vocabulary.continues)


def collator(parts, method, preset="release", seed=0, **choices):
    corpus, vocabulary, counts = parts
    recipe = resolve(method, preset, Recipe(**{"length": 32, **choices}))
    return COLLATORS[method]([corpus], vocabulary, recipe, seed, [counts])


def draws(*rows, first=0):
    return [Draw(first + i, 0, row) for i, row in enumerate(rows)]


def many(row, number=400):
    return draws(*[row] * number)


def share_hidden(labels, ids):
    ordinary = (ids != PAD).sum() - 2 * len(ids)
    return float((labels != -100).sum() / ordinary)


def test_a_text_is_framed_by_special_tokens(parts):
    batch = collator(parts, "retromae")(draws(0, 4))
    ids = batch["ids"]
    mask = batch["attention_mask"]
    for row, number in enumerate((0, 4)):
        text = torch.from_numpy(parts[0].texts[number].astype(np.int64))
        length = len(text) + 2
        assert ids[row, :length].tolist() == [CLS, *text.tolist(), SEP]
        assert (ids[row, length:] == PAD).all()
        assert mask[row].sum() == length


def test_plain_mlm_has_the_encoder_inputs_of_retromae(parts):
    """The same draws, masks and replacements: the baseline differs only by the decoder."""
    ours, theirs = (collator(parts, method)(draws(0, 1, 2)) for method in ("mlm", "retromae"))
    assert set(ours) == {"encoder_ids", "attention_mask", "encoder_labels"}
    for key, value in ours.items():
        assert (value == theirs[key]).all(), key


def test_a_row_does_not_depend_on_the_rest_of_its_batch(parts):
    c = collator(parts, "dupmae")
    together = c(draws(0, 1, 2))
    alone = c([Draw(1, 0, 1)])
    length = int(alone["attention_mask"].sum())
    for key in ("encoder_ids", "encoder_labels", "ids"):
        assert (together[key][1, :length] == alone[key][0, :length]).all(), key
    assert (together["decoder_visible"][1, :length, :length] == alone["decoder_visible"][0]).all()
    assert not torch.equal(c([Draw(7, 0, 1)])["encoder_ids"], alone["encoder_ids"])
    assert not torch.equal(
        collator(parts, "dupmae", seed=1)([Draw(1, 0, 1)])["encoder_ids"], alone["encoder_ids"]
    )


@pytest.mark.parametrize("ratio", [0.15, 0.3, 0.6])
def test_encoder_ratio(parts, ratio):
    batch = collator(parts, "retromae", encoder_ratio=ratio, count_special=False)(many(2))
    assert share_hidden(batch["encoder_labels"], batch["ids"]) == pytest.approx(
        round(14 * ratio) / 14
    )


def test_count_special(parts):
    # Half of 14 ordinary tokens, or of these and two specials.
    for counted, expected in ((True, 8), (False, 7)):
        batch = collator(parts, "retromae", encoder_ratio=0.5, count_special=counted)(draws(2))
        assert int((batch["encoder_labels"] != -100).sum()) == expected


@pytest.mark.parametrize("ratio", [0.3, 0.8])
def test_decoder_ratio(parts, ratio):
    visible = collator(parts, "retromae", decoder_ratio=ratio)(many(2, 50))["decoder_visible"]
    inside = visible[:, :16, 1:15].float()
    off = ~torch.eye(16, dtype=torch.bool)[:, 1:15]
    assert 1 - inside[:, off].mean().item() == pytest.approx(round(16 * ratio) / 14, abs=0.03)
    basic = collator(parts, "retromae", decoding="basic", decoder_ratio=ratio, count_special=False)(
        draws(2)
    )
    assert int((basic["decoder_labels"] != -100).sum()) == round(14 * ratio)
    assert "decoder_visible" not in basic


def test_mask_replace(parts):
    always = collator(parts, "retromae", mask_replace=(1.0, 0.0, 0.0))(many(2))
    hidden = always["encoder_labels"] != -100
    assert (always["encoder_ids"][hidden] == MASK).all()
    never = collator(parts, "retromae", mask_replace=(0.0, 0.0, 1.0))(many(2))
    assert torch.equal(never["encoder_ids"], never["ids"])
    usual = collator(parts, "retromae")(many(2))
    hidden = usual["encoder_labels"] != -100
    assert (usual["encoder_ids"][hidden] == MASK).float().mean().item() == pytest.approx(
        0.8, abs=0.04
    )


def test_decoder_labels_are_all_but_the_ends(parts):
    batch = collator(parts, "retromae")(draws(0, 4))
    labels = batch["decoder_labels"]
    ids = batch["ids"]
    mask = batch["attention_mask"]
    for row in range(2):
        length = int(mask[row].sum())
        assert labels[row, 1 : length - 1].tolist() == ids[row, 1 : length - 1].tolist()
        assert labels[row, [0, length - 1]].tolist() == [-100, -100]
        assert (labels[row, length:] == -100).all()


@pytest.mark.parametrize(
    ("norm", "parts_of"), [("sum", lambda t: 1), ("length", len), ("set", lambda t: len(set(t)))]
)
def test_bow_norm(parts, norm, parts_of):
    batch = collator(parts, "dupmae", bow_norm=norm)(draws(0, 4))
    for row, number in enumerate((0, 4)):
        text = parts[0].texts[number].tolist()
        weights = dict(
            zip(batch["bow_ids"][row].tolist(), batch["bow_weights"][row].tolist(), strict=True)
        )
        weights = {k: v for k, v in weights.items() if v}
        assert weights == pytest.approx(dict.fromkeys(text, 1 / parts_of(text)), rel=1e-6)


def test_the_pooling_mask(parts):
    def pooling_mask(**choices):
        return collator(parts, "dupmae", **choices)(draws(2))

    usual = pooling_mask(ot_exclude_masked=False, ot_exclude_sep=False)
    assert usual["pooling_mask"][0].tolist() == [False] + [True] * 15
    without = pooling_mask(ot_exclude_masked=True, ot_exclude_sep=True)
    hidden = without["encoder_labels"][0] != -100
    assert without["pooling_mask"][0].tolist() == [0 < i < 15 and not hidden[i] for i in range(16)]


@pytest.mark.parametrize("length", [8, 12])
def test_length_and_truncation(parts, length):
    text = parts[0].texts[0].tolist()
    end = collator(parts, "retromae", length=length)(many(0, 50))["ids"]
    assert end.shape[1] == length
    assert (end[:, 1:-1] == torch.tensor(text[: length - 2])).all()
    anywhere = collator(parts, "retromae", length=length, truncation="window")(many(0, 400))["ids"]
    text = parts[0].texts[0].tolist()
    room = length - 2
    excess = max(0, len(text) - room)
    windows = {tuple(text[first : first + room]) for first in range(excess + 1)}
    kept = {tuple(row[(row != PAD) & (row != CLS) & (row != SEP)].tolist()) for row in anywhere}
    assert kept == windows


def test_master_tasks_that_are_off_have_no_inputs(parts):
    prefixes = {
        "mkp": "decoder_",
        "cmp": "overlap_",
        "npr": "next_",
        "doc2query": "query_",
        "gpt2": "gpt_",
    }
    for task, prefix in prefixes.items():
        batch = collator(parts, "master", tasks=(task,))(draws(0))
        others = [p for t, p in prefixes.items() if t != task]
        assert any(k.startswith(prefix) for k in batch)
        assert not any(k.startswith(p) for k in batch for p in others)


def test_complementary_ratio(parts):
    batch = collator(parts, "master", tasks=("cmp",), complementary_ratio=0.25)(draws(2, 1))
    shown = batch["overlap_encoder_labels"] != -100
    asked = batch["overlap_decoder_labels"] != -100
    ordinary = (batch["attention_mask"] == 1).clone()
    ordinary[:, 0] = False
    ordinary[torch.arange(2), batch["attention_mask"].sum(1) - 1] = False
    assert not (shown & asked).any()
    assert torch.equal(shown | asked, ordinary)
    assert int(shown[0].sum()) == round(0.25 * 14)


def test_keyword_weights(parts):
    """Rare words are hidden more often; under tf-idf a rare word that the text repeats even more."""
    corpus = parts[0]
    names = {v: k for k, v in tiny_tokenizer().get_vocab().items()}

    def shares(keyword, row):
        batch = collator(parts, "master", tasks=("mkp",), keyword=keyword)(many(row, 2000))
        hidden = (batch["decoder_labels"] != -100).float().mean(0)[1:-1]
        shown: dict[str, list[float]] = {}
        for i, piece in enumerate(corpus.texts[row].tolist()):
            shown.setdefault(names[piece], []).append(hidden[i].item())
        return {k: sum(v) / len(v) for k, v in shown.items()}

    inverse = shares("invfreq", 1)
    tfidf = shares("tfidf", 1)
    # Row 1 is "dog runs fast over the lazy fox dog runs fast over": "the" is everywhere, "lazy" is once.
    assert inverse["lazy"] > inverse["the"] + 0.15
    assert inverse["lazy"] > inverse["runs"]
    # "runs" and "lazy" are in as many texts; under tf-idf the one that the text repeats weighs more.
    assert tfidf["runs"] > tfidf["lazy"]


def test_npr_source(parts):
    corpus = parts[0]
    text, neighbour = (corpus.texts[i].tolist() for i in (0, 1))
    choices = {"tasks": ("npr",), "mask_replace": (0.0, 0.0, 1.0)}
    halves = collator(parts, "master", **choices)(draws(0))
    whole = collator(parts, "master", **choices, npr_source="neighbours")(draws(0, 5))

    def shown(batch, prefix, row=0):
        return batch[f"{prefix}_input_ids"][
            row, batch[f"{prefix}_attention_mask"][row] == 1
        ].tolist()[1:-1]

    assert shown(halves, "next_encoder") + shown(halves, "next_decoder") == text
    assert shown(whole, "next_encoder") == text
    assert shown(whole, "next_decoder") == neighbour
    # A text alone in its document is halved all the same.
    alone = corpus.texts[5].tolist()
    assert shown(whole, "next_encoder", 1) + shown(whole, "next_decoder", 1) == alone


def test_generated_texts(parts):
    corpus = parts[0]
    choices = {"tasks": ("doc2query", "gpt2"), "mask_replace": (0.0, 0.0, 1.0)}
    batch = collator(parts, "master", **choices)(draws(0, 2))
    first, second = (q.tolist() for q in corpus.queries_of(0))
    joined = batch["query_input_ids"][0, batch["query_attention_mask"][0] == 1].tolist()
    assert joined == [CLS, *first, SEP, *second, SEP]
    said = batch["gpt_input_ids"][:, 1:]
    following = corpus.following_of(0)[0].tolist()
    assert said[0, : len(following)].tolist() == following
    # Without a continuation the text stands in.
    text = corpus.texts[2].tolist()
    assert said[1, : len(text)].tolist() == text


def test_context(parts):
    corpus = parts[0]
    texts = [t.tolist() for t in (corpus.texts[i] for i in range(6))]

    def pairs(context, row, number=60):
        choices = {
            "context": context,
            "decoder_layers": 0,
            "causal_layers": 1,
            "mask_replace": (0.0, 0.0, 1.0),
        }
        batch = collator(parts, "cot-mae", **choices)(many(row, number))
        sides = [("input_ids", "attention_mask"), ("dec_head_input_ids", "dec_head_attention_mask")]
        shown = [
            [r[m == 1].tolist()[1:-1] for r, m in zip(batch[i], batch[m], strict=True)]
            for i, m in sides
        ]
        return list(zip(*shown, strict=True))

    assert pairs("nearby", 2, 1) == [(texts[2], texts[3]), (texts[3], texts[2])]
    assert pairs("nearby", 4, 1) == [(texts[4], texts[3]), (texts[3], texts[4])]
    partners = {tuple(b) for a, b in pairs("nearby", 3) if a == texts[3]}
    assert partners == {tuple(texts[2]), tuple(texts[4])}
    partners = {tuple(b) for a, b in pairs("random", 3) if a == texts[3]}
    assert partners == {tuple(texts[2]), tuple(texts[4])}
    # Alone in its document: two spans of three quarters.
    (a, b), back = pairs("overlap", 5, 1)
    assert back == (b, a)
    assert a == texts[5][: len(a)]
    assert b == texts[5][-len(b) :]
    assert len(a) + len(b) > len(texts[5])
    # The end of a text and what follows it; before the last one, what precedes it.
    for a, b in pairs("overlap", 2)[::2]:
        shared = len(b) - len(texts[3]) - len(texts[4])
        assert a == texts[2]
        assert 1 <= shared <= len(texts[2]) / 2
        assert b == texts[2][-shared:] + texts[3] + texts[4]
    for a, b in pairs("overlap", 4)[::2]:
        shared = len(b) - len(texts[2]) - len(texts[3])
        assert a == texts[4]
        assert 1 <= shared <= len(texts[4]) / 2
        assert b == texts[2] + texts[3] + texts[4][:shared]
    drawn = pairs("mixed", 3, 300)[::2]
    beside = [b for _, b in drawn if b in (texts[2], texts[4])]
    # Of the three kinds, overlapping spans alone are no text of the document.
    assert 160 < len(beside) < 240
    asked = pairs("query", 0)
    assert {tuple(b) for _, b in asked} == {tuple(q.tolist()) for q in corpus.queries_of(0)}
    assert {tuple(a) for a, _ in asked} == {tuple(texts[0])}


def test_cot_mae_decoders_that_are_off_have_no_inputs(parts):
    both = collator(parts, "cot-mae", causal_layers=1)(draws(0))
    assert {"enc_head_input_ids", "dec_head_input_ids"} <= both.keys()
    assert "dec_head_input_ids" not in collator(parts, "cot-mae")(draws(0))
    assert "enc_head_input_ids" not in collator(
        parts, "cot-mae", decoder_layers=0, causal_layers=1
    )(draws(0))


def test_cot_mote_reads_a_passage_and_a_query(parts):
    batch = collator(parts, "cot-mote", mask_replace=(0.0, 0.0, 1.0))(many(0, 40))
    rows = zip(batch["query_input_ids"], batch["query_attention_mask"], strict=True)
    queries = {tuple(ids[mask == 1].tolist()[1:-1]) for ids, mask in rows}
    assert queries == {tuple(q.tolist()) for q in parts[0].queries_of(0)}
    assert torch.equal(batch["dec_head_input_ids"], batch["query_input_ids"])
    assert (batch["query_labels"] != -100).any()


def test_usable_rows(parts):
    corpus = parts[0]

    def rows(method, **choices):
        return usable(corpus, method, resolve(method, "release", Recipe(**choices))).tolist()

    assert rows("retromae") == list(range(6))
    assert rows("cot-mae") == [0, 1, 2, 3, 4]
    assert rows("cot-mae", context="overlap") == list(range(6))
    assert rows("cot-mae", context="query") == rows("cot-mote") == rows("master") == [0, 2, 5]
    assert rows("master", tasks=("mkp",)) == list(range(6))
