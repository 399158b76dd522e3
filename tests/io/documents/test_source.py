"""Source code as its grammar has it: definitions, their comments, and where passages may end."""

import json
import os
import signal
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

import dupmae_ir
from dupmae_ir.io.documents import files
from dupmae_ir.io.documents.isolation import ISOLATION
from dupmae_ir.io.documents.passages import EstimatedTokens, structured_passages
from dupmae_ir.io.documents.readers import source
from dupmae_ir.io.documents.readers.code import read_code
from dupmae_ir.io.documents.readers.grammars import GRAMMARS
from dupmae_ir.io.documents.readers.registry import FORMATS, KINDS
from dupmae_ir.io.documents.readers.source import read_source, syntax_tree
from tests.support.document_samples import extract

SAMPLES = {
    "python": """
        import os

        # Adds one.
        @cache
        def add(x):
            '''The sum.'''
            def inner(): return x
            return inner() + 1

        class Reader(Base):
            '''Reads.'''

            limit = 3

            # Opens it.
            @property
            def open(self):
                pass

            after = 4

        TABLE = {
            "a": 1,
        }
        """,
    "javascript": """
        import x from "y";
        /** Listens. */

        app.listen = function listen(port) {
          return port;
        };
        export const twice = async (x) => {
          return 2 * x;
        };
        class Store extends Base {
          #secret = 1;
          get(key) { return key; }
          put = () => {
          };
        }
        (function () {
          function hidden() {}
        })();
        """,
    "typescript": """
        /** A point. */
        export interface Point {
          x: number;
        }
        export namespace Shapes {
          @sealed()
          export abstract class Circle {
            private area(): number { return 1; }
          }
        }
        type Name = string;
        enum Kind { A }
        export const Check = make("Check", (inst) => {
          inst.run = () => 1;
        });
        """,
    "tsx": """
        export function Button({ text }: Props) {
          return <button>{text}</button>;
        }
        """,
    "java": """
        package a;
        import b.C;
        /** Reads JSON. */
        @Deprecated
        public class Gson {
          private int x;
          /** Makes one. */
          public Gson() {}
          @Override
          public String toJson(Object o) {
            return "";
          }
          static class Builder { void build() {} }
          interface Visitor {
            void visit();
          }
        }
        record Pair(int a, int b) {}
        """,
    "c": """
        #include <stdio.h>
        /* Adds. */
        static int *add(int a)
        {
          return 0;
        }
        typedef struct {
          int a;
        } pair_t;
        struct node *next(struct node *n) {
          return n;
        }
        #ifdef X
        #define TWICE(x) (2 * (x))
        enum kind {
          A
        };
        #endif
        """,
    "cpp": """
        namespace db {
        // A store.
        template <class T>
        class Store : Base {
         public:
          Store() : x_(1) {
          }
          bool empty() const { return true; }
        };
        int Store<int>::size(int x) {
          return 1;
        }
        }
        """,
    "csharp": """
        using System;
        namespace Data
        {
            /// <summary>Maps.</summary>
            public class Mapper : Base
            {
                public int Size { get; set; }
                [Fast]
                public async Task<int> Query(int x)
                {
                    return 1;
                }
            }
            enum Kind { A }
        }
        """,
    "go": """
        package http

        // Add adds.
        func Add(x int) int {
            return x
        }
        // Serve serves.
        func (s *Server[T]) Serve(x int) {
        }
        type (
            Point struct {
                x int
            }
        )
        var table = map[string]int{
            "a": 1,
        }
        """,
    "rust": """
        use std::io;
        /// A store.
        #[derive(Debug)]
        pub struct Store<T> {
            x: T,
        }
        impl<T: Clone> Trait for Store<T> {
            /// The size.
            #[inline]
            fn size(&self) -> usize {
                1
            }
        }
        mod tests {
            fn works() {}
        }
        macro_rules! twice { () => {} }
        """,
    "ruby": """
        require "x"
        module Web
          # A server.
          class Server < Base
            attr_reader :port
            def listen(port)
              port
            end
            def self.start; end
          end
        end
        """,
    "php": """
        <?php
        namespace App;
        /** Routes. */
        #[Fast]
        class Router extends Base {
          use Logs;
          /** Maps. */
          public function map() {
          }
        }
        function helper() {}
        """,
    "bash": """
        #!/bin/bash
        set -e

        # Builds.
        build() {
          make
        }
        function clean {
          rm x
        }
        """,
    "scala": """
        package a
        /** A point. */
        case class Point(x: Int) extends Base {
          def twice: Int = {
            2
          }
        }
        object Point { val origin = 1 }
        def add(x: Int): Int =
          x
        """,
    "kotlin": """
        package a

        import b.C

        /** A point. */
        class Point(val x: Int) {
          fun twice(): Int {
            return 2
          }

          companion object {
            fun make() = 2
          }
        }

        fun String.shout() = 1
        """,
    "swift": """
        /// A point.
        @objc public class Point: Base {
          init(x: Int) {}
          func twice() -> Int { return 1 }
        }
        extension Point {
          func half() {}
        }
        """,
    "lua": """
        local M = {}
        -- Adds.
        function M.add(x)
          return x
        end
        local function twice(x)
          return 2 * x
        end
        """,
    "perl": """
        package Foo;
        use strict;
        # Adds.
        sub add {
          return 1;
        }

        =head1 NAME

        Foo - a module

        =head2 add

        It adds.

        =cut

        1;
        """,
    "haskell": """
        module A where
        import B
        twice :: Int -> Int
        twice 0 = 0
        twice x = two x
          where
            two y = y
        data Point = Point {
          px :: Int
         }
        """,
    "objc": """
        #import <A.h>
        /// A point.
        @interface Point : NSObject
        - (void)move:(int)x
          to:(int)y;
        @end
        @implementation Point
        - (void)move:(int)x to:(int)y
        {
          return;
        }
        @end
        """,
    "dart": """
        /// A point.
        class Point extends Base {
          int x = 1;
          @override
          int twice(int y) {
            return 1;
          }
          int get half => 2;
        }
        int add() => 1;
        """,
}

