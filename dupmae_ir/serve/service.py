"""A running service: the indexes, the queue with its thread, the watcher of new generations, and the metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from dupmae_ir.search.query_batching import Busy, Pending, QueryBatches
from dupmae_ir.serve.batch_handler import (
    Answerer,
    IndexTask,
    Search,
    SearchResult,
    Unavailable,
    Work,
    WorkPiece,
)
from dupmae_ir.serve.catalogue import IndexReload, OpenIndex, OpenIndexes, watch
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.errors import LimitExceeded
from dupmae_ir.serve.following import RELOAD_SECONDS, Follower
from dupmae_ir.serve.http_server import CLIENT, SECONDS

QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGE = 2
"""Large requests that are answered at a time; others wait, and keep no part of their answers in memory."""
LOG = logging.getLogger("dupmae_ir.serve")
T = TypeVar("T")


class Service:
    """What the routes call. ``token``: the bearer token that requests must carry, or None."""

    def __init__(self, config: ServeConfig, token: str | None = None) -> None:
        self.config = config
        self.token = token
        self.catalogue = OpenIndexes(config)
        self.answerer = Answerer(self.catalogue)
        # Otherwise every counter has a second series, the time of its creation.
        disable_created_metrics()
        # Not the global registry: a process may have several services, as the tests do.
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "dupmae_ir_requests_total",
            "Answered requests.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.request_times = Histogram(
            "dupmae_ir_request_seconds",
            "Seconds from head to answer.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "dupmae_ir_batch_queries",
            "Queries answered together.",
            buckets=QUERIES,
            registry=self.registry,
        )
        self.batch_times = Histogram(
            "dupmae_ir_batch_seconds",
            "Seconds of a batch.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.rejected = Counter(
            "dupmae_ir_rejected_total",
            "Requests answered 429, and 504.",
            ("reason",),
            registry=self.registry,
        )
        self.reloads = Counter(
            "dupmae_ir_reloads_total",
            "Exchanges of an index, and failures.",
            ("index", "result"),
            registry=self.registry,
        )
        self.batcher: QueryBatches[WorkPiece, None] = QueryBatches(
            max_batch=config.batch_size, wait=config.batch_wait / 1000, observe=self._observe
        )
        self._large = asyncio.Semaphore(LARGE)
        # Changed in the event loop alone, so without a lock.
        self._asked = {False: 0, True: 0}  # queries of requests by whether they are large
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self.follower: Follower | None = None
        self.registry.register(self)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self.requests.labels(route, method, str(status)).inc()
        self.request_times.labels(route).observe(seconds)

    def open(self) -> None:
        """Open the indexes and start the threads. Raises :class:`DupmaeError` for an index that cannot be opened."""
        self.catalogue.open_all()
        self.batcher.start(self.answerer)
        reload_seconds = self.config.reload_seconds
        if self.config.watch:
            reload_seconds = min(reload_seconds or RELOAD_SECONDS, RELOAD_SECONDS)
            ((_, folder),) = self.config.named
            self.follower = Follower(folder, self.config.watch)
            self.follower.start()
        if reload_seconds:
            arguments = (self.catalogue, reload_seconds, self._stopped, self._report)
            self._watcher = threading.Thread(
                target=watch, args=arguments, name="reloads", daemon=True
            )
            self._watcher.start()

    def close(self) -> None:
        """Answer what is waiting, end the threads and close the indexes."""
        # The threads before the indexes that they search.
        self._stopped.set()
        if self.follower is not None:
            self.follower.stop(self.config.stop_seconds)
        self.batcher.stop(self.config.stop_seconds)
        if self._watcher:
            self._watcher.join(self.config.stop_seconds)
        self.catalogue.close()

    @overload
    async def ask(self, work: Search) -> SearchResult: ...
    @overload
    async def ask(self, work: IndexTask[Any, T]) -> tuple[OpenIndex, list[T]]: ...
    async def ask(self, work: Search | IndexTask[Any, Any]) -> Any:
        """The result of ``work``, all of it from one generation of its index.

        Raises :class:`Busy`, :class:`TimeoutError`, :class:`LimitExceeded`, and what the work raises. Nothing more of
        it is computed after that, nor after a cancellation, but for the piece that is under way.
        """
        try:
            async with asyncio.timeout(self.config.request_timeout):
                with self._admitted(work):
                    async with self._large if work.large else contextlib.nullcontext():
                        return await self._answer(work)
        except Busy:
            self.rejected.labels("queue full").inc()
            raise
        except TimeoutError:
            self.rejected.labels("timeout").inc()
            raise

    async def _answer(self, work: Work) -> SearchResult | tuple[OpenIndex, list[Any]]:
        # The generation stays open for all pieces of the work, though another one may replace it meanwhile. Work that
        # is still waiting for its turn holds none, because every open generation keeps its files open.
        with self.catalogue.hold(work.index) as generation:
            await self._compute(work, generation)
        if isinstance(work, IndexTask):
            return generation, work.results
        mode = work.ranking.mode or generation.searcher.mode
        return SearchResult(generation, mode, work.lists)

    async def _compute(self, work: Work, generation: OpenIndex) -> None:
        if isinstance(work, Search) and work.ranking.mode not in (None, *generation.modes):
            raise Unavailable(f"index {generation.name!r} has only: {', '.join(generation.modes)}")
        while not work.done:
            piece = WorkPiece(work, generation, work.texts(self.config.batch_size))
            # A piece of a large request is a batch alone; large and small requests of a client take turns apart.
            kind = id(work) if work.large else None
            client = (CLIENT.get(), work.large)
            await asyncio.wrap_future(self.batcher.submit(piece, piece.weight, kind, client))
            # After every piece: an answer that is too large is not computed to its end.
            limit = self.config.max_answer
            if work.bytes > limit:
                message = f"the answer exceeds {limit} bytes; ask for fewer queries or hits, or leave the texts out"
                raise LimitExceeded(["body"], message)

    @contextlib.contextmanager
    def _admitted(self, work: Work) -> Iterator[None]:
        """Count a request while it is answered, and free what it has if that fails. Large ones have a queue of their
        own. Raises :class:`Busy`."""
        if self._asked[work.large] + work.weight > self.config.queue:
            # Until the queue is empty at the present pace; at most a minute, since the pace is a guess.
            seconds = math.ceil(self.waiting * self.batcher.pace)
            raise Busy(min(60, max(1, seconds)))
        self._asked[work.large] += work.weight
        try:
            yield
        except BaseException:
            # The error, its frames and the task refer to each other, and may be freed minutes later.
            work.forget()
            raise
        finally:
            self._asked[work.large] -= work.weight

    @property
    def waiting(self) -> int:
        """Queries that are not answered yet, without those of large requests."""
        return self._asked[False]

    def reload(self) -> list[IndexReload]:
        """Look for new generations now; log and count what changed."""
        changes = self.catalogue.reload()
        for change in changes:
            self._report(change)
        return changes

    def reload_soon(self) -> None:
        """:meth:`reload` on another thread: for a signal handler, which must not open an index."""
        threading.Thread(target=self.reload, name="reload", daemon=True).start()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._stopped.is_set()

    def collect(self) -> Iterator[Metric]:
        """Values that are read when /metrics is: this object is a collector of its registry."""
        yield GaugeMetricFamily(
            "dupmae_ir_waiting_queries", "Queries in the queue.", sum(self._asked.values())
        )
        lists = CounterMetricFamily(
            "dupmae_ir_lists", "Ranked lists, by certificate.", labels=["certified"]
        )
        lists.add_metric(["yes"], self.answerer.certified)
        lists.add_metric(["no"], self.answerer.uncertified)
        yield lists
        indexes = [self.catalogue.get(name) for name in self.catalogue.names]
        for name, text, values in (
            ("dupmae_ir_documents", "Documents.", [index.documents for index in indexes]),
            ("dupmae_ir_generation", "Generation.", [index.number for index in indexes]),
            (
                "dupmae_ir_encoded_queries",
                "Queries encoded.",
                [index.encoder.encoded for index in indexes],
            ),
        ):
            family = GaugeMetricFamily(name, text, labels=["index"])
            for index, value in zip(indexes, values, strict=True):
                family.add_metric([index.name], value)
            yield family

    def _observe(self, batch: Sequence[Pending[WorkPiece, None]], seconds: float) -> None:
        queries = sum(len(pending.work.texts) for pending in batch)
        if queries:
            self.batches.observe(queries)
        self.batch_times.observe(seconds)

    def _report(self, change: IndexReload) -> None:
        self.reloads.labels(change.name, change.what).inc()
        if change.what == "failed":
            LOG.warning(
                "%s: not exchanged, the generation before stays: %s", change.name, change.reason
            )
        else:
            LOG.info("%s: %s", change.name, change.what)
