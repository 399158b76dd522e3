"""The front of every command: read the flags, run the job, print its result, end with an exit status.

A command is declared once, as a :class:`Command`: its settings, where its work is, and how a result reads. The module
with the work (and with it torch or Lucene) is imported when the flags are known to be right, so ``--help`` and a
mistyped flag answer at once.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, guarded, say


@dataclass(frozen=True)
class Command:
    """``dupmae-ir VERB``.

    ``work`` is ``"module:function"``: a function of one ``config`` that returns the result, a JSON-able value (or
    None, on the worker processes of a distributed run). ``summarize(config, result)`` gives the line for the person
    watching, on standard error; ``show(config, result)`` the answer itself, on standard output. With ``--json`` the
    result is printed on standard output instead of what ``show`` gives. ``status(config, result)`` is the exit status
    of a command that completed and found something wrong (a check that failed); without it, 0.
    """

    verb: str
    purpose: str
    examples: str
    config: type
    work: str
    summarize: Callable[[Any, Any], str] | None = None
    show: Callable[[Any, Any], str] | None = None
    status: Callable[[Any, Any], int] | None = None
    resumes: bool = False  #: an interrupted run is continued by the same command

    def __call__(self, argv: list[str] | None = None) -> int:
        """Parse ``argv`` (default: the process's), run, print. Returns the exit status."""
        prog = f"dupmae-ir {self.verb}"
        return guarded(lambda: self._main(argv), prog, "; run the same command to resume" if self.resumes else "")

    def _main(self, argv: list[str] | None) -> int:
        config: Any = parse(Parser(self.verb, self.purpose, self.examples), self.config, argv)
        result = load(self.work)(config)
        if result is None:
            return 0
        if self.summarize and (text := self.summarize(config, result)):
            say(text, config.quiet)
        if config.json:
            print(json.dumps(result, ensure_ascii=False))
        elif self.show and (text := self.show(config, result)):
            print(text)
        return self.status(config, result) if self.status else 0

    def exit(self) -> None:
        """Run as a program."""
        sys.exit(self())


def load(name: str) -> Any:
    """The object that ``"module:name"`` refers to."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