DEFINITIONS = {
    "python": {
        "add": "# Adds one.",
        "Reader": "class Reader(Base):",
        "Reader.open": "# Opens it.",
        "TABLE": "TABLE = {",
    },
    "javascript": {
        "app.listen": "/** Listens. */",
        "twice": "export const twice = async (x) => {",
        "Store": "class Store extends Base {",
        "Store.get": "get(key) { return key; }",
        "Store.put": "put = () => {",
        "hidden": "function hidden() {}",
    },
    "typescript": {
        "Point": "/** A point. */",
        "Shapes": "export namespace Shapes {",
        "Shapes.Circle": "@sealed()",
        "Shapes.Circle.area": "private area(): number { return 1; }",
        "Name": "type Name = string;",
        "Kind": "enum Kind { A }",
        "Check": 'export const Check = make("Check", (inst) => {',
    },
    "tsx": {"Button": "export function Button({ text }: Props) {"},
    "java": {
        "Gson": "/** Reads JSON. */",
        "Gson.Gson": "/** Makes one. */",
        "Gson.toJson": "@Override",
        "Gson.Builder": "static class Builder { void build() {} }",
        "Gson.Visitor": "interface Visitor {",
        "Gson.Visitor.visit": "void visit();",
        "Pair": "record Pair(int a, int b) {}",
    },
    "c": {
        "add": "/* Adds. */",
        "pair_t": "typedef struct {",
        "next": "struct node *next(struct node *n) {",
        "TWICE": "#define TWICE(x) (2 * (x))",
        "kind": "enum kind {",
    },
    "cpp": {
        "Store": "// A store.",
        "Store.Store": "Store() : x_(1) {",
        "Store.empty": "bool empty() const { return true; }",
        "Store<int>::size": "int Store<int>::size(int x) {",
    },
    "csharp": {
        "Mapper": "/// <summary>Maps.</summary>",
        "Mapper.Size": "public int Size { get; set; }",
        "Mapper.Query": "[Fast]",
        "Kind": "enum Kind { A }",
    },
    "go": {
        "Add": "// Add adds.",
        "Server.Serve": "// Serve serves.",
        "Point": "Point struct {",
        "table": "var table = map[string]int{",
    },
    "rust": {
        "Store": "/// A store.",
        "Store.size": "/// The size.",
        "tests": "mod tests {",
        "tests.works": "fn works() {}",
        "twice": "macro_rules! twice { () => {} }",
    },
    "ruby": {
        "Web": "module Web",
        "Web.Server": "# A server.",
        "Web.Server.listen": "def listen(port)",
        "Web.Server.start": "def self.start; end",
    },
    "php": {
        "Router": "/** Routes. */",
        "Router.map": "/** Maps. */",
        "helper": "function helper() {}",
    },
    "bash": {"build": "# Builds.", "clean": "function clean {"},
    "scala": {
        "Point": "/** A point. */",
        "Point.twice": "def twice: Int = {",
        "add": "def add(x: Int): Int =",
    },
    "kotlin": {
        "Point": "/** A point. */",
        "Point.twice": "fun twice(): Int {",
        "Point.make": "fun make() = 2",
        "shout": "fun String.shout() = 1",
    },
    "swift": {
        "Point": "/// A point.",
        "Point.init": "init(x: Int) {}",
        "Point.twice": "func twice() -> Int { return 1 }",
        "Point.half": "func half() {}",
    },
    "lua": {"M.add": "-- Adds.", "twice": "local function twice(x)"},
    "perl": {"add": "# Adds.", "NAME": "=head1 NAME"},
    "haskell": {"twice": "twice :: Int -> Int", "Point": "data Point = Point {"},
    "objc": {"Point": "/// A point.", "Point.move": "- (void)move:(int)x"},
    "dart": {
        "Point": "/// A point.",
        "Point.twice": "@override",
        "Point.half": "int get half => 2;",
        "add": "int add() => 1;",
    },
}
"""Language -> definition -> the first line of its first section."""


