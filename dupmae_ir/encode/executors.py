"""Who encodes the windows: this process, one process for each device, or the actors of a Ray cluster.

All have the interface :class:`Executor` and run :func:`~dupmae_ir.encode.window_encoding.encode_window`. They return
windows in any order. Several workers share one loop, :class:`WorkerPool`: a worker has two windows at a time, and one
that dies is started again; its windows are encoded again, to the same bytes. Workers write no files: a window is
committed by the process that collects the results, so a worker may be killed at any moment.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from dupmae_ir.console import say
from dupmae_ir.device import need_packages, processors, torch_threads
from dupmae_ir.encode.window_encoding import (
    EncoderChoice,
    EncoderFacts,
    WindowResult,
    encode_window,
)
from dupmae_ir.encode.windows import Window
from dupmae_ir.errors import DupmaeError, EnvironmentProblem
from dupmae_ir.types import Encoder, ReportingEncoder

AHEAD = 2
"""Windows that a worker has at a time: one that it encodes, and the next, so that it never waits for one."""
ATTEMPTS = 5
"""Workers that may die while they encode the same window. More than one, because a worker can also be killed for a
reason that has nothing to do with the window."""
STARTS = 3
"""How often in a row a worker may die before its encoder is loaded."""
START_SECONDS = 600.0
"""How long the first actor of a cluster may take to start and to load its model; a full cluster starts none."""
_GONE = (EOFError, ConnectionResetError, BrokenPipeError)
"""What a read from a socket raises when the process at the other end has ended."""


class Executor(Protocol):
    """Encoders at work."""

    @property
    def facts(self) -> EncoderFacts:
        """What is recorded of the encoder; loads it if no worker has yet."""

    def encode(self, windows: Iterable[Window]) -> Iterator[WindowResult]:
        """The windows encoded, in any order. ``windows`` is read no further than the workers need."""

    def close(self) -> None:
        """End the workers; calling it again is harmless."""


class ThisProcess:
    """This process is the worker. ``on_share``: called with a window's number and the share of it that is encoded."""

    def __init__(self, choice: EncoderChoice, device: str) -> None:
        self.choice = choice
        self.encoder = choice.load(device)
        self.on_share: Callable[[int, float], object] = lambda _number, _share: None

    @property
    def facts(self) -> EncoderFacts:
        return EncoderFacts.of(self.encoder)

    def encode(self, windows: Iterable[Window]) -> Iterator[WindowResult]:
        for window in windows:
            if isinstance(self.encoder, ReportingEncoder):
                self.encoder.on_share = partial(self.on_share, window.number)
            yield encode_window(self.encoder, window, self.choice)

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class Died:
    """The end of a worker, and how it ended."""

    how: str


Message = EncoderFacts | WindowResult | Exception | Died
"""What a worker sends: the facts of its encoder, and then the windows that it was given, in order; or an error."""


@dataclass
class Worker:
    """A worker and the windows that it has, oldest first."""

    number: int
    name: str
    device: str
    ready: bool = False  #: it has loaded its encoder
    starts: int = 1  #: how often it was started without becoming ready
    windows: deque[Window] = field(default_factory=deque)


W = TypeVar("W", bound=Worker)


