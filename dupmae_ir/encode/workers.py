"""Who encodes the shards: this process, one process for each device, or the actors of a Ray cluster.

All have the interface :class:`Workers` and run :func:`~dupmae_ir.encode.shards.encode_shard`. They return shards in any
order; a shard whose worker dies is encoded again by another.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from dupmae_ir import errors
from dupmae_ir.console import say
from dupmae_ir.encode.shards import Encoded, EncoderChoice, EncoderFacts, Shard, encode_shard
from dupmae_ir.errors import DupmaeError, EnvironmentProblem
from dupmae_ir.types import Encoder

AHEAD = 2
"""Shards that a worker has at a time: one that it encodes and one that waits, so that it never does."""
ATTEMPTS = 5
"""How often a shard is given to a worker that dies of it. Others may be killed for reasons of their own."""


class Workers(Protocol):
    """Encoders at work."""

    @property
    def facts(self) -> EncoderFacts:
        """The encoder's; loads it where no worker has yet."""

    def encode(self, shards: Iterable[Shard]) -> Iterator[Encoded]:
        """The shards encoded, in any order. ``shards`` is read no further than the workers need."""

    def close(self) -> None:
        """End them; calling it again is harmless."""


class Here:
    """This process is the worker."""

    def __init__(self, choice: EncoderChoice, device: str) -> None:
        self.choice = choice
        self.encoder = choice.load(device)

    @property
    def facts(self) -> EncoderFacts:
        """See :class:`Workers`."""
        return EncoderFacts.of(self.encoder)

    def encode(self, shards: Iterable[Shard]) -> Iterator[Encoded]:
        """See :class:`Workers`."""
        for shard in shards:
            yield encode_shard(self.encoder, shard, self.choice)

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class Failed:
    """An error in a worker, as it travels to the process that reports it."""

    kind: str  #: class of :mod:`dupmae_ir.errors`; empty for an error of the program
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """The message of a user's error, the traceback of any other."""
        if isinstance(error, DupmaeError):
            return cls(type(error).__name__, str(error))
        return cls("", "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """The error to raise here."""
        kind = getattr(errors, self.kind, None)
        return kind(self.message) if kind else RuntimeError(f"in a worker:\n{self.message}")


def attempt(encoder: Encoder, shard: Shard, choice: EncoderChoice, worker: str) -> Encoded | Failed:
    """:func:`encode_shard` in a worker: its errors are returned."""
    try:
        encoded = encode_shard(encoder, shard, choice)
    except Exception as e:  # whatever it is, the process that collects the results must report it
        return Failed.of(e)
    return Encoded(encoded.number, encoded.part, encoded.scale, encoded.seconds, worker)


class Attempts:
    """Counts the workers that died with a shard, and gives up on a shard that kills every one."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._deaths: dict[int, int] = {}

    def died(self, worker: str, how: str, shard: Shard | None) -> None:
        """Report the death of a worker while it had ``shard``. Raises :class:`EnvironmentProblem` at the last."""
        if shard is None:
            say(f"note: worker {worker} {how}; it is started again", self.quiet)
            return
        deaths = self._deaths[shard.number] = self._deaths.get(shard.number, 0) + 1
        if deaths >= ATTEMPTS:
            raise EnvironmentProblem(
                f"{shard}: {deaths} workers in turn died of it, the last {worker}, which {how}; finished shards are "
                f"kept. Look for a lack of memory (kernel log), use a smaller --window, and run the same command again"
            )
        say(f"note: worker {worker} {how} with {shard}, which is encoded again", self.quiet)


def check_alike(first: EncoderFacts, other: EncoderFacts, worker: str) -> None:
    """Raise :class:`EnvironmentProblem` for a worker whose encoder differs from the first one's."""
    if difference := first.difference(other):
        raise EnvironmentProblem(
            f"worker {worker} has {difference}; all machines need the same model folder and the same version"
        )
