"""Texts measured in a model's word pieces: the same numbers as its encoder has, read without the model."""

from __future__ import annotations

import json

import pytest
import transformers
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.models import WEIGHTLESS, load_encoder
from dupmae_ir.models.names import MULTILINGUAL, is_installed
from dupmae_ir.models.word_pieces import read_word_pieces

TEXT = "The quick brown fox - 検索エンジン - jumps over internationalisation, e\u0301 and 🦊.\n\n  Twice."


def save(folder, model):
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def bert(folder):
    """A plain model; its configuration says nothing of lengths."""
    return save(folder, transformers.BertForMaskedLM(tiny_config()))


def roberta(folder):
    """Positions are counted from behind the padding's."""
    config = transformers.RobertaConfig(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        pad_token_id=1,
    )
    return save(folder, transformers.RobertaForMaskedLM(config))


def sentence_transformers(folder):
    """A length and a prompt of its own."""
    save(folder, transformers.BertModel(tiny_config(), add_pooling_layer=False))
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = []
    for number, (path, kind) in enumerate(kinds.items()):
        type_name = f"sentence_transformers.models.{kind}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": type_name})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    prompts = {"prompts": {"document": "fox: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


@pytest.mark.parametrize("make", [bert, roberta, sentence_transformers])
def test_the_length_is_the_encoders(tmp_path, make):
    folder = make(tmp_path)
    for chosen in (None, 16):
        encoder = load_encoder(folder, parts=("cls",), document_length=chosen)
        pieces = read_word_pieces(folder, chosen)
        prompts = [encoder.config.document_prompt]
        before = len(encoder.tokenizer(prompts, max_length=99)["input_ids"][0])
        assert pieces.length == encoder.settings.document_length - before


@pytest.mark.parametrize("lower", [True, False])
def test_a_folder_with_a_list_of_word_pieces_alone(tmp_path, lower):
    bert(tmp_path)
    expected = read_word_pieces(tmp_path)
    vocabulary = tiny_tokenizer().get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "tokenizer.json").unlink()
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = read_word_pieces(tmp_path)
    assert found.length == expected.length
    for text in (TEXT, "the CAT sat", ""):
        offsets = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert list(found.starts(text)) == [start for start, _ in offsets["offset_mapping"]]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    assert read_word_pieces(tmp_path) is None


@pytest.mark.parametrize("model", [None, "dupmae-small", "minilm", MULTILINGUAL])
def test_a_text_that_fits_is_read_to_its_end(model):
    if model in ("minilm", MULTILINGUAL) and not is_installed(model):
        pytest.skip(f"the package of {model} is not installed")
    encoder = load_encoder(model, parts=("cls",))
    pieces = read_word_pieces(model)
    text = " ".join([TEXT] * 40)
    for title in ("", "Foxes", "検索エンジンの歴史 " * 30):
        short = pieces.fitted(title)
        room = pieces.room(title, 10_000)
        start = pieces.starts(text)[20]
        passage = text[start : pieces.starts(text)[20 + room]]
        tokens = encoder.tokenizer.backend_tokenizer
        tokens.no_truncation()
        read = tokens.encode(f"{encoder.config.document_prompt}{short} {passage}")
        length = encoder.settings.document_length
        # The last characters may have several pieces, and some are kept for the borders.
        assert length - 16 <= len(read) <= length


def test_a_title_leaves_half_of_the_room():
    pieces = read_word_pieces(None)
    assert pieces.fitted("A short title") == "A short title"
    long = "words of a title " * 100
    short = pieces.fitted(long)
    assert long.startswith(short)
    assert len(pieces.starts(short)) <= pieces.length // 2 < len(pieces.starts(short)) + 3
    assert pieces.room(long, 300) == pieces.room(short, 300) >= pieces.length // 2 - 8
    assert pieces.room("A short title", 100) == 100
    assert pieces.room("", 300) > pieces.room("A short title", 300) > pieces.room(short, 300)


def test_the_separator_counts():
    plain = read_word_pieces(None).room("Title", 300)
    assert read_word_pieces(None, separator=" [SEP] [SEP] ").room("Title", 300) < plain


def test_models_without_a_length_have_no_measure(tmp_path):
    assert read_word_pieces(WEIGHTLESS) is None
    assert read_word_pieces(tmp_path / "missing") is None
    (tmp_path / "tokenizer.json").write_text("{")
    assert read_word_pieces(tmp_path) is None