class WorkerPool(ABC, Generic[W]):
    """One worker for each of ``devices``, which may repeat; started when there are windows for them."""

    def __init__(self, choice: EncoderChoice, devices: Sequence[str], quiet: bool) -> None:
        self.choice = choice
        self.devices = list(devices)
        self.quiet = quiet
        self.workers: dict[int, W] = {}  # by their number in ``devices``
        self._facts: EncoderFacts | None = None
        self._again: deque[Window] = deque()
        self._deaths: Counter[int] = Counter()  # by the number of the window

    @abstractmethod
    def start(self, number: int, name: str) -> W:
        """Start a worker, which first sends the facts of its encoder."""

    @abstractmethod
    def send(self, worker: W, window: Window) -> None:
        """Give a window to a worker; a dead one is reported by :meth:`receive`."""

    @abstractmethod
    def receive(self) -> Iterable[tuple[W, Message]]:
        """Wait for messages of the workers and return at most one of each."""

    @abstractmethod
    def close(self) -> None:
        """See :class:`Executor`."""

    @property
    def facts(self) -> EncoderFacts:
        """Those of the first worker, which is started for it."""
        if not self.workers:
            self._start(0)
        while self._facts is None:
            list(self._collect())
        return self._facts

    def encode(self, windows: Iterable[Window]) -> Iterator[WindowResult]:
        """See :class:`Executor`."""
        waiting = iter(windows)
        while True:
            self._hand_out(waiting)
            if not any(worker.windows for worker in self.workers.values()):
                return
            yield from self._collect()

    def _hand_out(self, waiting: Iterator[Window]) -> None:
        """Give every worker a window, and then every worker its next."""
        # If few windows are left, every worker has one before any has two.
        for depth in range(AHEAD):
            for number in range(len(self.devices)):
                worker = self.workers.get(number)
                if worker is not None and len(worker.windows) > depth:
                    continue
                # What a dead worker had goes first.
                if self._again:
                    window: Window | None = self._again.popleft()
                else:
                    window = next(waiting, None)
                if window is None:
                    return
                # Started only for a window: a small collection does not load the model on every device.
                if worker is None:
                    worker = self._start(number)
                worker.windows.append(window)
                self.send(worker, window)

    def _collect(self) -> Iterator[WindowResult]:
        """Wait for messages, and return the windows among them."""
        for worker, message in self.receive():
            if isinstance(message, Died):
                self._replace(worker, message.how)
            elif isinstance(message, Exception):
                raise message
            elif isinstance(message, EncoderFacts):
                # The first worker's facts are those of the run. A machine with another model folder or version would
                # make windows that cannot be told from the others once they are written.
                self._facts = self._facts or message
                difference = self._facts.difference(message)
                if difference:
                    raise EnvironmentProblem(
                        f"worker {worker.name} has {difference}; all machines need the same model folder and the same "
                        "version"
                    )
                worker.ready = True
            else:
                # A worker encodes in the order in which it got its windows, so this is the oldest.
                worker.windows.popleft()
                yield message

    def _replace(self, worker: W, how: str) -> None:
        """Start a dead worker's successor; what it had is encoded first."""
        if not worker.ready and worker.starts >= STARTS:
            raise EnvironmentProblem(
                f"worker {worker.name} {how} {STARTS} times before it had loaded the model; its own messages are above"
            )
        if not worker.ready or not worker.windows:
            say(f"note: worker {worker.name} {how}; it is started again", self.quiet)
        else:
            # The oldest window is the one that was being encoded.
            window = worker.windows[0]
            self._deaths[window.number] += 1
            deaths = self._deaths[window.number]
            if deaths >= ATTEMPTS:
                raise EnvironmentProblem(
                    f"{window}: {deaths} workers in turn died of it, the last {worker.name}, which {how}; finished "
                    "windows are kept. Look for a lack of memory (kernel log), use a smaller `window`, and run the "
                    "same command again"
                )
            say(
                f"note: worker {worker.name} {how} with {window}, which is encoded again",
                self.quiet,
            )
        # extendleft reverses, so reversed windows keep their order.
        self._again.extendleft(reversed(worker.windows))
        successor = self._start(worker.number)
        # The count ends once a worker has loaded its encoder: what kills it later is counted per window.
        if not worker.ready:
            successor.starts = worker.starts + 1

    def _start(self, number: int) -> W:
        """Start the worker of a device; several on one device are told apart by a number."""
        name = device = self.devices[number]
        if self.devices.count(device) > 1:
            name = f"{device}#{self.devices[:number].count(device)}"
        worker = self.start(number, name)
        self.workers[number] = worker
        return worker


@dataclass
class DeviceWorker(Worker):
    """A process on this machine and the socket to it."""

    process: subprocess.Popen[bytes] = field(kw_only=True)
    connection: Connection = field(kw_only=True)

    def end(self) -> str:
        """Close the socket, wait for the process to end, and return how it did."""
        # A worker whose socket closes ends by itself; one that hangs is killed.
        self.connection.close()
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code >= 0:
            return f"ended with status {code}"
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"


