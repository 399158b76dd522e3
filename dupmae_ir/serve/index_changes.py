"""Changes of a served index: documents added, replaced and deleted by the jobs of ``dupmae-ir index``.

A change is a new generation of the folder. It is written by one job at a time, next to the generation that is searched,
and appears completely or not at all; the answer is sent when the server searches it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Path

from dupmae_ir.console import visible
from dupmae_ir.encode.changes import run_add, run_update
from dupmae_ir.errors import DupmaeError, InputError, UnknownName, UsageError
from dupmae_ir.index.changes.changes import run_delete
from dupmae_ir.index.config import AddConfig, ChangeResult, DeleteConfig, UpdateConfig
from dupmae_ir.io.collections import checked_docid
from dupmae_ir.io.jobs import DEADLINE
from dupmae_ir.serve.api import source
from dupmae_ir.serve.batch_handler import NotFound, Unavailable
from dupmae_ir.serve.errors import RESPONSES, LimitExceeded
from dupmae_ir.serve.schemas import ChangeResponse, DeleteRequest, Name, NewDocument, WriteRequest
from dupmae_ir.serve.service import Service

LOG = logging.getLogger("dupmae_ir.serve")


class Writer:
    """Changes the indexes of a service, one change at a time. Methods block."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._lock = threading.Lock()

    def put(self, name: str, documents: Sequence[NewDocument], replace: bool) -> ChangeResponse:
        """Add documents; with ``replace``, in the place of those with the same ids.

        Raises :class:`LimitExceeded` for an id that no index can have or that two of the documents have,
        :class:`UnknownName` for an index that is not served, and :class:`Unavailable` if it cannot be changed or,
        without ``replace``, has another document of the same id; nothing is changed then.
        """
        # Before the job: its errors name lines of a file that the client does not know.
        ids: set[str] = set()
        for number, document in enumerate(documents):
            problem = ""
            try:
                checked_docid(document.docid, "this document")
            except InputError as e:
                problem = str(e)
            if not problem and document.docid in ids:
                problem = "two documents of the request have this id"
            if problem:
                raise LimitExceeded(["body", "documents", number, "docid"], visible(problem))
            ids.add(document.docid)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            for document in documents:
                line = {"_id": document.docid, "title": document.title, "text": document.text}
                file.write(json.dumps({**line, "metadata": document.metadata}) + "\n")
            # The job opens the file by its name and reads what has been flushed.
            file.flush()
            corpus = (file.name,)
            model = self.service.config.model

            def change(folder: str) -> ChangeResult:
                if replace:
                    return run_update(
                        UpdateConfig(corpus=corpus, index=folder, model=model, quiet=True)
                    )
                return run_add(AddConfig(corpus=corpus, index=folder, model=model, quiet=True))

            return self._change(name, change)

    def delete(self, name: str, docids: Sequence[str], ignore_unknown: bool) -> ChangeResponse:
        """Delete documents. Raises :class:`NotFound` for an unknown id; nothing is deleted then."""

        def run(folder: str) -> ChangeResult:
            try:
                return run_delete(
                    DeleteConfig(
                        index=folder, ids=tuple(docids), ignore_unknown=ignore_unknown, quiet=True
                    )
                )
            except UnknownName:
                raise NotFound(
                    "a document of these ids is not in the index; nothing was deleted"
                ) from None

        return self._change(name, run)

    def _change(self, name: str, run: Callable[[str], ChangeResult]) -> ChangeResponse:
        # The routes let one request in at a time, but the change of a client that has left goes on.
        with self._lock:
            self.service.catalogue.get(name)
            folder = self.service.catalogue.folders()[name]
            try:
                result = run(str(folder))
            except NotFound:
                raise
            except UsageError as e:
                # The message names folders of the server, so the client gets another one.
                LOG.warning("%s: not changed: %s", name, e)
                raise Unavailable(
                    "the index was not changed: a document of this id exists, or its metadata do not fit the index"
                ) from None
            except DupmaeError as e:
                LOG.warning("%s: not changed: %s", name, e)
                raise Unavailable(
                    "the index cannot be changed; the server's log has the reason"
                ) from None
            # Now rather than at the next look, so that the client finds what it has just written.
            self.service.reload()
            generation = self.service.catalogue.get(name)
        return ChangeResponse(
            **source(generation),
            documents=generation.documents,
            added=result.get("added_now", 0),
            updated=result.get("updated_now", 0),
            unchanged=result.get("unchanged_now", 0),
            deleted=result.get("deleted_now", 0),
        )


def writing_routes(service: Service) -> APIRouter:
    """Add, update and delete; only for a server that was started with ``--writable``."""
    router = APIRouter(prefix="/api/indexes", tags=["changes"], responses=RESPONSES)
    writer = Writer(service)
    # Waiting changes must not occupy the threads that other routes need, so they wait here and not for Writer's lock.
    one_at_a_time = asyncio.Lock()
    seconds = service.config.request_timeout

    async def change(run: Callable[..., ChangeResponse], *arguments: object) -> ChangeResponse:
        # A context variable, which asyncio.to_thread copies: after that time the job ends without a change.
        DEADLINE.set(time.monotonic() + seconds)
        async with asyncio.timeout(seconds), one_at_a_time:
            return await asyncio.to_thread(run, *arguments)

    @router.post("/{index}/documents", operation_id="put_documents")
    async def put(index: Annotated[Name, Path()], request: WriteRequest) -> ChangeResponse:
        """Add documents, or replace those with the same ids. Unchanged ones are not encoded again, and after a 504
        the same request goes on where it was."""
        return await change(writer.put, index, request.documents, request.replace)

    @router.post("/{index}/delete", operation_id="delete_documents")
    async def delete(index: Annotated[Name, Path()], request: DeleteRequest) -> ChangeResponse:
        """Delete documents by their ids."""
        return await change(writer.delete, index, request.docids, request.ignore_unknown)

    return router
