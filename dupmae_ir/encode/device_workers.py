"""``--devices``: one process for each device of this machine.

The processes are programs of their own, started with a socket to this one, so they work from any script or notebook.
They write no files: a shard is committed by the process that collects the results, so a worker may be killed at any
moment. It is started again, and its shards are encoded again, to the same bytes. When the collecting process dies, the
sockets close, and the workers end.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from dupmae_ir.device import processors, torch_threads
from dupmae_ir.encode.shards import Encoded, EncoderChoice, EncoderFacts, Shard
from dupmae_ir.encode.workers import AHEAD, Attempts, Failed, attempt, check_alike
from dupmae_ir.errors import EnvironmentProblem

STARTS = 3
"""How often in a row a worker may die before its encoder is loaded."""
_GONE = (EOFError, ConnectionResetError, BrokenPipeError)


@dataclass
class _Worker:
    """A process, the socket to it, and the shards that it has, oldest first."""

    name: str
    device: str
    process: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    starts: int = 1
    shards: deque[Shard] = field(default_factory=deque)

    def end(self) -> str:
        """Close the socket, wait for the process to end, and return how it did."""
        self.connection.close()
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return (
            f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
        )


class DeviceWorkers:
    """One process for each of ``devices``, which may repeat. See :class:`~dupmae_ir.encode.workers.Workers`."""

    def __init__(self, choice: EncoderChoice, devices: Sequence[str], quiet: bool) -> None:
        self.choice, self.devices = choice, list(devices)
        self.attempts = Attempts(quiet)
        self._workers: dict[int, _Worker] = {}  # by their number in ``devices``
        self._facts: EncoderFacts | None = None
        self._again: deque[Shard] = deque()

    def close(self) -> None:
        """End the processes; none has anything that must be saved."""
        for worker in self._workers.values():
            worker.process.kill()
            worker.end()
        self._workers.clear()

    @property
    def facts(self) -> EncoderFacts:
        """Those of the first worker, which is started for it."""
        if not self._workers:
            self._start(0)
        while self._facts is None:
            list(self._receive())
        return self._facts

    def encode(self, shards: Iterable[Shard]) -> Iterator[Encoded]:
        """See :class:`~dupmae_ir.encode.workers.Workers`. Processes are started when there are shards for them."""
        waiting = iter(shards)
        while True:
            self._hand_out(waiting)
            if not any(worker.shards for worker in self._workers.values()):
                return
            yield from self._receive()

    def _hand_out(self, waiting: Iterator[Shard]) -> None:
        """Give every worker a shard, and then every worker its next."""
        for depth in range(AHEAD):
            for number in range(len(self.devices)):
                worker = self._workers.get(number)
                if worker is not None and len(worker.shards) > depth:
                    continue
                shard = self._again.popleft() if self._again else next(waiting, None)
                if shard is None:
                    return
                worker = worker or self._start(number)
                worker.shards.append(shard)
                self._send(number, shard)

    def _send(self, number: int, message: object) -> None:
        try:
            self._workers[number].connection.send(message)
        except OSError:
            self._restart(number)

    def _receive(self) -> Iterator[Encoded]:
        """Wait for messages, and return the shards among them."""
        numbers = {id(worker.connection): number for number, worker in self._workers.items()}
        for connection in wait([worker.connection for worker in self._workers.values()]):
            number = numbers[id(connection)]
            worker = self._workers[number]
            if worker.connection is not connection:
                continue  # restarted meanwhile
            try:
                message = worker.connection.recv()
            except _GONE:
                self._restart(number)
                continue
            if isinstance(message, Failed):
                raise message.error()
            if isinstance(message, EncoderFacts):
                self._check(worker, message)
            else:
                worker.shards.popleft()
                yield message

    def _check(self, worker: _Worker, facts: EncoderFacts) -> None:
        self._facts = self._facts or facts
        check_alike(self._facts, facts, worker.name)
        worker.ready = True

    def _restart(self, number: int) -> None:
        """Start a dead worker's successor; what it had is encoded first."""
        worker = self._workers.pop(number)
        how = worker.end()
        if not worker.ready and worker.starts >= STARTS:
            raise EnvironmentProblem(
                f"worker {worker.name} {how} {STARTS} times before it had loaded the model; its own messages are above"
            )
        self.attempts.died(worker.name, how, worker.shards[0] if worker.ready and worker.shards else None)
        self._again.extendleft(reversed(worker.shards))
        self._start(number).starts = 1 if worker.ready else worker.starts + 1

    def _start(self, number: int) -> _Worker:
        mine, theirs = socket.socketpair()
        device = self.devices[number]
        code = f"from dupmae_ir.encode.device_workers import serve; serve({theirs.fileno()})"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=self._environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what libraries print belongs to the notes
            )
        twins = self.devices[:number].count(device)
        name = f"{device}#{twins}" if self.devices.count(device) > 1 else device
        worker = self._workers[number] = _Worker(name, device, process, Connection(mine.detach()))
        worker.connection.send((self.choice, device, name))
        return worker

    def _environment(self) -> dict[str, str]:
        """This process's, with its import path, and a share of the processors unless there is a number of threads."""
        share = self.choice.threads or max(1, processors() // len(self.devices))
        path = os.pathsep.join(filter(None, sys.path))
        threads = {"OMP_NUM_THREADS": str(share), "RAYON_NUM_THREADS": str(share)}
        if not self.choice.threads:
            threads = {name: os.environ.get(name, value) for name, value in threads.items()}
        return {**os.environ, **threads, "PYTHONPATH": path}


def serve(fd: int) -> None:
    """The program of a worker: load the encoder, then encode every shard that the socket brings."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the socket's end is what counts
    connection = Connection(fd)
    choice, device, name = connection.recv()
    inbox: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    with torch_threads(choice.threads):
        try:
            encoder = choice.load(device)
            connection.send(EncoderFacts.of(encoder))
        except Exception as e:  # whatever it is, the process that collects the results must report it
            connection.send(Failed.of(e))
            return
        while True:
            connection.send(attempt(encoder, inbox.get(), choice, name))


def _read(connection: Connection, inbox: queue.SimpleQueue[Shard]) -> None:
    """Take shards out of the socket at once, so that their sender never waits for an encoder."""
    try:
        while True:
            inbox.put(connection.recv())
    except _GONE:
        os._exit(0)  # the other side has ended, so nobody wants what is being encoded