class DevicePool(WorkerPool[DeviceWorker]):
    """``--devices``: one process for each device of this machine.

    The processes are programs of their own, started with a socket to this one, so they work from any script or
    notebook. When the collecting process dies, the sockets close, and the workers end.
    """

    def start(self, number: int, name: str) -> DeviceWorker:
        mine, theirs = socket.socketpair()
        device = self.devices[number]
        code = f"from dupmae_ir.encode.executors import serve; serve({theirs.fileno()})"
        # This process must not keep the worker's end open, or it would not notice that the worker has died.
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=self._environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # to standard error: standard output is for results, not for what libraries print
            )
        worker = DeviceWorker(
            number, name, device, process=process, connection=Connection(mine.detach())
        )
        worker.connection.send((self.choice, device, name))
        return worker

    def _environment(self) -> dict[str, str]:
        """This process's, with its import path, and a share of the processors unless there is a number of threads."""
        environment = dict(os.environ)
        # Without the empty entry, which stands for the current folder in an interactive session.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        share = self.choice.threads or max(1, processors() // len(self.devices))
        for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
            # The option for threads precedes the environment, and the environment the share.
            if self.choice.threads or name not in environment:
                environment[name] = str(share)
        return environment

    def send(self, worker: DeviceWorker, window: Window) -> None:
        # The socket of a dead worker; receive() reports it, and the window is encoded by its successor.
        with suppress(OSError):
            worker.connection.send(window)

    def receive(self) -> Iterator[tuple[DeviceWorker, Message]]:
        by_connection = {id(worker.connection): worker for worker in self.workers.values()}
        for connection in wait([worker.connection for worker in self.workers.values()]):
            worker = by_connection[id(connection)]
            try:
                yield worker, worker.connection.recv()
            except _GONE:
                yield worker, Died(worker.end())

    def close(self) -> None:
        """End the processes; none has anything that must be saved."""
        for worker in self.workers.values():
            worker.process.kill()
            worker.end()
        self.workers.clear()


def serve(fd: int) -> None:
    """The program of a device's worker: load the encoder, then encode every window that the socket brings."""
    # Ctrl-C reaches all processes of the terminal. The worker ignores it, and ends when the socket closes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(fd)
    choice, device, name = connection.recv()
    inbox: queue.SimpleQueue[Window] = queue.SimpleQueue()

    def read() -> None:
        """Take windows out of the socket at once, so that their sender never waits for an encoder."""
        # Both ends could otherwise wait for each other: one to send a window, one to send a result.
        try:
            while True:
                inbox.put(connection.recv())
        except _GONE:
            # The collecting process has ended, so nobody needs what is being encoded. sys.exit would end this
            # thread only.
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    worker = EncodingWorker(choice, device, name)
    with torch_threads(choice.threads):
        facts = worker.facts()
        connection.send(facts)
        # After an error there is no encoder; the process has reported it and ends.
        while isinstance(facts, EncoderFacts):
            connection.send(worker.encode(inbox.get()))


def _portable(error: Exception) -> Exception:
    """An error as another process can raise it: a user's as it is, the traceback of any other."""
    # Errors of libraries may not survive pickling, and their tracebacks do not.
    if isinstance(error, DupmaeError):
        return error
    return RuntimeError("in a worker:\n" + "".join(traceback.format_exception(error)))


class EncodingWorker:
    """The encoder in a worker's process; errors are returned, so that the process that collects can report them."""

    def __init__(self, choice: EncoderChoice, device: str, name: str) -> None:
        self.choice = choice
        self.device = device
        self.name = name
        self._encoder: Encoder | None = None

    def facts(self) -> EncoderFacts | Exception:
        """Load the encoder."""
        try:
            self._encoder = self.choice.load(self.device)
        except Exception as e:
            return _portable(e)
        return EncoderFacts.of(self._encoder)

    def encode(self, window: Window) -> WindowResult | Exception:
        """One window, by the encoder that :meth:`facts` loaded."""
        assert self._encoder is not None
        try:
            return encode_window(self._encoder, window, self.choice, self.name)
        except Exception as e:
            return _portable(e)


class Actor(EncodingWorker):
    """The worker in a process of a Ray cluster."""

    def encode(self, window: Window) -> WindowResult | Exception:
        with torch_threads(self.choice.threads or 1):
            return super().encode(window)


