"""Mailboxes in mbox format: files of many messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dupmae_ir.io.documents.readers.extracted import Member, Unreadable

_MBOX_LINE = re.compile(
    rb"From (?:-[ \t\r]*|[^\n]*\d\d:\d\d[^\n]*|[^\s@]+@\S+[^\n]*)\n(?=[!-9;-~]{1,60}[ \t]*:|>From )"
)
"""The line before each message of a mailbox: it has a time, an address, or nothing but '-', and headers follow. Many
programs leave out the blank line before it, and do not quote lines of a text that begin with 'From '."""
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)


def mailbox_members(data: bytes) -> Iterator[Member]:
    """The messages of a mailbox in mbox format, named by their numbers."""
    number = 0
    start = None
    for line_start, line_end in _mailbox_lines(data):
        if start is not None:
            yield _mailbox_member(number, data[start:line_start])
        start = line_end
        number += 1
    if start is None:
        raise Unreadable("not a mailbox: no line that begins with 'From ' has headers after it")
    yield _mailbox_member(number, data[start:])


def _mailbox_lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the lines before the messages of a mailbox begin and end."""
    start = 0
    while True:
        match = _MBOX_LINE.match(data, start)
        if match is not None:
            yield match.span()
        # Searching for fixed bytes is much faster than for the expression.
        start = data.find(b"\nFrom ", start) + 1
        if not start:
            return


def _mailbox_member(number: int, data: bytes) -> Member:
    # The program that wrote the mailbox quoted lines that would begin a message.
    if b">From " in data:
        data = _QUOTED_FROM.sub(rb"\1", data)
    return Member(f"{number}.eml", data)
