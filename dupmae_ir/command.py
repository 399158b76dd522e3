"""The front of every command: read the flags, run the job, print its result, end with an exit status.

A command is declared once, as a :class:`Command`: its settings, where its work is, and how a result reads. The module
with the work (and with it torch or Lucene) is imported when the flags are known to be right, so ``--help`` and a
mistyped flag answer at once.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dupmae_ir.config import parse, with_flags
from dupmae_ir.console import Parser, guarded, never_silent, say, show, visible
from dupmae_ir.device import need_packages
from dupmae_ir.registry import suggest

_LOADING = ("encode", "finetune", "pretrain")
"""Packages whose work loads models and reads collections before there is anything to show."""


@dataclass(frozen=True)
class Command:
    """``dupmae-ir VERB``.

    ``config`` is the dataclass of its settings; its docstring is the text of the help page, with the commands after
    ``Examples:`` at the end. ``work`` is ``"module:function"``: a function of one ``config`` that returns the result, a
    JSON-able value (or None, on the worker processes of a distributed run). ``summarize(config, result)`` gives the
    line for the person watching, on standard error; ``show(config, result)`` the answer itself, on standard output.
    With ``--json``, ``as_json(config, result)`` is printed instead, by default the result on one line. An empty string
    prints nothing. ``status(config, result)`` is the exit status of a command that completed and found something wrong
    (a check that failed); without it, 0. ``epilog`` is appended to the help page.
    """

    verb: str
    config: type
    work: str
    summarize: Callable[[Any, Any], str] | None = None
    show: Callable[[Any, Any], str] | None = None
    as_json: Callable[[Any, Any], str] | None = None
    resumes: bool = False  #: an interrupted run is continued by the same command
    packages: tuple[str, ...] = ()  #: packages of ``extra`` that ``work`` imports
    extra: str = "train"  #: the extra that installs ``packages``
    status: Callable[[Any, Any], int] | None = None
    #: ``config.processes`` processes run ``work``, started by torch's launcher
    distributed: bool = False
    epilog: str = ""

    def __call__(self, argv: list[str] | None = None) -> int:
        """Parse ``argv`` (default: the process's), run, print. Returns the exit status."""
        prog = f"dupmae-ir {self.verb}"
        hint = ""
        if self.resumes:
            hint = "; run the same command to resume"
        return guarded(
            lambda: self._main(argv), prog, hint, lambda message: with_flags(message, self.config)
        )

    def _main(self, argv: list[str] | None) -> int:
        parser = Parser(self.verb, *help_text(self.config))
        parser.epilog = self.epilog or None
        config: Any = parse(parser, self.config, argv)
        need_packages(f"dupmae-ir {self.verb}", self.packages, self.extra)
        # An ending process need not collect torch's objects, which takes seconds: frozen objects are not collected.
        atexit.register(gc.freeze)

        # The launcher starts this command again in each process, with WORLD_SIZE set.
        if self.distributed and config.processes > 1 and "WORLD_SIZE" not in os.environ:
            launch = load("dupmae_ir.training.launch:launch")
            words = sys.argv[1:] if argv is None else argv
            return launch(self.verb, words, config.processes)

        loads_models = self.work.split(".")[1] in _LOADING
        first_process = os.environ.get("RANK", "0") == "0"
        silent = config.quiet or not loads_models or not first_process
        with never_silent(f"dupmae-ir {self.verb}", silent):
            # Imports make many objects and no garbage, which would be searched for again and again.
            gc.disable()
            work = load(self.work)
            gc.freeze()
            gc.enable()
            result = work(config)
        if result is None:
            return 0
        self._print_result(config, result)
        if self.status is None:
            return 0
        return self.status(config, result)

    def _print_result(self, config: Any, result: Any) -> None:
        """The summary on standard error, the answer on standard output."""
        if self.summarize:
            summary = self.summarize(config, result)
            if summary:
                say(_with_names_on_one_line(summary, config), config.quiet)
        answer = ""
        if config.json and self.as_json:
            answer = self.as_json(config, result)
        elif config.json:
            answer = json.dumps(result, ensure_ascii=False)
        elif self.show:
            answer = _with_names_on_one_line(self.show(config, result), config)
        if answer:
            show(answer, emphasis=not config.json)

    def exit(self) -> None:
        """Run as a program."""
        sys.exit(self())


def _with_names_on_one_line(text: str, config: Any) -> str:
    """``text`` with the line breaks of the settings' file names written out: it stays as many lines as it means."""
    for value in vars(config).values():
        words = value if isinstance(value, tuple) else (value,)
        for word in words:
            if isinstance(word, str) and "\n" in word:
                text = text.replace(word, visible(word, breaks=True))
    return text


def help_text(config: type) -> tuple[str, str]:
    """The purpose of a command and its example command lines, from the docstring of its settings."""
    purpose, _, examples = (inspect.getdoc(config) or "").partition("\n\nExamples:\n")
    return purpose, textwrap.dedent(examples)


def dispatch(group: str, verbs: Mapping[str, tuple[str, Command]], argv: list[str] | None) -> int:
    """Run one of the commands of a group: name -> (one line of help, command). Returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    verb, *rest = words or ["--help"]
    if verb in ("-h", "--help"):
        width = max(map(len, verbs)) + 2
        lines = []
        examples = []
        for name, (line, command) in verbs.items():
            lines.append(f"  {name.ljust(width)}{line}")
            _, commands = help_text(command.config)
            examples.append(f"  {commands.splitlines()[0]}")
        print(f"usage: dupmae-ir {group} COMMAND ...\n\ncommands:")
        print("\n".join(lines) + "\n\nexamples:\n" + "\n".join(examples) + "\n")
        print(
            f"dupmae-ir {group} COMMAND --help shows the options of a command; all accept --quiet."
        )
        return 0
    if verb not in verbs:
        known = ", ".join(verbs)
        print(
            f"dupmae-ir {group}: no command named {verb!r}; known: {known}.{suggest(verb, verbs)}",
            file=sys.stderr,
        )
        return 2
    _, command = verbs[verb]
    return command(rest)


def load(name: str) -> Any:
    """The object that ``"module:name"`` refers to."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
