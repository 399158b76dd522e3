"""The one error tree. Whatever a user can cause is a :class:`DupmaeError`; anything else is a bug.

``exit_status`` is what the command line ends with: 2 for misuse (a wrong flag, path, format or
combination), 1 for a job that was asked for correctly but failed (disk full, JVM missing).
"""

from __future__ import annotations


class DupmaeError(Exception):
    """Base of every error this package raises on purpose. The message is one line that says what
    came, what was wanted and what to do next."""

    exit_status = 1


class UsageError(DupmaeError):
    """The command or call cannot be carried out as asked: a bad flag, value or combination."""

    exit_status = 2


class InputError(UsageError):
    """A file the user gave cannot be read as what it should be; names the file and the line."""


class UnknownName(UsageError):
    """No collection, encoder, method or measure of that name."""


class CheckpointError(UsageError):
    """A model folder that is missing, incomplete, or lacks the part that was asked for."""


class HeadMissing(CheckpointError):
    """A model folder whose encoder is there and whose masked-LM head is not, or was never trained."""


class IndexMismatch(UsageError):
    """Two things that must agree do not: index and encoder, shard and shard, part and input."""


class EnvironmentProblem(DupmaeError):
    """The machine lacks something (Java, a package, disk space); the message names the fix."""


class Licensed(EnvironmentProblem):
    """A collection that nobody may hand out; the message says how to obtain it and where to put it."""


class WrongCollection(DupmaeError):
    """A collection is not what its name promises; the message says what was expected and what was found."""


class OutputError(DupmaeError):
    """A result could not be written; nothing that existed before was damaged."""


class TrainingFailed(DupmaeError):
    """A loss or a weight stopped being a number; what was saved before is good."""
