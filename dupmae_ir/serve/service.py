"""A running service: the indexes, the queue with its thread, the watcher of new generations, and the metrics."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from dupmae_ir.serve.batch_handler import Answerer, Call, Search
from dupmae_ir.serve.batching import Batcher, Busy
from dupmae_ir.serve.catalogue import Catalogue, Change, Generation, watch
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.metrics import QUERIES, SECONDS, Counter, Gauge, Histogram, Labels, Metric, resident_bytes

LOG = logging.getLogger("dupmae_ir.serve")


class Service:
    """What the routes call. ``token``: the bearer token that requests must carry, or None."""

    def __init__(self, config: ServeConfig, token: str | None = None) -> None:
        self.config, self.token = config, token
        self.catalogue = Catalogue(config)
        self.answerer = Answerer(self.catalogue)
        self.batches = Histogram("dupmae_ir_batch_queries", "Queries answered together.", QUERIES)
        self.batch_times = Histogram("dupmae_ir_batch_seconds", "Seconds of a batch.", SECONDS)
        self.rejected = Counter("dupmae_ir_rejected_total", "Requests answered 429, and 504.", ("reason",))
        self.reloads = Counter("dupmae_ir_reloads_total", "Exchanges of an index, and failures.", ("index", "result"))
        self.batcher = Batcher(self.answerer, config.queue, config.batch_size, config.batch_wait / 1000, self._observe)
        self.started = time.time()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    def open(self) -> None:
        """Open the indexes and start the threads. Raises :class:`DupmaeError` for an index that cannot be opened."""
        self.catalogue.open_all()
        self.batcher.start()
        if self.config.reload_seconds:
            arguments = (self.catalogue, self.config.reload_seconds, self._stopped, self._report)
            self._watcher = threading.Thread(target=watch, args=arguments, name="reloads", daemon=True)
            self._watcher.start()

    def close(self) -> None:
        """Answer what is waiting, end the threads and close the indexes."""
        self._stopped.set()
        self.batcher.stop(self.config.stop_seconds)
        if self._watcher:
            self._watcher.join(self.config.stop_seconds)
        self.catalogue.close()

    async def ask(self, work: Search | Call) -> Any:
        """The result of ``work``. Raises :class:`Busy`, :class:`TimeoutError`, and what the work raises."""
        try:
            return await self.batcher.submit(work, self.config.timeout)
        except Busy:
            self.rejected.add("queue full")
            raise
        except TimeoutError:
            self.rejected.add("timeout")
            raise

    def reload(self) -> list[Change]:
        """Look for new generations now; log and count what changed."""
        changes = self.catalogue.reload()
        for change in changes:
            self._report(change)
        return changes

    def reload_soon(self) -> None:
        """:meth:`reload` on a thread of its own, for a signal handler."""
        threading.Thread(target=self.reload, name="reload", daemon=True).start()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._stopped.is_set()

    def metrics(self) -> list[Metric]:
        """Everything that /metrics shows, besides the requests themselves."""
        generations: dict[Labels, Generation] = {(g.name,): g for g in map(self.catalogue.get, self.catalogue.names)}

        def of_indexes(name: str, help: str, values: dict[Labels, float]) -> Gauge:
            return Gauge(name, help, lambda: values, ("index",))

        lists: dict[Labels, float] = {
            ("yes",): float(self.answerer.certified),
            ("no",): float(self.answerer.uncertified),
        }
        return [
            self.batches,
            self.batch_times,
            self.rejected,
            self.reloads,
            Gauge("dupmae_ir_waiting_queries", "Queries in the queue.", self._waiting),
            Gauge("dupmae_ir_lists_total", "Ranked lists, by certificate.", lambda: lists, ("certified",), "counter"),
            of_indexes("dupmae_ir_documents", "Documents.", {k: float(g.documents) for k, g in generations.items()}),
            of_indexes("dupmae_ir_generation", "Generation.", {k: float(g.number) for k, g in generations.items()}),
            of_indexes(
                "dupmae_ir_encoded_queries",
                "Queries encoded.",
                {k: float(g.encoder.encoded) for k, g in generations.items()},
            ),
            Gauge("process_resident_memory_bytes", "Memory in RAM.", lambda: {(): resident_bytes()}),
            Gauge("process_start_time_seconds", "Start of the service.", lambda: {(): self.started}),
        ]

    def _waiting(self) -> dict[Labels, float]:
        return {(): float(self.batcher.waiting)}

    def _observe(self, weight: int, seconds: float) -> None:
        self.batches.observe(weight)
        self.batch_times.observe(seconds)

    def _report(self, change: Change) -> None:
        self.reloads.add(change.name, change.what)
        if change.what == "failed":
            LOG.warning("%s: not exchanged, the generation before stays: %s", change.name, change.reason)
        else:
            LOG.info("%s: %s", change.name, change.what)
