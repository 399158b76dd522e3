"""Texts generated for a corpus: equal for every batch size and order, and after kill -9."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

from dupmae_ir.errors import CheckpointError
from dupmae_ir.pretrain.augment import GeneratorConfig, main
from dupmae_ir.pretrain.corpus import read_texts
from dupmae_ir.pretrain.generation import Generator, read_rows

ROOT = Path(__file__).parents[2]


def tokenizer(**special: str) -> Any:
    """Splits at spaces; only <unk> is special by default."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = ["<unk>", "<pad>", "</s>", *WORDS]
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(pieces)}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=t, unk_token="<unk>", **special)


@pytest.fixture(scope="session")
def t5(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    config = tf.T5Config(
        vocab_size=3 + len(WORDS),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        tie_word_embeddings=False,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = tf.T5ForConditionalGeneration(config)
    # Flatter than a random model's distribution, so that samples differ.
    model.lm_head.weight.data *= 0.3
    model.save_pretrained(folder)
    tokenizer(pad_token="<pad>", eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory) -> Path:
    """Without a padding token, like the real GPT-2."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(1)
    config = tf.GPT2Config(
        vocab_size=3 + len(WORDS),
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
        bos_token_id=2,
        eos_token_id=2,
    )
    tf.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer(eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Texts of 1 to 12 words, every ninth empty."""
    path = tmp_path / "corpus.jsonl"
    rows = [
        {
            "_id": f"d{i}",
            "title": WORDS[i % 20] if i % 2 else "",
            "text": " ".join(WORDS[(i * j + j) % 20] for j in range(i % 12 + 1)) if i % 9 else "",
        }
        for i in range(30)
    ]
    rows[0]["title"] = ""
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


NAMES = ["cut.jsonl.gz", "cut.jsonl.gz.meta.json", "whole.jsonl.gz", "whole.jsonl.gz.meta.json"]
SHORT = (
    "--max-new-tokens",
    6,
    "--max-input",
    20,
    "--window",
    7,
    "--dtype",
    "float32",
    "--device",
    "cpu",
    "--quiet",
)


def words(task: str, model: Path, source: Path, output: Path, *more: Any) -> list[str]:
    given = (
        "--task",
        task,
        "--model",
        model,
        "--corpus",
        source,
        "--output",
        output,
        *SHORT,
        *more,
    )
    return [str(w) for w in given]


def augmented(*given: Any) -> list[dict[str, Any]]:
    assert main(words(*given)) == 0
    return list(read_rows(given[3]))


def refused(capsys: Any, *given: Any) -> str:
    assert main(words(*given)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def texts(rows: list[dict[str, Any]], field: str) -> list[list[str]]:
    return [row.get(field, []) for row in rows]


def test_queries_are_added_to_the_rows(t5, corpus, tmp_path):
    rows = augmented("queries", t5, corpus, tmp_path / "out.jsonl", "--per-text", 3)
    given = list(read_rows(corpus))
    assert [{k: r[k] for k in ("id", "title", "text")} for r in rows] == given
    raw = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert all(list(r) == ["id", "title", "text", "queries"] for r in raw)
    for row, before in zip(raw, given, strict=True):
        if not before["text"] and not before["title"]:
            assert row["queries"] == []
        else:
            assert 0 < len(row["queries"]) <= 3
            assert set(" ".join(row["queries"]).split()) <= set(WORDS)
    assert not list(tmp_path.glob(".*"))
    record = json.loads((tmp_path / "out.jsonl.meta.json").read_text())
    assert record["result"] == {"texts": 30, "augmented": 28}
    assert set(record["inputs"]) == {"corpus", "model"}


def test_the_other_task_keeps_the_first_field(t5, gpt2, corpus, tmp_path):
    first = augmented("queries", t5, corpus, tmp_path / "a.jsonl")
    both = augmented("continuation", gpt2, tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert texts(both, "queries") == texts(first, "queries")
    assert max(map(len, texts(both, "queries"))) == 5
    assert {len(t) for t in texts(both, "next")} == {0, 1}
    for text, row in zip(
        read_texts(tmp_path / "b.jsonl"), [r for r in both if r["title"] + r["text"]], strict=True
    ):
        assert (list(text.queries), list(text.following)) == (row["queries"], row.get("next", []))


def test_a_row_that_has_the_field_keeps_it(t5, tmp_path, capsys):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(
        '{"text": "the cat", "queries": ["mine"]}\n{"text": "the dog", "queries": []}\n'
    )
    rows = augmented("queries", t5, corpus, tmp_path / "o.jsonl", "--json")
    assert rows[0] == {"id": "1", "title": "", "text": "the cat", "queries": ["mine"]}
    assert len(rows[1]["queries"]) > 1
    assert json.loads(capsys.readouterr().out)["augmented"] == 1


@pytest.mark.parametrize("task", ["queries", "continuation"])
def test_texts_do_not_depend_on_batch_and_order(task, t5, gpt2, corpus, tmp_path):
    model = t5 if task == "queries" else gpt2
    alone = augmented(task, model, corpus, tmp_path / "1.jsonl", "--batch-size", 1)
    augmented(task, model, corpus, tmp_path / "64.jsonl", "--batch-size", 64)
    assert (tmp_path / "64.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    backwards = tmp_path / "backwards.jsonl"
    backwards.write_text(
        "".join(line + "\n" for line in reversed(corpus.read_text().splitlines()[5:]))
    )
    turned = augmented(task, model, backwards, tmp_path / "t.jsonl", "--batch-size", 9)
    assert turned == list(reversed(alone[5:]))
    assert augmented(task, model, corpus, tmp_path / "s.jsonl", "--seed", 1) != alone


def test_greedy_is_the_most_likely_token(gpt2, tmp_path):
    """Against a loop without cache, padding or generate(): the most likely next token, six times."""
    corpus = tmp_path / "c.txt"
    prompts = ["the cat sat", "dog", "quick brown fox jumps over the lazy dog"]
    corpus.write_text("".join(f"{p}\n" for p in prompts))
    rows = augmented("continuation", gpt2, corpus, tmp_path / "o.jsonl", "--temperature", 0)
    model = tf.GPT2LMHeadModel.from_pretrained(gpt2).eval()
    pieces = tf.AutoTokenizer.from_pretrained(gpt2)
    for prompt, row in zip(prompts, rows, strict=True):
        ids = pieces(prompt, return_tensors="pt")["input_ids"]
        new: list[int] = []
        while len(new) < 6 and 2 not in new:
            new.append(
                int(
                    model(torch.cat([ids, torch.tensor([new], dtype=torch.long)], 1))
                    .logits[0, -1]
                    .argmax()
                )
            )
        assert row.get("next", []) == [
            t for t in [pieces.decode(new, skip_special_tokens=True)] if t
        ]
    assert [r["id"] for r in rows] == ["1", "2", "3"]
    assert max(len(" ".join(t).split()) for t in texts(rows, "next")) == 6


def test_samples_follow_the_models_distribution(gpt2):
    """First tokens of 4,000 continuations against the softmax over the top 10; no other token occurs."""
    config = GeneratorConfig(
        task="continuation",
        model=str(gpt2),
        per_text=4000,
        max_new_tokens=1,
        max_input=20,
        device="cpu",
        dtype="float32",
        batch_size=4000,
    )
    generator = Generator.load(config)
    drawn = generator(["the cat sat"])[0]
    pieces = generator.tokenizer
    logits = (
        generator.model(pieces("the cat sat", return_tensors="pt")["input_ids"])
        .logits[0, -1]
        .detach()
    )
    best = logits.topk(10)
    expected = {
        pieces.decode([int(i)]): float(p)
        for i, p in zip(best.indices, best.values.softmax(0), strict=True)
    }
    assert set(drawn) <= set(expected)
    for word, p in expected.items():
        # Five standard deviations of a share of 4,000 draws; special tokens are decoded to nothing.
        if word not in ("<unk>", "<pad>", "</s>"):
            assert abs(drawn.count(word) / 4000 - p) < 5 * (p * (1 - p) / 4000) ** 0.5 + 1e-9


def test_top_p_and_temperature_narrow_the_samples(gpt2):
    def kinds(**changes: Any) -> int:
        config = GeneratorConfig(
            task="continuation",
            model=str(gpt2),
            per_text=500,
            max_new_tokens=1,
            max_input=20,
            device="cpu",
            dtype="float32",
            batch_size=500,
            **changes,
        )
        return len(set(Generator.load(config)(["the cat sat"])[0]))

    wide = kinds(top_k=0)
    assert kinds(top_k=3) <= 3 < wide
    assert kinds(top_k=0, top_p=0.5) < wide
    assert kinds(top_k=0, temperature=0.2) < wide


def test_queries_read_the_beginning_and_continuations_the_end(t5, gpt2, tmp_path):
    for name, task, model, same in (
        ("head", "queries", t5, "tail"),
        ("tail", "continuation", gpt2, "head"),
    ):
        written = []
        for odd in ("dog", "fox"):
            corpus = tmp_path / f"{task}{odd}.txt"
            corpus.write_text(
                f"{odd} " + "the cat " * 20 + "\n"
                if same == "head"
                else "the cat " * 20 + f"{odd}\n"
            )
            rows = augmented(
                task,
                model,
                corpus,
                tmp_path / f"{task}{odd}.jsonl",
                "--max-input",
                8,
                "--temperature",
                0,
                "--per-text",
                1,
            )
            written.append(texts(rows, "queries" if task == "queries" else "next"))
        assert written[0] == written[1], f"{task} depends on tokens beyond its {name}"


SLOW = """
import sys, time
from dupmae_ir.pretrain.augment import main
from dupmae_ir.pretrain.generation import Generator
whole = Generator.__call__
def slowly(*given):
    time.sleep(0.3)
    return whole(*given)
Generator.__call__ = slowly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_a_killed_run_resumes_to_the_same_output(t5, corpus, tmp_path):
    whole = tmp_path / "whole.jsonl.gz"
    output = tmp_path / "cut.jsonl.gz"
    augmented("queries", t5, corpus, whole)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *words("queries", t5, corpus, output)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    work = tmp_path / ".cut.jsonl.gz.work" / "lines.jsonl"
    end = time.monotonic() + 60
    while not (work.exists() and work.read_bytes().count(b"\n") >= 14) and time.monotonic() < end:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not output.exists()
    finished = work.read_bytes().count(b"\n") // 7
    with work.open("ab") as f:
        f.write(b'{"texts": ["torn')
    seen: list[int] = []
    run_batch, Generator.__call__ = (
        Generator.__call__,
        lambda self, p, d: seen.append(len(p)) or run_batch(self, p, d),
    )
    try:
        assert main(words("queries", t5, corpus, output)) == 0
    finally:
        Generator.__call__ = run_batch
    assert len(seen) == 4 - finished
    assert output.read_bytes() == whole.read_bytes()
    assert gzip.decompress(output.read_bytes()).count(b"\n") == 30
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus.jsonl", *NAMES]


def test_other_settings_do_not_continue_unfinished_work(t5, corpus, tmp_path, capsys, monkeypatch):
    output = tmp_path / "o.jsonl"
    monkeypatch.setattr(
        "dupmae_ir.pretrain.generation._merge", lambda *_: exec("raise KeyboardInterrupt")
    )
    assert main(words("queries", t5, corpus, output)) == 130
    monkeypatch.undo()
    capsys.readouterr()
    assert "--top-k 10 (requested 5)" in refused(
        capsys, "queries", t5, corpus, output, "--top-k", 5
    )
    with corpus.open("a") as f:
        f.write('{"_id": "new", "text": "the fox"}\n')
    assert "the contents of --corpus" in refused(capsys, "queries", t5, corpus, output)
    rows = augmented("queries", t5, corpus, output, "--restart")
    assert len(rows) == 31
    capsys.readouterr()
    assert main([*words("queries", t5, corpus, output), "--json"]) == 0
    again = {"output": str(output), "status": "already complete", "texts": 31, "augmented": 29}
    assert json.loads(capsys.readouterr().out) == again
    assert "--seed 0 (requested 1)" in refused(capsys, "queries", t5, corpus, output, "--seed", 1)
    assert augmented("queries", t5, corpus, output, "--overwrite") == rows


def test_a_corpus_that_changes_during_the_run_is_refused(t5, corpus, tmp_path, capsys, monkeypatch):
    whole = Generator.__call__

    def meddling(self: Generator, *given: Any) -> Any:
        corpus.write_text(corpus.read_text().replace("cat", "dog"))
        return whole(self, *given)

    monkeypatch.setattr(Generator, "__call__", meddling)
    assert "changed while" in refused(capsys, "queries", t5, corpus, tmp_path / "o.jsonl")
    assert not (tmp_path / "o.jsonl").exists()


def test_every_format_is_read(t5, tmp_path):
    folder = tmp_path / "beir"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "a", "title": "t", "text": "x"}\n')
    assert list(read_rows(folder)) == [{"id": "a", "title": "t", "text": "x"}]
    (tmp_path / "c.tsv").write_text("7\tthe cat\n")
    assert list(read_rows(tmp_path / "c.tsv")) == [{"id": "7", "title": "", "text": "the cat"}]
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"one\n\nthree\n"))
    assert [r["id"] for r in read_rows(tmp_path / "c.txt.gz")] == ["1", "3"]
    lines = ('{"id": 3, "contents": ["p", "q"], "next": "n"}', '{"text": "\\ud800", "title": null}')
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    assert list(read_rows(tmp_path / "d.jsonl")) == [
        {"id": "3", "title": "", "text": ["p", "q"], "next": ["n"]},
        {"id": "2", "title": "", "text": "?"},
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--per-text", "-1"), "--per-text must be at least 0"),
        (("--window", "0"), "--window"),
        (("--top-p", "0"), "--top-p"),
        (("--temperature", "-1"), "--temperature"),
        (("--temperature", "0"), "add --per-text 1"),
        (("--model", "no/such-model"), "--download"),
        (("--corpus", "nowhere.txt"), "no such file"),
        (("--device", "nothing"), "no device"),
    ],
)
def test_invalid_settings_are_one_line(change, said, t5, corpus, tmp_path, capsys):
    assert said in refused(capsys, "queries", t5, corpus, tmp_path / "o.jsonl", *change)


def test_invalid_input_is_one_line(t5, tmp_path, capsys):
    corpus = tmp_path / "c.jsonl"
    for content, said in (
        ("", "empty"),
        ("{", ":1: broken JSON"),
        ('{"text": "x"}\n{"title": 3}', ":2:"),
        ('{"text": "x", "queries": [1]}', '"queries"'),
    ):
        corpus.write_text(content)
        assert said in refused(capsys, "queries", t5, corpus, tmp_path / "o.jsonl")
    assert not (tmp_path / ".o.jsonl.work").exists()


def test_models_that_do_not_fit_the_task_are_refused(t5, gpt2, corpus, tmp_path, capsys):
    output = tmp_path / "o.jsonl"
    assert "gpt2 model; --task queries requires an encoder-decoder" in refused(
        capsys, "queries", gpt2, corpus, output
    )
    assert "t5 model; --task continuation requires a causal" in refused(
        capsys, "continuation", t5, corpus, output
    )
    bert = tmp_path / "bert"
    tf.BertForMaskedLM(tiny_config()).save_pretrained(bert)
    tiny_tokenizer().save_pretrained(bert)
    capsys.readouterr()
    assert "bert model" in refused(capsys, "continuation", bert, corpus, output)
    assert "64 positions" in refused(
        capsys, "continuation", gpt2, corpus, output, "--max-input", 60
    )
    assert "config.json" in refused(capsys, "queries", tmp_path, corpus, output)


def test_a_tokenizer_without_padding_and_end_token_is_refused(gpt2, tmp_path):
    folder = tmp_path / "bare"
    tf.GPT2LMHeadModel.from_pretrained(gpt2).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    config = GeneratorConfig(task="continuation", model=str(folder), max_input=8, max_new_tokens=8)
    with pytest.raises(CheckpointError, match="neither a padding nor an end token"):
        Generator.load(config)


def test_a_model_without_all_its_weights_is_refused(t5, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "part"
    tf.T5ForConditionalGeneration.from_pretrained(t5).save_pretrained(folder)
    tokenizer(pad_token="<pad>", eos_token="</s>").save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in weights.items() if not k.startswith("decoder.block.1")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="weights are missing"):
        Generator.load(GeneratorConfig(task="queries", model=str(folder)))


def test_nan_logits_are_refused(t5):
    generator = Generator.load(
        GeneratorConfig(task="queries", model=str(t5), device="cpu", dtype="float32")
    )
    generator.model.get_encoder().final_layer_norm.weight.data.fill_(float("nan"))
    with pytest.raises(Exception, match="`dtype` float32"):
        generator(["the cat"])
