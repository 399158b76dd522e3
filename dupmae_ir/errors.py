"""All exceptions of the package. Every error that a user can cause is a :class:`DupmaeError`; others are bugs.

``exit_status`` is the exit status of a command that fails with the error: 2 for misuse (a wrong flag, path, format or
combination), 1 for a correct request that failed (disk full, JVM missing).
"""

from __future__ import annotations

from collections.abc import Sequence


class DupmaeError(Exception):
    """Base class. The message is one line: what is wrong, what was expected, and what to do."""

    exit_status = 1


class UsageError(DupmaeError):
    """An invalid flag, value or combination."""

    exit_status = 2


class InputError(UsageError):
    """An input file with invalid contents; the message names the file and the line."""


class UnknownName(UsageError):
    """No collection, encoder, method or measure of that name."""


class CheckpointError(UsageError):
    """A model folder that is missing, incomplete, or lacks a required part."""


class HeadMissing(CheckpointError):
    """A model folder with an encoder but without a trained masked-LM head."""


class IndexMismatch(UsageError):
    """Two things that must agree do not: an index and an encoder, two shards, an output and new settings."""


class DamagedIndex(DupmaeError):
    """What ``dupmae-ir index verify`` found: one line a problem, in :attr:`problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n  ".join([f"{len(self.problems)} problem(s) found", *self.problems]))


class EnvironmentProblem(DupmaeError):
    """The machine lacks something (Java, a package, disk space); the message contains the fix."""


class Licensed(EnvironmentProblem):
    """A collection that may not be redistributed; the message explains how to obtain it and where to put it."""


class WrongCollection(DupmaeError):
    """A collection with contents other than expected; the message contains both."""


class OutputError(DupmaeError):
    """A result could not be written; existing files are intact."""


class TrainingFailed(DupmaeError):
    """A loss or a weight is not finite; earlier checkpoints are intact."""
