"""Bad inputs: each is one line on standard error and the right exit status, never a traceback.

Files of every kind are damaged in every way, and every command gets flags with values that do not fit. A damage that
leaves a valid file may be accepted.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from support.making_commands import MAKING, write_inputs

from tests.campaign.records import Record, Records, counted, number_of

TITLE = "Bad inputs: each must be one line and the right exit status"
Case = tuple[str, list[Any]]

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "blank lines": lambda _: b"\n\n \n",
    "zeros": lambda _: bytes(200),
    "not UTF-8": lambda raw: b"\xff\xfe" + raw,
    "UTF-16": lambda raw: raw.decode().encode("utf-16"),
    "bytes in the middle": lambda raw: (
        raw[: len(raw) // 2] + b"\xc3\x28\x80" + raw[len(raw) // 2 :]
    ),
    "cut in a line": lambda raw: raw[:-7],
    "cut gzip": lambda raw: gzip.compress(raw)[:-12],
    "not gzip": lambda raw: b"\x1f\x8b" + raw,
    "an array": lambda _: b"[1, 2]\n",
    "a number": lambda _: b"17\n",
    "null": lambda _: b"null\n",
    "deep": lambda _: b"[" * 100_000 + b"\n",
    "empty object": lambda _: b"{}\n",
    "an object of lists": lambda _: (
        b'{"_id": [], "id": {}, "text": {}, "query": 3, "qid": [], "positive": 1}\n'
    ),
    "half a pair in the id": lambda _: (
        b'{"_id": "d\\ud800", "qid": "d\\ud800", "id": "d\\ud800", "text": "x"}\n'
    ),
    "escape in the id": lambda _: (
        b'{"_id": "d\\u001b[2J", "qid": "d\\u001b", "id": "d\\u001b", "text": "x"}\n'
    ),
    "blank in the id": lambda _: b'{"_id": "d 1", "qid": "d 1", "id": "d 1", "text": "x"}\n',
    "NaN": lambda _: b'{"_id": NaN, "id": NaN, "qid": NaN, "text": NaN, "query": NaN}\n',
    "huge integer": lambda _: b'{"_id": ' + b"9" * 5000 + b', "text": "x", "query": "y"}\n',
    "columns": lambda _: b"a\tb\tc\td\te\tf\tg\n",
}


def run(seconds: float, seed: int, records: Records) -> None:
    """Try every case that is not in the records yet, or as many as ``seconds`` allow."""
    del seed
    done = {row["case"] for row in records.all}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder / "inputs", lambda words: _called(words)[0])
        (folder / "inputs" / "qrels.tsv").write_text("q0 0 n1 1\nq1 0 n2 1\n")
        (folder / "inputs" / "run.trec").write_text(
            "q0 Q0 n1 1 3.5 x\nq0 Q0 n2 2 2.5 x\nq1 Q0 n2 1 1 x\n"
        )
        end = time.monotonic() + seconds
        for what, words in itertools.chain(
            _files(folder), _folders(folder), _settings(folder), _flags(folder)
        ):
            if time.monotonic() > end:
                break
            if what not in done:
                status, errors = _called(words)
                outcome = _outcome(status, errors)
                kind = "damaged file" if ": " in what and "flag" not in what else "flags"
                records.add(
                    kind=kind,
                    case=what,
                    outcome=outcome,
                    words=errors[-700:] if outcome == "wrong" else "",
                )


def table(records: Sequence[Record]) -> str:
    """Outcomes by kind of input."""
    outcomes = {"one line": "one_line", "accepted": "accepted", "wrong": "wrong"}
    return counted(
        records,
        "kind",
        {"cases": len, **{n: number_of("outcome", v) for n, v in outcomes.items()}},
        "input",
    )


def is_wrong(record: Record) -> bool:
    """Whether it was a traceback, more than a line, or another exit status."""
    return record["outcome"] == "wrong"


def _called(words: list[Any]) -> tuple[int, str]:
    from dupmae_ir.__main__ import main

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main([*map(str, words)])
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 1
        except BaseException:
            return 99, traceback.format_exc()
    return status, errors.getvalue()


def _outcome(status: int, errors: str) -> str:
    if status == 0:
        return "accepted"
    return (
        "one_line"
        if status in (1, 2) and errors.count("\n") == 1 and "Traceback" not in errors
        else "wrong"
    )


def _readers(inputs: Path, out: Path) -> dict[str, tuple[str, list[Any]]]:
    """What is read -> (name of a valid file, the command that reads ``out/bad``)."""
    bad = out / "bad"
    made = out / "made"
    index = inputs / "index"
    return {
        "corpus of encode": (
            "corpus.jsonl",
            [
                "encode",
                "--model",
                "testing:hashing",
                "--corpus",
                bad,
                "--index",
                made,
                "--overwrite",
                "--restart",
            ],
        ),
        "corpus of bm25": (
            "corpus.jsonl",
            ["index", "bm25", "--corpus", bad, "--index", made, "--overwrite"],
        ),
        "corpus of segment": (
            "corpus.jsonl",
            ["encode.passages", "--corpus", bad, "--output", out / "made.jsonl"],
        ),
        "corpus of a query": (
            "corpus.jsonl",
            ["search", "--index", index, "--query", "cat", "--corpus", bad],
        ),
        "topics": (
            "queries.tsv",
            ["search", "--index", index, "--topics", bad, "--output", out / "r.trec"],
        ),
        "topics of encode.queries": (
            "queries.tsv",
            ["encode.queries", "--index", index, "--topics", bad, "--output", out / "queries"],
        ),
        "qrels": ("qrels.tsv", ["eval", "--qrels", bad, inputs / "run.trec"]),
        "run": ("run.trec", ["eval", "--qrels", inputs / "qrels.tsv", bad]),
        "pairs": (
            "pairs.jsonl",
            ["finetune.mine", "--pairs", bad, "--by", "bm25", "--output", out / "mined.jsonl"],
        ),
        "mined": (
            "mined.jsonl",
            [
                "finetune.score",
                "--mined",
                bad,
                "--model",
                inputs / "teacher",
                "--output",
                out / "s.jsonl",
                "--length",
                40,
            ],
        ),
        "text for convert": (
            "pairs.tsv",
            [
                "finetune.convert",
                "--format",
                "tsv",
                "--input",
                bad,
                "--output",
                out / "converted.jsonl",
            ],
        ),
        "recipe": ("qrels.tsv", ["search", "--recipe", bad, "--index", index, "--query", "cat"]),
    }


def _files(folder: Path) -> Iterator[Case]:
    inputs = folder / "inputs"
    out = folder / "out"
    for what, (name, words) in _readers(inputs, out).items():
        _must_work(what, (inputs / name).read_bytes(), words, out)
        yield f"{what}: missing", [*words, "--quiet"]
        for damage, change in DAMAGES.items():
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            (out / "bad").write_bytes(change((inputs / name).read_bytes()))
            if what == "mined":
                shutil.copy(inputs / "mined.jsonl.meta.json", out / "bad.meta.json")
            yield f"{what}: {damage}", [*words, "--quiet"]
        shutil.rmtree(out)
        (out / "bad").mkdir(parents=True)
        yield f"{what}: a folder", [*words, "--quiet"]
        (out / "bad").rmdir()


def _must_work(what: str, whole: bytes, words: list[Any], out: Path) -> None:
    """The command accepts the file before it is damaged; otherwise its refusals would prove nothing."""
    if what == "recipe":
        whole = b"hits = 3\n"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / "bad").write_bytes(whole)
    if what == "mined":
        shutil.copy(out.parent / "inputs" / "mined.jsonl.meta.json", out / "bad.meta.json")
    status, errors = _called([*words, "--quiet"])
    if status:
        raise RuntimeError(f"{what}: the command refuses the file as it was: {errors}")
    shutil.rmtree(out)


_TOML = (
    "-1",
    '"x"',
    '""',
    "[]",
    "{}",
    "nan",
    "true",
    "1979-05-27",
    '["a", 1]',
    "{a = [1]}",
    '"{x}"',
    '"../x"',
)
CATALOGUE = """[beir-arguana]
like = "beir"
set = "arguana"
title = "A collection"
family = "beir"
documents = 3
document_length = 20
query_length = 8
note = "A note."
sources.archive.url = "https://example.org/x.zip"
sources.archive.sha256 = "f4f71fa87b6be4fb968cca2b8f8554c4ebd003e6c3488af3ac1cc5629c3de189"
sources.archive.size = 3
tests.test.queries = 2
tests.test.measures = ["nDCG@10"]
"""
STEPS = """[inputs]
lines = ""