def sample(language: str) -> str:
    return textwrap.dedent(SAMPLES[language]).lstrip("\n")


def first_lines(text: str, found) -> dict[str, str]:
    lines = {}
    for heading in found.headings:
        line = text[heading.start :].splitlines()[0].strip()
        lines.setdefault(heading.text, line)
    lines.pop("", None)
    return lines


def test_every_language_has_a_grammar_a_sample_and_endings():
    languages = {entry.language for entry in FORMATS.values() if entry.language}
    assert languages == set(GRAMMARS) == set(SAMPLES) == set(DEFINITIONS)
    assert len(languages) >= 20
    assert {KINDS[ending] for ending in ("py", "h", "tsx", "zsh", "kts")} <= languages


@pytest.mark.parametrize("language", GRAMMARS)
def test_definitions_begin_with_their_comments(language):
    text = sample(language)
    assert not syntax_tree(text.encode(), language).root_node.has_error
    found = read_source(text.encode(), language)
    assert found.text == text
    assert first_lines(text, found) == DEFINITIONS[language]


def test_what_follows_a_definition_has_the_name_of_what_is_around_it():
    text = sample("python")
    found = read_source(text.encode(), "python")
    sections = [("", 0), *((heading.text, heading.start) for heading in found.headings)]
    ends = [*(start for _, start in sections[1:]), len(text)]
    by_line = {}
    for (name, start), end in zip(sections, ends, strict=True):
        for line in text[start:end].split("\n"):
            by_line[line.strip()] = name
    assert by_line["limit = 3"] == by_line["after = 4"] == "Reader"
    assert by_line["import os"] == ""
    # A function inside another is read with it.
    assert by_line["def inner(): return x"] == "add"


def test_the_equations_of_a_function_and_overloads_are_one_section():
    found = read_source(sample("haskell").encode(), "haskell")
    assert [heading.text for heading in found.headings] == ["twice", "Point"]


# Passages


def passages(text: str, language: str, length: int, overlap: int = 0):
    found = read_source(text.encode(), language)
    return list(structured_passages(found, lambda _: length, overlap, EstimatedTokens()))


def joined(text: str, spans) -> str:
    """The characters of passages without overlap, with those between that are white space."""
    for before, after in pairwise(spans):
        assert before.end <= after.start
        assert not text[before.end : after.start].strip()
    return text[spans[0].start : spans[-1].end]


@pytest.mark.parametrize("length", [8, 20, 60, 300])
@pytest.mark.parametrize("language", GRAMMARS)
def test_no_line_is_lost(language, length):
    text = sample(language)
    spans = passages(text, language, length)
    assert joined(text, spans) == text.strip()


def uncuttable(text: str, language: str, length: int):
    """The rows of each function and statement that fits in ``length`` tokens: its first row and its last."""
    grammar = GRAMMARS[language]
    nodes = [syntax_tree(text.encode(), language).root_node]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        first, last = node.start_point.row, source._last_row(node)
        is_part = node.type in grammar.functions or node.type.endswith("_statement")
        if not is_part or first == last:
            continue
        lines = text.split("\n")[first : last + 1]
        if len(EstimatedTokens().starts("\n".join(lines))) <= length:
            yield first, last


