"""``--executor ray``: actors of a Ray cluster, one for each GPU, or for each share of its processors.

The driver reads the collection, sends each shard to an actor and commits what comes back, so the machines share no file
system but for the model folder. An actor that dies, with its process or with its machine, is replaced, and its shards
are encoded again. When the driver dies, the finished shards are in its work folder, and the same command
continues from them.

``RAY_ADDRESS`` names a running cluster (``auto``: the one that this machine belongs to); without it, one is started on
this machine for the run.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from dupmae_ir.device import need_packages, torch_threads
from dupmae_ir.encode.shards import Encoded, EncoderChoice, EncoderFacts, Shard
from dupmae_ir.encode.workers import AHEAD, Attempts, Failed, attempt, check_alike
from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.types import Encoder

START_SECONDS = 600.0
"""How long the first actor may take to start and to load its model; a full cluster starts none."""


STARTS = 3
"""How often the first actor may die before its encoder is loaded."""


class Actor:
    """The encoder in a process of the cluster. It is loaded by the first call, and again after a restart."""

    def __init__(self, choice: EncoderChoice, device: str, name: str) -> None:
        self.choice, self.device, self.name = choice, device, name
        self._encoder: Encoder | None = None

    def facts(self) -> EncoderFacts | Failed:
        """The encoder's."""
        loaded = self._loaded()
        return loaded if isinstance(loaded, Failed) else EncoderFacts.of(loaded)

    def encode(self, shard: Shard) -> Encoded | Failed:
        """One shard."""
        with torch_threads(self.choice.threads or 1):
            loaded = self._loaded()
            return loaded if isinstance(loaded, Failed) else attempt(loaded, shard, self.choice, self.name)

    def _loaded(self) -> Encoder | Failed:
        try:
            self._encoder = self._encoder or self.choice.load(self.device)
        except Exception as e:  # whatever it is, the driver must report it
            return Failed.of(e)
        return self._encoder


