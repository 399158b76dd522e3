"""Base models of every supported family, their tokenizers, and refusals of the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.lexical_models import make_lexical
from support.pretraining import flags, tiny_base, tiny_corpus
from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models import load_encoder
from dupmae_ir.pretrain.__main__ import main
from dupmae_ir.pretrain.tokens import Vocabulary


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl")


def byte_level_tokenizer():
    """RoBERTa's kind: byte-level pairs, word beginnings marked with Ġ."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    t.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    t.train_from_iterator([" ".join(WORDS) + ", cats. dogs!"] * 3, trainer)
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=t,
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        bos_token="<s>",
        eos_token="</s>",
    )


def family(name, folder):
    """A tiny base of a family, saved."""
    if name == "bert":
        return tiny_base(folder)
    torch.manual_seed(0)
    if name == "distilbert":
        from transformers import DistilBertConfig, DistilBertForMaskedLM

        lm = DistilBertForMaskedLM(
            DistilBertConfig(
                vocab_size=29,
                dim=24,
                n_layers=2,
                n_heads=3,
                hidden_dim=48,
                max_position_embeddings=64,
                pad_token_id=0,
            )
        )
        tokenizer = tiny_tokenizer()
    else:
        from transformers import RobertaConfig, RobertaForMaskedLM

        tokenizer = byte_level_tokenizer()
        lm = RobertaForMaskedLM(
            RobertaConfig(
                vocab_size=len(tokenizer),
                hidden_size=24,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=48,
                max_position_embeddings=66,
                pad_token_id=1,
                bos_token_id=0,
                eos_token_id=2,
                type_vocab_size=1,
            )
        )
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["distilbert", "roberta"])
@pytest.mark.parametrize(
    "method",
    [
        pytest.param("retromae", marks=pytest.mark.nightly),
        "dupmae",
        pytest.param("cot-mae", marks=pytest.mark.nightly),
        pytest.param("cot-mote", marks=pytest.mark.nightly),
    ],
)
def test_other_families_train(name, method, corpus, tmp_path):
    base = family(name, tmp_path / "base")
    choices = {"context": "nearby", "causal-layers": 1} if method == "cot-mae" else {}
    assert main(flags(method, base, corpus, tmp_path / "out", steps=4, length=64, **choices)) == 0


def test_robertas_positions_start_after_the_padding_id(tmp_path):
    """The first position is row pad + 1 of the table."""
    from transformers import AutoModelForMaskedLM

    from dupmae_ir.models.heads.masked_lm import embed, max_input_length, position_rows

    lm = AutoModelForMaskedLM.from_pretrained(family("roberta", tmp_path / "base"))
    assert max_input_length(lm) == 64
    table = lm.roberta.embeddings.position_embeddings.weight
    torch.testing.assert_close(position_rows(lm, 5), table[2:7])
    lm.eval()
    ids = torch.tensor([[0, 9, 8, 2]])
    words = lm.roberta.embeddings.word_embeddings(ids)
    torch.testing.assert_close(embed(lm, ids), embed(lm, vectors=words))


def test_distilbert_embeds_vectors_like_ids(tmp_path):
    from transformers import AutoModelForMaskedLM

    from dupmae_ir.models.heads.masked_lm import embed

    lm = AutoModelForMaskedLM.from_pretrained(family("distilbert", tmp_path / "base")).eval()
    ids = torch.tensor([[3, 9, 8, 4]])
    torch.testing.assert_close(
        embed(lm, ids), embed(lm, vectors=lm.distilbert.embeddings.word_embeddings(ids))
    )


def test_pieces_that_continue_a_word():
    tokenizer = tiny_tokenizer()
    vocabulary = Vocabulary.of(tokenizer, 31, "tiny")
    assert [p for p, i in tokenizer.get_vocab().items() if vocabulary.continues[i]] == ["##s"]
    assert vocabulary.continues.shape == vocabulary.special.shape == (31,)
    byte_level = byte_level_tokenizer()
    vocabulary = Vocabulary.of(byte_level, len(byte_level), "bytes")
    ids = byte_level("quick foxes, cats", add_special_tokens=False)["input_ids"]
    pieces = byte_level.convert_ids_to_tokens(ids)
    begins = [p for p, i in zip(pieces, ids, strict=True) if not vocabulary.continues[i]]
    assert [p[0] for p in begins] == ["Ġ", "Ġ", ",", "Ġ"]
    assert not vocabulary.continues[vocabulary.mask]


def test_a_vocabulary_without_word_marks_is_refused():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    named = {f"{k}_token": f"[{k}]" for k in ("cls", "sep", "pad", "mask", "unk")}
    words = {v: i for i, v in enumerate([*named.values(), "a", "b"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="[unk]")), **named
    )
    with pytest.raises(CheckpointError, match="marks neither"):
        Vocabulary.of(tokenizer, 7, "letters")


def test_a_model_of_another_kind_is_refused(corpus, tmp_path, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    base = tmp_path / "gpt2"
    GPT2LMHeadModel(
        GPT2Config(vocab_size=29, n_embd=24, n_layer=1, n_head=2, n_positions=64)
    ).save_pretrained(base)
    tiny_tokenizer().save_pretrained(base)
    assert main(flags("retromae", base, corpus, tmp_path / "out")) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert str(base) in err[-1]
    assert "Traceback" not in "".join(err)


def test_a_continued_run_starts_from_both_experts(corpus, tmp_path, capsys):
    """--init-from with CoT-MoTE loads both experts, not the passage expert twice."""
    from dupmae_ir.models.experts import load_experts

    base = tiny_base(tmp_path / "base")
    assert main(flags("cot-mote", base, corpus, tmp_path / "a", steps=20)) == 0
    words = flags(
        "cot-mote", None, corpus, tmp_path / "b", steps=1, **{"init-from": tmp_path / "a"}
    )
    assert main([*words, "--learning-rate", "1e-12"]) == 0
    before, after = (load_experts(tmp_path / n)[0].state_dict() for n in ("a", "b"))
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)
    block = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.allclose(after[f"query.{block}"], after[f"passage.{block}"])


def test_a_head_is_calibrated_on_request(tmp_path):
    """--add-head: an encoder without a masked-LM head gets one, from at least 256 texts."""
    from transformers import BertModel

    base = tmp_path / "bare"
    torch.manual_seed(0)
    BertModel(tiny_config(hidden_act="gelu")).save_pretrained(base)
    tiny_tokenizer().save_pretrained(base)
    corpus = tiny_corpus(tmp_path / "many.jsonl", rows=200)
    words = flags("retromae", base, corpus, tmp_path / "out", steps=2, **{"add-head": True})
    assert main(words) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_model_with_lexical_words_keeps_them(corpus, tmp_path):
    base = make_lexical(tmp_path, normalize=2.5)
    trained = tmp_path / "trained"
    more = {"add-head": True, "steps": 2}
    large = tiny_corpus(tmp_path / "large.jsonl", rows=300)
    assert main(flags("retromae", base, large, trained, **more)) == 0
    before = load_encoder(base)
    after = load_encoder(trained)
    assert after.settings.ot == "lexical"
    texts = ["cats and dogs", "the sun"]
    ours = after.encode_documents(texts)
    theirs = before.encode_documents(texts)
    assert (ours.ot != theirs.ot).nnz == 0
    np.testing.assert_allclose(np.linalg.norm(ours.cls, axis=1), 2.5, rtol=1e-5)
    # DupMAE trains weights of words, so the model has those of its head.
    assert main(flags("dupmae", base, large, tmp_path / "dupmae", **more)) == 0
    assert load_encoder(tmp_path / "dupmae").settings.ot == "mlm"