@dataclass
class RayWorker(Worker):
    """An actor, and its unfinished tasks, oldest first."""

    actor: Any = None
    tasks: deque[Any] = field(default_factory=deque)


class RayPool(WorkerPool[RayWorker]):
    """``--executor ray``: ``count`` actors of a Ray cluster; 0 = one for each GPU, or share of its processors.

    The driver reads the collection and commits what comes back, so the machines share no file system but for the model
    folder. When the driver dies, the same command continues from the window files in its work folder. ``RAY_ADDRESS``
    names a running cluster (``auto``: the one that this machine belongs to); without it, one is started here.
    """

    def __init__(self, choice: EncoderChoice, device: str, count: int, quiet: bool) -> None:
        need_packages("`executor` ray", ("ray",), "ray")
        import ray  # opens a socket when it is imported

        self.ray = ray
        self._joined = _join_cluster(ray)
        share = _actor_share(ray.cluster_resources(), device, choice.threads or 1)
        self._resources = share.resources
        super().__init__(choice, [share.device] * (count or share.actors), quiet)

    def start(self, number: int, name: str) -> RayWorker:
        # The pool restarts workers itself, see `receive`.
        remote = self.ray.remote(Actor).options(
            max_restarts=0, max_task_retries=0, **self._resources
        )
        actor = remote.remote(self.choice, self.devices[number], name)
        return RayWorker(
            number, name, self.devices[number], actor=actor, tasks=deque([actor.facts.remote()])
        )

    def send(self, worker: RayWorker, window: Window) -> None:
        worker.tasks.append(worker.actor.encode.remote(window))

    def receive(self) -> Iterator[tuple[RayWorker, Message]]:
        oldest = {worker.tasks[0]: worker for worker in self.workers.values() if worker.tasks}
        # Only the first actor is waited for with a limit: once one is at work, others may wait for room in the cluster.
        timeout = None if self._facts else START_SECONDS
        finished, _ = self.ray.wait(list(oldest), num_returns=1, timeout=timeout)
        if not finished:
            raise EnvironmentProblem(
                f"no worker started within {START_SECONDS:.0f} s: the cluster has no free {self._resources}; wait "
                f"for other jobs to end, or add machines"
            )
        worker = oldest[finished[0]]
        try:
            yield worker, self.ray.get(worker.tasks.popleft())
        except self.ray.exceptions.RayTaskError:
            raise  # an error of the program, which the worker could not return
        except self.ray.exceptions.RayError as e:
            # Ray could restart an actor itself, but would for a while fail every call with an error that does not
            # say whether the actor is dead; one that merely could not be reached is killed, not to encode in vain.
            self.ray.kill(worker.actor)
            yield worker, Died(f"ended ({type(e).__name__})")

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for worker in self.workers.values():
            self.ray.kill(worker.actor)
        self.workers.clear()
        if self._joined:
            self.ray.shutdown()
            self._joined = False


def _join_cluster(ray: ModuleType) -> bool:
    """Connect to a cluster, or start one here; False if the caller's program is connected already."""
    if ray.is_initialized():
        return False
    # Ray reports its use to its makers unless this is set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not os.environ.get("RAY_ADDRESS"):
        # A cluster of this process alone, which no other machine can reach. Its workers are what the run is about:
        # Ray would give them the lowest priority.
        os.environ.setdefault("RAY_worker_niceness", "0")
        settings |= {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    ray.init(**settings)
    return True


class _ActorShare(NamedTuple):
    """What an actor has of a cluster."""

    resources: dict[str, float]
    device: str
    actors: int  #: how many the cluster holds


def _actor_share(cluster: Mapping[str, float], device: str, threads: int) -> _ActorShare:
    """The share of an actor, which has one GPU to itself, or ``threads`` processors."""
    gpus = int(cluster.get("GPU", 0))
    cpus = int(cluster.get("CPU", 1))
    if device.startswith("cuda") or (device == "auto" and gpus):
        return _ActorShare({"num_gpus": 1, "num_cpus": min(1, cpus)}, "cuda", max(1, gpus))
    if device == "auto":
        device = "cpu"
    return _ActorShare({"num_cpus": threads}, device, max(1, cpus // threads))