PACKAGE = Path(dupmae_ir.__file__).parent
REAL = {
    "python": [PACKAGE / "io/documents/passages.py", PACKAGE / "io/documents/collection.py"],
    "javascript": sorted(PACKAGE.rglob("*.js"))[:3],
    "java": sorted(PACKAGE.rglob("*.java"))[:3],
}


@pytest.mark.parametrize("length", [40, 100, 250])
@pytest.mark.parametrize(
    ("language", "path"), [(language, path) for language, paths in REAL.items() for path in paths]
)
def test_what_fits_in_a_passage_is_not_cut(language, path, length):
    text = path.read_text(encoding="utf-8")
    spans = passages(text, language, length)
    assert joined(text, spans) == text.strip()
    cuts = {text.count("\n", 0, span.start) for span in spans}
    tokens = EstimatedTokens()
    for span in spans:
        assert len(tokens.starts(text[span.start : span.end])) <= length
    for first, last in uncuttable(text, language, length):
        assert not cuts & set(range(first + 1, last + 1)), text.split("\n")[first]


def test_long_functions_are_cut_between_statements_at_the_least_deep_border():
    body = "".join(
        f"    if step({i}):\n        first({i})\n        second({i})\n" for i in range(20)
    )
    text = f'def run():\n    """Runs all."""\n{body}    return 1\n'
    spans = passages(text, "python", 60)
    starts = [text[span.start : span.end].split("(")[0] for span in spans]
    assert starts[0] == "def run"
    assert set(starts[1:]) == {"if step"}
    assert {span.heading for span in spans} == {"run"}
    assert all('"""Runs all."""' not in text[span.start : span.end] for span in spans[1:])


LOOPS = {
    "python": (
        "def run():\n    first()\n    for x in range(10):\n",
        "        call({i}, 'some words here')\n",
        "",
    ),
    "go": (
        "func run() {\n\tfirst()\n\tfor x := range values {\n",
        "\t\tcall({i}, some, words)\n",
        "\t}\n}\n",
    ),
    "ruby": (
        "def run\n  first()\n  for x in 1..10\n",
        "    call({i}, some, words)\n",
        "  end\nend\n",
    ),
    "javascript": (
        "function run() {\n  first();\n  for (const x of values) {\n",
        "    call({i}, some, words);\n",
        "  }\n}\n",
    ),
}


@pytest.mark.parametrize("length", range(25, 60))
@pytest.mark.parametrize("language", LOOPS)
def test_the_first_line_of_a_loop_stays_with_what_follows_it(language, length):
    head, statement, end = LOOPS[language]
    text = head + "".join(statement.format(i=i) for i in range(12)) + end
    loop = head.splitlines()[-1]
    for span in passages(text, language, length):
        assert text[span.start : span.end].splitlines()[-1] != loop


def test_the_first_lines_of_nested_loops_stay_together():
    body = "".join(f"            call({i}, 'some words here')\n" for i in range(12))
    text = f"def run():\n    first()\n    for x in ten:\n        for y in ten:\n{body}"
    for length in range(30, 60):
        first, *_ = passages(text, "python", length)
        assert text[first.start : first.end].splitlines()[-1].strip().startswith("call(")


def test_a_small_definition_does_not_push_the_next_one_over_its_end():
    small = "def small():\n    return 1\n"
    large = "def large():\n" + "".join(f"    call({i})\n" for i in range(12))
    spans = passages(small + large, "python", len(EstimatedTokens().starts(large)) + 3)
    assert [span.heading for span in spans] == ["small", "large"]


def test_passages_overlap_inside_a_definition_only():
    one = "def one():\n" + "".join(f"    call({i})\n" for i in range(30))
    two = one.replace("one", "two")
    text = one + two
    spans = passages(text, "python", 60, overlap=15)
    overlapping = [after.start < before.end for before, after in pairwise(spans)]
    begins_two = [span.heading for span in spans].index("two")
    assert not overlapping[begins_two - 1]
    assert overlapping.count(False) == 1


# Texts that the grammar does not understand


def test_a_text_in_another_language_is_read_by_lines():
    matlab = "% Adds.\nfunction y = add(x)\n  y = x + 1;\nend\n" * 5
    assert KINDS["m"] == "objc"
    assert read_source(matlab.encode(), "objc") == read_code(matlab.encode())


