"""Whether the data of an Arrow stream are compressed, read off the heads of its messages.

A few bytes can promise any size once unpacked, and pyarrow unpacks a batch before anybody can look at it. A
message's head is a flatbuffer; of it only the one field is followed that names a compression.
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["any_compressed"]

_KIND, _HEADER = 1, 2  # fields of a message
_DICTIONARY, _BATCH = 2, 3  # kinds of message that carry data
_DATA, _COMPRESSION = 1, 3  # the batch in a dictionary; what compresses a batch


def any_compressed(messages: Any) -> bool:
    """Of a `pyarrow.ipc.MessageReader`; nothing is unpacked."""
    return any(_compressed(message.metadata.to_pybytes()) for message in messages)


def _compressed(head: bytes) -> bool:
    message = _follow(head, 0)
    place = _field(head, message, _KIND)
    kind = head[place] if place else 0
    if kind not in (_DICTIONARY, _BATCH):
        return False
    batch = _follow(head, _field(head, message, _HEADER))
    if kind == _DICTIONARY:
        batch = _follow(head, _field(head, batch, _DATA))
    return bool(_field(head, batch, _COMPRESSION))


def _follow(head: bytes, at: int) -> int:
    """Where the table begins that is pointed at from here."""
    return at + _number(head, "<I", at)


def _field(head: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is not given."""
    layout = table - _number(head, "<i", table)
    if 4 + 2 * number >= _number(head, "<H", layout):
        return 0
    offset = _number(head, "<H", layout + 4 + 2 * number)
    return table + offset if offset else 0


def _number(head: bytes, form: str, at: int) -> int:
    if not 0 <= at <= len(head) - struct.calcsize(form):
        raise ValueError("a message points outside of itself")
    return int(struct.unpack_from(form, head, at)[0])
