"""Topics: tsv, jsonl, BEIR's ``queries.jsonl`` (gzip too), or a name that Pyserini knows.

The format is recognised by the first line, not by the name: a line that starts with ``{`` is JSON with an
id under ``_id``, ``id``, ``qid`` or ``query_id`` and a text under ``text``, ``query``, ``title`` or ``contents``;
anything else is ``qid<TAB>text``. One malformed line makes the whole file an error, before any search starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dupmae_ir import pyserini
from dupmae_ir.arguments import checked
from dupmae_ir.console import visible
from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.io.lines import json_record, numbered_lines, usable
from dupmae_ir.types import Query

ID_KEYS = ("_id", "id", "qid", "query_id")
TEXT_KEYS = ("text", "query", "title", "contents")
_FILE_ENDINGS = (".tsv", ".txt", ".jsonl", ".json", ".gz")


@checked
def read_topics(source: str | Path) -> list[Query]:
    """Topics in the order of the file. ``source`` is a path or a Pyserini name; an existing path wins.

    A blank text is kept, a blank id is an error. Raises :class:`InputError` with file and
    line, :class:`UnknownName` for a name that is neither.
    """
    path = Path(source)
    is_name = (
        isinstance(source, str) and path.parent == Path() and not source.endswith(_FILE_ENDINGS)
    )
    if is_name and not path.exists():
        try:
            return pyserini.load_topics(str(source))
        except UnknownName as e:
            raise UnknownName(
                f"{source!r} is neither a file nor topics that Pyserini knows: {e}"
            ) from None
    topics: list[Query] = []
    first_seen: dict[str, int] = {}
    parse = None
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        if parse is None:  # the first line decides for the file
            parse = _json_topic if line.lstrip().startswith("{") else _tsv_topic
        topic = parse(line, where)
        if not topic.qid:
            raise InputError(f"{where}: the topic has an empty id")
        if topic.qid.split() != [topic.qid] or visible(topic.qid) != topic.qid:
            raise InputError(
                f"{where}: the topic id {topic.qid!r} contains white space or a control character, which run files "
                "cannot represent"
            )
        if topic.qid in first_seen:
            raise InputError(
                f"{where}: topic {topic.qid!r} was already on line {first_seen[topic.qid]}; remove one"
            )
        first_seen[topic.qid] = number
        topics.append(topic)
    return topics


def _tsv_topic(line: str, where: str) -> Query:
    qid, tab, text = line.partition("\t")
    if not tab:
        raise InputError(f"{where}: expected qid<TAB>text, found no tab in {_shown(line)}")
    return Query(qid.strip(), usable(text.strip()))


def _json_topic(line: str, where: str) -> Query:
    record = json_record(line, where)
    qid = _field(record, ID_KEYS, "id", where)
    text = _field(record, TEXT_KEYS, "text", where)
    # True and False are integers in Python, but no ids.
    if isinstance(qid, bool) or not isinstance(qid, str | int):
        raise InputError(f"{where}: the id must be a string or an integer, got {qid!r}")
    if not isinstance(text, str):
        raise InputError(f"{where}: the text must be a string, got {_shown(repr(text))}")
    return Query(str(qid), usable(text.strip()))


def _field(record: Mapping[str, object], keys: tuple[str, ...], what: str, where: str) -> Any:
    for key in keys:
        if key in record:
            return record[key]
    found = ", ".join(record) or "an empty object"
    raise InputError(f"{where}: no {what}; expected one of {', '.join(keys)}, found {found}")


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
