"""Pairs of a documentation sentence and the code that it is about, from packages with permissive licences.

    python experiments/code_pairs.py draw --cache PACKAGES            # choose packages, write code-pairs/packages.tsv
    python experiments/code_pairs.py make --cache PACKAGES --output runs/code-pairs

``draw`` was run once. ``make`` downloads the packages of the list, checks their sha256 and writes ``train.jsonl.gz``,
``code.jsonl.gz`` (the code of these pairs, for pre-training), ``mining.jsonl.gz`` (the pairs of ``train`` from a sample
of packages, all of each, since its other functions are the negatives that matter), ``dev.jsonl.gz``, ``test`` (the
packages that are held out, in BEIR's layout) and ``counts.json``. Both need pip, npm and apt-get with their sources;
nothing of a package is run. Files that are there already are not downloaded again.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
import hashlib
import io
import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import BytesParser
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from question_sets import QuestionSet
from tqdm import tqdm

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable
from dupmae_ir.io.documents.readers.registry import language_of
from dupmae_ir.io.documents.readers.source import read_source
from dupmae_ir.io.publishing import atomic_write

LIST = Path(__file__).parent / "code-pairs" / "packages.tsv"
DRAWN = {
    "npm": ("^node-", 400),
    "golang": ("^golang-(github|golang)-.*-dev$", 350),
    "rust": ("^librust-.*-dev$", 350),
    "ruby": ("^ruby-", 250),
    "php": ("^php-", 120),
}
"""Source -> the names of Debian's packages that are drawn from, and how many of them."""
_POPULAR_WORDS = """
    requests flask django numpy pandas scipy scikit-learn matplotlib sqlalchemy fastapi pydantic click rich typer httpx
    aiohttp jinja2 werkzeug pytest attrs pillow networkx sympy tqdm boto3 botocore celery redis kombu tornado twisted
    scrapy beautifulsoup4 lxml pyyaml cryptography paramiko fabric ansible-core jsonschema marshmallow starlette uvicorn
    gunicorn black isort mypy pylint flake8 virtualenv poetry-core setuptools wheel packaging keras tensorboard
    transformers datasets tokenizers accelerate diffusers peft huggingface-hub sentence-transformers torchvision
    torchaudio lightning optuna ray dask distributed xarray zarr h5py numba llvmlite statsmodels seaborn plotly bokeh
    altair dash streamlit gradio nltk spacy gensim openai anthropic langchain-core llama-index-core haystack-ai
    faiss-cpu opensearch-py elasticsearch pymongo psycopg peewee alembic grpcio protobuf thrift fsspec s3fs gcsfs
    google-cloud-storage azure-storage-blob kubernetes docker pyarrow polars duckdb shapely geopandas rasterio
    biopython astropy scikit-image opencv-python imageio moviepy pygame arcade prompt-toolkit ipython jupyter-client
    notebook nbconvert traitlets sphinx mkdocs docutils babel arrow pendulum python-dateutil hypothesis tox nox
    anyio trio httpcore urllib3 certifi idna charset-normalizer websockets websocket-client h11 h2 hpack wsproto
    multidict yarl frozenlist aiosignal async-timeout aiofiles aiosqlite asyncpg aioredis motor beanie mongoengine
    tortoise-orm sqlmodel sqlparse pypika records dataset tinydb diskcache cachetools joblib cloudpickle dill loky
    psutil watchdog apscheduler schedule huey rq dramatiq luigi prefect dagster airflow-client great-expectations
    pandera marshmallow-dataclass cattrs msgspec orjson ujson simplejson jsonpath-ng jsonpickle toml tomlkit tomli
    pydantic-settings python-dotenv dynaconf hydra-core omegaconf environs confuse structlog loguru eliot sentry-sdk
    opentelemetry-api opentelemetry-sdk prometheus-client statsd datadog pyjwt python-jose authlib oauthlib
    requests-oauthlib passlib itsdangerous bcrypt argon2-cffi pynacl pyopenssl markdown mistune markdown-it-py nh3
    bleach html5lib cssselect pyquery parsel w3lib feedparser newspaper3k readability-lxml selenium playwright
    pytest-asyncio pytest-xdist pytest-mock responses respx vcrpy freezegun factory-boy faker model-bakery coverage
    mock nose2 behave robotframework locust textual blessed colorama termcolor tabulate prettytable alive-progress
    click-plugins cliff docopt fire cement invoke doit pex pip pipx pip-tools hatchling flit-core pdm-backend
    setuptools-scm bump2version gitpython pygithub python-gitlab jira slack-sdk discord-py python-telegram-bot tweepy
    stripe twilio sendgrid geopy folium pyproj fiona networkit igraph pulp ortools cvxpy cvxopt pyomo deap simpy
    scikit-optimize hyperopt lightgbm xgboost catboost shap lime eli5 imbalanced-learn category-encoders
    feature-engine sktime tslearn prophet pmdarima arch tsfresh pyod umap-learn hdbscan annoy hnswlib nmslib
    rank-bm25 textblob pattern stanza flair sumy rapidfuzz jellyfish textdistance langdetect ftfy unidecode
    pdfminer-six pypdf pdfplumber reportlab python-docx openpyxl xlsxwriter python-pptx tablib odfpy icalendar
    holidays croniter humanize inflect pluggy stevedore zope-interface wrapt decorator more-itertools toolz funcy
    boltons sortedcontainers blinker pyparsing lark parso jedi rope libcst astroid bandit pydocstyle pycodestyle
    pyflakes autopep8 yapf vulture radon pre-commit cookiecutter copier jinja2-time mako chameleon django-rest-framework
    djangorestframework django-filter django-allauth django-extensions django-debug-toolbar graphene strawberry-graphql
    ariadne flask-login flask-wtf flask-sqlalchemy flask-restful flask-cors quart sanic falcon bottle cherrypy pyramid
    connexion litestar hug eve webob waitress hypercorn gevent eventlet greenlet pyzmq kazoo python-consul hvac moto
    localstack-client pulumi troposphere apache-libcloud openstacksdk netmiko napalm scapy pyserial pyusb bleak
"""
POPULAR = tuple(_POPULAR_WORDS.split())
"""Packages of PyPI."""
_HELD_OUT_WORDS = """
    click flask networkx attrs httpx jsonschema pendulum scrapy xarray
    express commander async yargs
    golang-github-spf13-cobra-dev golang-github-gin-gonic-gin-dev golang-github-gorilla-mux-dev
    librust-clap-dev librust-regex-dev librust-serde-json-dev
    ruby-sinatra ruby-rack php-monolog php-twig
"""
HELD_OUT = tuple(_HELD_OUT_WORDS.split())
"""Packages that are only in ``test``: they are evaluated on, whether by this set or by others."""
DEV_SHARE = 0.02
MOST_OF_A_PACKAGE = 1500
"""Pairs of one package at most, drawn with seed 0."""
PAIRS_TO_MINE = 20_000
"""Pairs of ``mining`` at least: as many as are encoded in ten minutes."""
_BATCH = 12
"""Wheels that one process of pip downloads."""
_LARGEST_FILE = 400_000
_LONGEST_LINE = 1000
"""Characters of a line above which a file is not what a person wrote."""
_WORDS = 4, 40
"""Words of a sentence at least and at most."""
_LINES = 3, 150
"""Lines of code at least and at most."""
_SKETCH = 3
"""Smallest hashes of a code's runs of five tokens; two with the same ones are duplicates."""
_SHINGLE = 5