def test_a_damaged_file_keeps_what_is_understood():
    text = "def one(:\n    pass\n\ndef two():\n    return 1\n\nclass Three:\n    def four(self):\n        pass\n"
    found = read_source(text.encode(), "python")
    assert {"two", "Three.four"} <= {heading.text for heading in found.headings}
    assert joined(text, passages(text, "python", 10)) == text.strip()


def test_a_text_that_takes_too_long_is_read_by_lines(monkeypatch):
    monkeypatch.setattr(source, "_SECONDS", 0)
    text = sample("dart") + "class A {" * 4000
    with pytest.raises(TimeoutError):
        syntax_tree(text.encode(), "dart")
    assert read_source(text.encode(), "dart") == read_code(text.encode())
    monkeypatch.undo()
    # The next text is not read as the rest of this one.
    assert first_lines(sample("dart"), read_source(sample("dart").encode(), "dart"))


def test_a_file_too_large_for_a_tree_is_read_by_lines(monkeypatch):
    monkeypatch.setattr(source, "_LARGEST", 100)
    text = sample("python").encode()
    assert read_source(text, "python") == read_code(text)


def test_a_grammar_that_ends_the_process_loses_no_file(monkeypatch):
    text = sample("python").encode()
    assert extract("a.py", text)[1].borders

    read = ISOLATION.read

    def read_and_die(kind, data):
        if kind == "code":
            return read(kind, data)
        process = ISOLATION._running()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        raise files.Unreadable("ended the process that reads it")

    monkeypatch.setattr(files.ISOLATION, "read", read_and_die)
    by_lines = extract("a.py", text)[1]
    assert not by_lines.borders
    assert (by_lines.text, by_lines.headings) == (text.decode(), list(read_code(text).headings))
    monkeypatch.undo()
    assert extract("a.py", text)[1].borders


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "[\n" * 20_000),
        ("javascript", "[\n" * 20_000 + "]\n" * 20_000),
        ("python", "if a:\n  b\n" + "elif a:\n  b\n" * 10_000),
        ("python", "".join(" " * i + "if x:\n" for i in range(500)) + " " * 500 + "pass\n"),
        ("ruby", "a" + ".b\n" * 20_000),
        ("perl", "=head1 x\n\n" * 20_000),
        ("haskell", ""),
        ("kotlin", "\n\n"),
    ],
)
def test_nested_and_odd_texts(language, text):
    found = read_source(text.encode("utf-8", "surrogatepass"), language)
    spans = list(structured_passages(found, lambda _: 250, 40, EstimatedTokens()))
    covered = bytearray(len(found.text))
    for span in spans:
        covered[span.start : span.end] = b"x" * (span.end - span.start)
    missing = [c for c, kept in zip(found.text, covered, strict=True) if not kept]
    assert not "".join(missing).strip()


# Notebooks


def notebook(cells: list[tuple[str, str]], language: str = "python") -> bytes:
    made = [{"cell_type": kind, "source": text} for kind, text in cells]
    return json.dumps(
        {"cells": made, "metadata": {"language_info": {"name": language}}, "nbformat": 4}
    ).encode()


def notebook_passages(data: bytes, length: int):
    _, found = extract("a.ipynb", data)
    spans = structured_passages(found, lambda _: length, 0, EstimatedTokens())
    return [found.text[span.start : span.end] for span in spans]


def test_notebooks_are_cut_between_cells():
    cells = [("code", f"x{i} = load({i})\nprint(x{i}. Then)") for i in range(8)]
    texts = notebook_passages(notebook(cells), 30)
    assert len(texts) > 2
    assert "\n\n".join(texts) == "\n\n".join(text for _, text in cells)
    for text in texts:
        assert text.startswith("x")
        assert text.endswith("Then)")


def test_long_cells_are_cut_between_statements():
    statements = [f"if a{i}:\n    run({i})\n    stop({i})" for i in range(12)]
    cells = [("markdown", "# Title\nSome words."), ("code", "\n".join(statements))]
    texts = notebook_passages(notebook(cells), 40)
    assert len(texts) > 2
    for text in texts[1:]:
        assert text.startswith("if a")
        assert text.rstrip(")").split("(")[-2].endswith("stop")


def test_cells_in_a_language_without_a_grammar_are_read():
    cells = [("code", "x <- 1\ny <- 2"), ("markdown", "The end.")]
    assert notebook_passages(notebook(cells, "R"), 100) == ["x <- 1\ny <- 2\n\nThe end."]