[[step]]
name = "one"
command = "finetune.convert"
format = "tsv"
input = "{lines}"
kind = "web"
"""


def _settings(folder: Path) -> Iterator[Case]:
    """Recipes of several steps and catalogues with each line changed, removed, repeated or cut."""
    bad = folder / "bad.toml"
    made = folder / "made"
    steps = [
        "finetune",
        "--recipe",
        bad,
        "--output",
        made,
        "--set",
        f"lines={folder / 'inputs' / 'pairs.tsv'}",
    ]
    catalogue = [
        "collections",
        "show",
        "beir-arguana",
        "--catalogue",
        bad,
        "--cache",
        folder / "cache",
    ]
    for what, text, words in (
        ("recipe of steps", STEPS, [*steps, "--quiet"]),
        ("catalogue", CATALOGUE, catalogue),
    ):
        lines = text.splitlines()
        for n, line in enumerate(lines):
            name, equals, _ = line.partition(" = ")
            changed = (
                [f"{name} = {value}" for value in _TOML] if equals else ["[[x", "[a.b]", "[step]"]
            )
            for new in (*changed, "", f"{line}\n{line}", line[:-2]):
                shutil.rmtree(made, ignore_errors=True)
                bad.write_text("\n".join([*lines[:n], new, *lines[n + 1 :], ""]))
                yield f"{what}: line {n + 1}: {new!r}", words


def _folders(folder: Path) -> Iterator[Case]:
    """Damaged records of an index and files of a model."""
    inputs = folder / "inputs"
    bad = folder / "bad"
    for name in ("meta.json", "terms.txt", "docid"):
        for damage, change in DAMAGES.items():
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(inputs / "index", bad)
            (bad / name).write_bytes(change((bad / name).read_bytes()))
            yield (
                f"{name} of an index: {damage}",
                ["search", "--index", bad, "--query", "cat", "--quiet"],
            )
    for name in ("config.json", "tokenizer.json", "model.safetensors", "dupmae_config.json"):
        for damage in ("empty", "zeros", "an array", "null", "not UTF-8", "empty object"):
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(inputs / "retriever", bad)
            if (bad / name).exists():
                (bad / name).write_bytes(DAMAGES[damage]((bad / name).read_bytes()))
            words = [
                "encode",
                "--model",
                bad,
                "--corpus",
                inputs / "corpus.jsonl",
                "--index",
                folder / "never",
            ]
            yield (
                f"{name} of a model: {damage}",
                [*words, "--restart", "--overwrite", "--device", "cpu", "--quiet"],
            )


def _flags(folder: Path) -> Iterator[Case]:
    inputs = folder / "inputs"
    out = folder / "flags"
    for making in MAKING:
        words = making.words(inputs, out)
        yield f"{making.name}: unknown flag", [*words, "--no-such-flag"]
        yield f"{making.name}: no recipe", [*words, "--recipe", folder / "none.toml"]
        yield f"{making.name}: no flags", words[: 2 if words[0] == "index" else 1]
    numbers = {
        "encode": ("--top-k", "--scale", "--window", "--document-length", "--threads"),
        "finetune.mine": ("--depth", "--skip-top", "--negatives"),
        "pretrain": ("--steps", "--batch-size", "--learning-rate"),
        "finetune": ("--temperature", "--batch-size", "--steps", "--warmup"),
    }
    for making in MAKING:
        for flag in numbers.get(making.name, ()):
            for value in ("nan", "-1", "x", "1e400", "", "\ud800"):
                making.prepare(inputs, out)
                yield (
                    f"{making.name} {flag} {value!r}",
                    [*making.words(inputs, out), flag, value, "--quiet"],
                )
                shutil.rmtree(out)