class RayWorkers:
    """``count`` actors; 0 = as many as the cluster has room for. See :class:`~dupmae_ir.encode.workers.Workers`."""

    def __init__(self, choice: EncoderChoice, device: str, count: int, quiet: bool) -> None:
        need_packages("--executor ray", ("ray",), "ray")
        import ray  # opens a socket when it is imported

        self.choice, self.attempts, self.ray = choice, Attempts(quiet), ray
        self._joined = _joined_cluster(ray)
        self._resources, self.device, room = _room(ray.cluster_resources(), device, choice.threads or 1)
        self.count = count or room
        self._actors: dict[int, Any] = {}
        self._told: dict[int, Any] = {}  # what each actor answered about its encoder
        self._checked: set[int] = set()
        self._facts: EncoderFacts | None = None
        self._again: deque[Shard] = deque()
        self._at_work: dict[int, deque[tuple[Any, Shard]]] = {n: deque() for n in range(self.count)}

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self._actors.values():
            self.ray.kill(actor)
        self._actors.clear()
        if self._joined:
            self.ray.shutdown()
            self._joined = False

    @property
    def facts(self) -> EncoderFacts:
        """Those of the first actor."""
        self._actor(0)
        for _ in range(STARTS):
            if self._facts is not None:
                break
            try:
                self._check(0, self.ray.get(self._told[0], timeout=START_SECONDS))
            except self.ray.exceptions.GetTimeoutError:
                raise EnvironmentProblem(
                    f"no worker started within {START_SECONDS:.0f} s: the cluster has no free {self._resources}; wait "
                    f"for other jobs to end, or add machines"
                ) from None
            except self.ray.exceptions.RayTaskError:
                raise
            except self.ray.exceptions.RayError as e:
                self._died(0, e)
        if self._facts is None:
            raise EnvironmentProblem(f"worker {self._name(0)} died {STARTS} times while loading the model")
        return self._facts

    def encode(self, shards: Iterable[Shard]) -> Iterator[Encoded]:
        """See :class:`~dupmae_ir.encode.workers.Workers`. Actors are started when there are shards for them."""
        waiting = iter(shards)
        while True:
            self._hand_out(waiting)
            running = {task: number for number, tasks in self._at_work.items() for task, _ in tasks}
            if not running:
                return
            done, _ = self.ray.wait(list(running), num_returns=1)
            yield from self._collect(running[done[0]])

    def _hand_out(self, waiting: Iterator[Shard]) -> None:
        """Give every actor a shard, and then every actor its next."""
        for depth in range(AHEAD):
            for number, tasks in self._at_work.items():
                if len(tasks) > depth:
                    continue
                shard = self._again.popleft() if self._again else next(waiting, None)
                if shard is None:
                    return
                tasks.append((self._actor(number).encode.remote(shard), shard))

    def _collect(self, number: int) -> Iterator[Encoded]:
        """The finished shards of an actor; those that it had when it died are put back."""
        tasks = self._at_work[number]
        while tasks and self.ray.wait([tasks[0][0]], timeout=0)[0]:
            try:
                message = self.ray.get(tasks[0][0])
                if number not in self._checked:
                    self._check(number, self.ray.get(self._told[number]))
            except self.ray.exceptions.RayTaskError:
                raise  # an error of the program, which the worker could not return
            except self.ray.exceptions.RayError as e:
                self._died(number, e)
                return
            tasks.popleft()
            if isinstance(message, Failed):
                raise message.error()
            yield message

    def _check(self, number: int, facts: EncoderFacts | Failed) -> None:
        if isinstance(facts, Failed):
            raise facts.error()
        self._facts = self._facts or facts
        check_alike(self._facts, facts, self._name(number))
        self._checked.add(number)

    def _died(self, number: int, error: Exception) -> None:
        """Put the shards of a dead actor back, and start its successor.

        Ray could start it itself, but would for a while fail every call with an error that does not say whether the
        actor is dead; one that merely could not be reached is killed here, so that nobody encodes in vain.
        """
        tasks = self._at_work[number]
        self.attempts.died(self._name(number), f"ended ({type(error).__name__})", tasks[0][1] if tasks else None)
        self._again.extend(shard for _, shard in tasks)
        tasks.clear()
        self._checked.discard(number)
        self.ray.kill(self._actors[number])
        self._start(number)

    def _actor(self, number: int) -> Any:
        if number not in self._actors:
            self._start(number)
        return self._actors[number]

    def _start(self, number: int) -> None:
        remote = self.ray.remote(Actor).options(max_restarts=0, max_task_retries=0, **self._resources)
        self._actors[number] = remote.remote(self.choice, self.device, self._name(number))
        self._told[number] = self._actors[number].facts.remote()

    def _name(self, number: int) -> str:
        return f"{self.device}#{number}"


def _joined_cluster(ray: ModuleType) -> bool:
    """Connect to a cluster, or start one here; False where the caller's program is connected already."""
    if ray.is_initialized():
        return False
    # Ray reports its use to its makers unless this is set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not os.environ.get("RAY_ADDRESS"):
        # A cluster of this process alone, which no other machine can reach. Its workers are what the run is about:
        # Ray would give them the lowest priority.
        os.environ.setdefault("RAY_worker_niceness", "0")
        settings |= {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(**settings)
    return True


def _room(has: Mapping[str, float], device: str, threads: int) -> tuple[dict[str, float], str, int]:
    """(resources of an actor, its device, how many of them the cluster holds). An actor has one GPU to itself."""
    gpus, cpus = int(has.get("GPU", 0)), int(has.get("CPU", 1))
    if device.startswith("cuda") or (device == "auto" and gpus):
        return {"num_gpus": 1, "num_cpus": min(1, cpus)}, "cuda", max(1, gpus)
    return {"num_cpus": threads}, "cpu" if device == "auto" else device, max(1, cpus // threads)