_PERMISSIVE = re.compile(r"\b(MIT|Expat|BSD|Apache|ISC|0BSD)\b", re.IGNORECASE)
_RESTRICTIVE = re.compile(
    r"GPL|MPL|Mozilla|EPL|CDDL|Artistic|proprietary|commercial", re.IGNORECASE
)
_NO_SOURCE = re.compile(
    r"(?:^|/)(?:tests?|testing|testdata|__tests__|specs?|examples?|samples?|benchmarks?|benches|vendor|_vendor|"
    r"third_party|node_modules|docs?|migrations|fixtures|locale|deps)/"
    r"|(?:^|/)(?:test_|conftest)[^/]*$|(?:_test|_spec|\.test|\.spec|\.min|_pb2|_pb2_grpc|\.d)\.[a-z]+$"
)
_GENERATED = re.compile(
    r"generated (?:by|from|code)|do not edit|@generated|auto-?generated", re.IGNORECASE
)
_COMMENT = re.compile(r"\s*(?:///?!?|/\*\*?|\*/|\*|#+!?|--+)")
_ATTRIBUTE = re.compile(r"\s*(?:#\[|@)")
_DOCUMENTATION_ENDS = re.compile(
    r"^\s*(?:[@:]\w|Args?:|Arguments|Parameters?\b|Params|Returns?:|Yields|Raises|Examples?\b|Usage|Notes?:|```|>>>|#)"
)
_MARKUP = (
    (re.compile(r"\{@\w+\s+([^}]*)\}"), r"\1"),
    (re.compile(r":[\w:]+:`~?\.?([^`<]*)(?:<[^`]*>)?`"), r"\1"),
    (re.compile(r"\[([^\]]*)\](?:\([^)]*\))?"), r"\1"),
    (re.compile(r"<[^<>]{1,60}>"), " "),
    (re.compile(r"[`*]"), ""),
)
_SENTENCE = re.compile(r"(?<=[.!?])\s")
_NOTHING_TO_ASK = re.compile(
    r"\b(?:todo|fixme|deprecated|copyright|licen[sc]e|internal use|see also|noqa|eslint|nolint)\b|https?:",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Package(NamedTuple):
    """A row of the list."""

    source: str
    name: str
    version: str
    licence: str
    file: str
    sha256: str


class Pair(NamedTuple):
    """A documentation sentence and its code, as a passage of the package would have it."""

    query: str
    docid: str
    title: str
    text: str
    language: str


# Packages


def run(*command: str, cwd: Path | None = None) -> str:
    """What a command prints. Raises :class:`InputError` with its last line if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise InputError(f"{' '.join(command[:3])}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def download(source: str, name: str, version: str, folder: Path) -> Path:
    """The file of a package, in ``folder``; of its newest version if ``version`` is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    if source == "pypi":
        wanted = f"{name}=={version}" if version else name
        # Wheels alone: to look into a source distribution, pip runs it.
        run(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
            "--only-binary", ":all:", "--dest", str(folder), wanted)  # fmt: skip
    elif source == "npm":
        wanted = f"{name}@{version}" if version else name
        run(
            "npm", "pack", wanted, "--silent", "--ignore-scripts", "--pack-destination", str(folder)
        )
    else:
        run("apt-get", "download", f"{name}={version}" if version else name, cwd=folder)
    (file,) = folder.iterdir()
    return file


def members(file: Path) -> Iterator[tuple[str, bytes]]:
    """The files in a package, in its order."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if info.file_size <= _LARGEST_FILE:
                    yield info.filename, archive.read(info)
        return
    data = file.read_bytes()
    if file.suffix == ".deb":
        data = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", file], capture_output=True, check=True
        ).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            opened = archive.extractfile(member) if member.isfile() else None
            if opened is not None and member.size <= _LARGEST_FILE:
                yield member.name, opened.read()


def version_and_licence(source: str, file: Path) -> tuple[str, str]:
    """What a package says of itself."""
    if source == "pypi":
        for name, data in members(file):
            # At the top: flit-core has the metadata of its own dependencies further down.
            if re.fullmatch(r"[^/]+\.dist-info/METADATA", name):
                fields = BytesParser().parsebytes(data, headersonly=True)
                licences = [fields.get("License-Expression", "")]
                for classifier in fields.get_all("Classifier", []):
                    if classifier.startswith("License ::"):
                        licences.append(classifier.rpartition(" :: ")[2])
                if not any(licences):
                    licences = str(fields.get("License", "")).splitlines()[:1]
                return str(fields["Version"]), "; ".join(filter(None, map(str, licences)))
    elif source == "npm":
        for name, data in members(file):
            if name == "package/package.json":
                described = json.loads(data)
                licence = described.get("license", "")
                return described["version"], licence if isinstance(licence, str) else ""
    else:
        version = run("dpkg-deb", "--field", str(file), "Version").strip()
        for name, data in members(file):
            if name.endswith("/copyright"):
                return version, debian_licences(data.decode("utf-8", "replace"))
    return "", ""


def debian_licences(text: str) -> str:
    """The licences of a package's own files, of a file ``copyright`` of Debian."""
    licences = set()
    for stanza in re.split(r"\n\s*\n", text):
        files = re.search(r"^Files:\s*(.*)", stanza, re.MULTILINE)
        licence = re.search(r"^License:\s*(\S.*)", stanza, re.MULTILINE)
        if files and licence and not files[1].startswith("debian/"):
            licences.add(licence[1].strip())
    return "; ".join(sorted(licences))


def is_permissive(licence: str) -> bool:
    """Whether all of the licences that are named are MIT's, BSD's or Apache's."""
    return bool(_PERMISSIVE.search(licence)) and not _RESTRICTIVE.search(licence)


def names_to_draw(seed: int) -> list[tuple[str, str]]:
    """The packages to try: (source, name)."""
    known = sorted(run("apt-cache", "pkgnames").split())
    chosen = random.Random(seed)
    names = [("pypi", name) for name in POPULAR]
    for source, (pattern, count) in DRAWN.items():
        fitting = [name for name in known if re.search(pattern, name)]
        for name in chosen.sample(fitting, min(count, len(fitting))):
            # Debian has a module of Node under its name and a beginning.
            own = name.partition("-")[2] if source == "npm" else name
            names.append((source, own))
    for name in HELD_OUT:
        names.append((source_of(name), name))
    return list(dict.fromkeys(names))


def source_of(name: str) -> str:
    """The source of a package that is held out."""
    for source in ("golang", "ruby", "php"):
        if name.startswith(f"{source}-"):
            return source
    if name.startswith("librust-"):
        return "rust"
    return "npm" if name in ("express", "commander", "async", "yargs") else "pypi"


def drawn_package(cache: Path, source: str, name: str) -> Package | None:
    """A package with a permissive licence; None for others, and for names without a package."""
    folder = cache / source / name.replace("/", "+")
    try:
        found = list(folder.glob("*")) if folder.is_dir() else []
        if not found and source == "pypi":
            return None
        file = found[0] if found else download(source, name, "", folder)
        version, licence = version_and_licence(source, file)
    except (InputError, ValueError, zipfile.BadZipFile, tarfile.TarError):
        return None
    if not version or not is_permissive(licence):
        return None
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Package(source, name, version, licence[:80], file.name, digest)


def download_wheels(names: Sequence[str], folder: Path) -> None:
    """Download the wheels of many packages into folders of theirs; names without one are left out.

    In one process, which takes seconds to start. If it fails, each half is tried.
    """
    wanted = [name for name in names if not any((folder / name).glob("*.whl"))]
    if not wanted:
        return
    aside = folder / f".{wanted[0]}.{len(wanted)}"
    try:
        run(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
            "--only-binary", ":all:", "--dest", str(aside), *wanted)  # fmt: skip
    except InputError:
        if len(wanted) > 1:
            middle = len(wanted) // 2
            download_wheels(wanted[:middle], folder)
            download_wheels(wanted[middle:], folder)
        return
    by_name = {name.replace("-", "_").replace(".", "_").lower(): name for name in wanted}
    for file in aside.iterdir():
        name = by_name.get(file.name.partition("-")[0].replace(".", "_").lower())
        if name is not None:
            (folder / name).mkdir(exist_ok=True)
            file.rename(folder / name / file.name)
    shutil.rmtree(aside)


def draw(args: argparse.Namespace) -> None:
    """Choose the packages and write their list."""
    wheels = [name for source, name in names_to_draw(0) if source == "pypi"]
    batches = [wheels[start : start + _BATCH] for start in range(0, len(wheels), _BATCH)]
    with ThreadPoolExecutor(args.downloads) as pool:
        list(pool.map(lambda names: download_wheels(names, args.cache / "pypi"), batches))
    with ThreadPoolExecutor(args.downloads) as pool:
        tried = pool.map(lambda pair: drawn_package(args.cache, *pair), names_to_draw(0))
        packages = sorted(package for package in tried if package is not None)
    LIST.parent.mkdir(exist_ok=True)
    with atomic_write(LIST) as f:
        writer = csv.writer(f, delimiter="\t", lineterminator="\n")
        writer.writerow(Package._fields)
        writer.writerows(packages)
    print(f"{LIST.name}: {len(packages):,} packages")


def read_list() -> list[Package]:
    """The packages of the list."""
    with open(LIST, encoding="utf-8", newline="") as f:
        rows = csv.reader(f, delimiter="\t")
        next(rows)
        return [Package(*row) for row in rows]


def fetched(cache: Path, package: Package) -> Path:
    """The file of a package. Raises :class:`InputError` if it is another than that of the list."""
    folder = cache / package.source / package.name.replace("/", "+")
    file = folder / package.file
    if not file.is_file():
        file = download(package.source, package.name, package.version, folder)
    if hashlib.sha256(file.read_bytes()).hexdigest() != package.sha256:
        raise InputError(f"{file}: its sha256 is not that of {LIST.name}; remove the file")
    return file


# Pairs


def pairs_of(file: Path, package: str) -> Iterator[Pair]:
    """The pairs of a package, in its order."""
    for name, data in members(file):
        language = language_of(name)
        if not language or _NO_SOURCE.search(name) or not is_written(data):
            continue
        try:
            extracted = read_source(data, language)
        except Unreadable:
            continue
        place = (
            name.removeprefix("package/").removeprefix("./usr/share/").removeprefix("./usr/lib/")
        )
        yield from pairs_in(extracted, language, f"{package}/{place}")


def is_written(data: bytes) -> bool:
    """Whether a person wrote a file, not a generator or a minifier."""
    start = data[:2000].decode("utf-8", "replace")
    return not _GENERATED.search(start) and all(
        len(line) < _LONGEST_LINE for line in data.split(b"\n")
    )


def pairs_in(extracted: Extracted, language: str, place: str) -> Iterator[Pair]:
    """The pairs of a file."""
    short = "/".join(place.split("/")[-2:]).rpartition(".")[0]
    names = Counter[str]()
    for definition, part in extracted.sections():
        if not definition:
            continue
        names[definition] += 1
        section = extracted.text[part].rstrip()
        documentation, code = (
            python_parts(section) if language == "python" else commented_parts(section)
        )
        query = first_sentence(documentation, definition)
        lines = [line for line in code.splitlines() if line.strip()]
        if is_question(query) and _LINES[0] <= len(lines) <= _LINES[1]:
            docid = f"{place}#{definition}"
            if names[definition] > 1:
                docid += f"~{names[definition]}"
            # Run files have no place for white space in an id.
            docid = "_".join(docid.split())
            yield Pair(query, docid, f"{short}: {definition}", code, language)


def python_parts(section: str) -> tuple[str, str]:
    """The docstring of a definition, and the definition without it."""
    section = textwrap.dedent(section)
    try:
        body = ast.parse(section).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "", ""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            documentation = ast.get_docstring(node)
            if not documentation:
                return "", ""
            said = node.body[0]
            lines = section.splitlines()
            del lines[said.lineno - 1 : said.end_lineno]
            return documentation, "\n".join(lines)
    return "", ""


def commented_parts(section: str) -> tuple[str, str]:
    """The comment above a definition, and the definition without it; attributes stay."""
    lines = section.splitlines()
    comment = []
    is_block = False
    while lines:
        line = lines[0].strip()
        if not is_block and (_ATTRIBUTE.match(line) or not (_COMMENT.match(line) or not line)):
            break
        is_block = (is_block or line.startswith("/*")) and "*/" not in line
        comment.append(_COMMENT.sub("", lines.pop(0), count=1).replace("*/", "").strip())
    return "\n".join(comment).strip(), textwrap.dedent("\n".join(lines))


def first_sentence(documentation: str, name: str) -> str:
    """The first sentence, without markup and without the name of what it is about, as Go begins it."""
    kept = []
    for line in documentation.strip().splitlines():
        if not line.strip() or _DOCUMENTATION_ENDS.match(line):
            break
        kept.append(line.strip())
    text = " ".join(kept)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    sentence = " ".join(_SENTENCE.split(text, maxsplit=1)[0].split()).rstrip(".:;, ")
    first, _, rest = sentence.partition(" ")
    own_name = name.rpartition(".")[2].rpartition("::")[2]
    return rest if first.strip("()") == own_name else sentence


def is_question(sentence: str) -> bool:
    """Whether a sentence says enough to look for its code."""
    words = re.findall(r"[A-Za-z]{2,}", sentence)
    letters = sum(map(len, words))
    is_long_enough = (
        _WORDS[0] <= len(sentence.split()) <= _WORDS[1] and len(set(words)) >= _WORDS[0]
    )
    is_prose = letters >= 0.6 * len(sentence.replace(" ", ""))
    return is_long_enough and is_prose and not _NOTHING_TO_ASK.search(sentence)


def sketch(code: str) -> tuple[int, ...]:
    """What two codes that hardly differ have in common: the smallest hashes of their runs of tokens."""
    tokens = [token.lower() for token in _TOKEN.findall(code)]
    runs = set()
    for start in range(max(1, len(tokens) - _SHINGLE + 1)):
        run_of_tokens = " ".join(tokens[start : start + _SHINGLE])
        runs.add(int.from_bytes(hashlib.blake2b(run_of_tokens.encode(), digest_size=8).digest()))
    return tuple(sorted(runs)[:_SKETCH])


@dataclass
class Seen:
    """What duplicates are recognised by."""

    queries: set[str] = field(default_factory=set)
    sketches: set[tuple[int, ...]] = field(default_factory=set)

    def take(self, pair: Pair) -> bool:
        """Whether a pair is new; it is remembered."""
        query = pair.query.lower()
        code = sketch(pair.text)
        if query in self.queries or code in self.sketches:
            return False
        self.queries.add(query)
        self.sketches.add(code)
        return True


def make(args: argparse.Namespace) -> None:
    """Write the pairs of all packages."""
    if args.output.exists():
        raise InputError(f"{args.output}: is there already; remove it, or name another --output")
    packages = read_list()
    with ThreadPoolExecutor(args.downloads) as pool:
        files = list(pool.map(partial(fetched, args.cache), packages))
    seen = Seen()
    held_out: dict[str, list[Pair]] = {}
    others: dict[str, list[Pair]] = {}
    # Those that are held out first, so that no copy of them is trained on.
    in_order = sorted(
        zip(packages, files, strict=True), key=lambda pair: (pair[0].name not in HELD_OUT, pair[0])
    )
    for package, file in tqdm(in_order, unit="packages"):
        name = f"{package.source}/{package.name}"
        pairs = [pair for pair in pairs_of(file, name) if seen.take(pair)]
        random.Random(0).shuffle(pairs)
        pairs = pairs[:MOST_OF_A_PACKAGE]
        if pairs:
            part = held_out if package.name in HELD_OUT else others
            part[name] = pairs
    names = sorted(others)
    random.Random(0).shuffle(names)
    dev = set(names[: round(len(names) * DEV_SHARE)])
    args.output.mkdir(parents=True)
    write_pairs(
        args.output / "dev.jsonl.gz", [pair for name in sorted(dev) for pair in others[name]]
    )
    train = [pair for name in sorted(set(names) - dev) for pair in others[name]]
    random.Random(0).shuffle(train)
    write_pairs(args.output / "train.jsonl.gz", train)
    code = [{"title": pair.title, "text": pair.text} for pair in train]
    write_lines(args.output / "code.jsonl.gz", code)
    to_mine = pairs_to_mine(train)
    write_pairs(args.output / "mining.jsonl.gz", to_mine)
    test = QuestionSet()
    for pair in chain.from_iterable(held_out.values()):
        test.documents[pair.docid] = (pair.title, pair.text)
        test.questions.append((pair.query, [pair.docid]))
    test.write(args.output / "test")
    counts = {
        "packages": len(packages),
        "packages with pairs": len(others) + len(held_out),
        "train": len(train),
        "mining": len(to_mine),
        "dev": sum(len(others[name]) for name in dev),
        "test": len(test.questions),
        "languages": Counter(pair.language for pair in train).most_common(),
    }
    (args.output / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(counts))


def pairs_to_mine(train: Sequence[Pair]) -> list[Pair]:
    """The pairs of packages drawn with seed 0, until there are :data:`PAIRS_TO_MINE`; in the order of ``train``."""
    counts = Counter(_package_of(pair) for pair in train)
    names = sorted(counts)
    random.Random(0).shuffle(names)
    sample: set[str] = set()
    pair_count = 0
    for name in names:
        if pair_count >= PAIRS_TO_MINE:
            break
        sample.add(name)
        pair_count += counts[name]
    return [pair for pair in train if _package_of(pair) in sample]


def _package_of(pair: Pair) -> str:
    """The source of a pair's package and its name, which may have a scope (``npm/@scope/name``)."""
    parts = pair.docid.split("/")
    has_scope = parts[1].startswith("@")
    return "/".join(parts[: 3 if has_scope else 2])


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as ``dupmae-ir finetune --pairs`` reads them."""
    rows = []
    for pair in pairs:
        positive = {"id": pair.docid, "title": pair.title, "text": pair.text}
        rows.append({"query": pair.query, "positive": positive})
    write_lines(path, rows)


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as gzipped JSON lines, always with the same bytes."""
    with atomic_write(path, "wb") as f, gzip.GzipFile("", "wb", fileobj=f, mtime=0) as packed:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False)
            packed.write(line.encode("utf-8", "replace") + b"\n")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    actions: dict[str, Callable[[argparse.Namespace], None]] = {"draw": draw, "make": make}
    for name, action in actions.items():
        command = commands.add_parser(name, help=action.__doc__)
        command.add_argument("--cache", type=Path, required=True, help="folder of the packages")
        command.add_argument("--downloads", type=int, default=4, help="at a time")
        command.set_defaults(action=action)
        if name == "make":
            command.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    return guarded(lambda: args.action(args), "code_pairs.py")


if __name__ == "__main__":
    raise SystemExit(main())
