"""Features out of a message that a stranger has sent, without unpacking what cannot be right.

A message of many small parts costs far more to unpack than to send. So both forms are checked as bytes first.
gRPC: no more than `_FIELDS` fields in all, then one input and as many bytes as its shape says. REST: the list
of numbers is cut out, its commas and brackets must be those of the shape, and it is read in small pieces.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from exhume.integrations.serve_limits import MOST

Array = np.ndarray[Any, np.dtype[np.float32]]

_FIELDS = 64  # of one protobuf message and those within it
_SHAPE = 128  # bytes of a shape
_WITHIN = {  # what is followed, by the numbers of the Open Inference Protocol's fields
    ("request", 5): "input",
    ("request", 6): "output",
    ("input", 3): "shape",
    ("input", 5): "contents",
}
_AROUND = 8192  # bytes of JSON around the numbers
_PIECE = 16384  # bytes of numbers read at a time, so that other threads have their turn
_FP32 = 6 << 3 | 2  # tag of packed `fp32_contents`
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_NOT_STRUCTURE = b"0123456789+-.eE \t\r\n"
_BLANK = b" \t\r\n"


class BadRequest(Exception):  # noqa: N818 - the name of the status
    """The sender's fault; the sentence says what."""


@dataclass(frozen=True, eq=False)
class FeatureRequest:
    """What is left of a message once it is read."""

    id: str
    features: Array  # (n, *shape)


# REST


def read_json(body: bytes, shape: tuple[int, ...]) -> FeatureRequest:
    """The features (n, *shape) of a JSON message."""
    around, numbers = _cut(body)
    try:
        message = json.loads(around)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the message is no JSON") from error
    if not isinstance(message, dict):
        raise BadRequest("the message is no JSON object")
    name = message.get("id")
    if not (name is None or (isinstance(name, str) and len(name) <= 256)):
        raise BadRequest("id: a text of at most 256 characters is needed")
    inputs = message.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequest("one input named features is needed")
    given = inputs[0]
    said = checked_shape(given.get("name"), given.get("datatype"), given.get("shape"), shape)
    if given.get("data") != [] or not numbers:
        raise BadRequest("features: the data are no numbers in one array")
    return FeatureRequest(name or "", _numbers(numbers, said).reshape(said))


def _cut(body: bytes) -> tuple[bytes, bytes]:
    """The message with an empty list for the data, and the text of that list."""
    found = [match.end() for match, _ in zip(_DATA.finditer(body), range(2), strict=False)]
    if len(found) > 1:
        raise BadRequest("one input named features is needed")
    if not found:
        around, numbers = body, b""
    else:
        ends = [end for end in (body.find(b"}", found[0]), body.find(b'"', found[0])) if end >= 0]
        numbers = body[found[0] : min(ends, default=len(body))].rstrip(_BLANK + b",")
        if not numbers.endswith(b"]"):
            raise BadRequest("features: the data are no numbers in one array")
        around = body[: found[0]] + b"[]" + body[found[0] + len(numbers) :]
    if len(around) > _AROUND:
        raise BadRequest(f"more than {_AROUND} bytes that are no data")
    return around, numbers


def _numbers(text: bytes, said: tuple[int, ...]) -> Array:
    """The numbers of one list, flat or nested as the shape is."""
    count = math.prod(said)
    structure = text.translate(None, _NOT_STRUCTURE)
    given = structure.count(b",") + 1
    if given != count:
        raise BadRequest(f"features: {given} numbers given for shape {said}")
    if structure not in (_nested((count,)), _nested(said)):
        raise BadRequest("features: the data are no numbers in one array")
    plain = text.translate(None, b"[]")
    values, start, filled = np.empty(count, np.float32), 0, 0
    while start < len(plain):
        end = plain.find(b",", start + _PIECE)
        end = len(plain) if end < 0 else end
        piece = _piece(plain[start:end])
        values[filled : filled + len(piece)] = piece
        start, filled = end + 1, filled + len(piece)
    return values


def _piece(text: bytes) -> Array:
    if len(text) > _PIECE + 64:  # one number of so many digits
        raise BadRequest("features: the data are no numbers in one array")
    try:
        with np.errstate(over="ignore"):  # infinite then, which is refused later
            return np.asarray(json.loads(b"[" + text + b"]"), dtype=np.float32)
    except (ValueError, OverflowError) as error:
        raise BadRequest("features: the data are no numbers in one array") from error


def _nested(shape: tuple[int, ...]) -> bytes:
    """Brackets and commas of nested lists."""
    inner = b"[" + b"," * (shape[-1] - 1) + b"]"
    for size in reversed(shape[:-1]):
        inner = b"[" + b",".join([inner] * size) + b"]"
    return inner


# gRPC


def many_fields(raw: bytes) -> bool:
    """Whether a `ModelInferRequest` has more parts than any client sends, or cannot be read at all."""
    left, todo = _FIELDS, [(0, len(raw), "request")]
    while todo:
        at, end, place = todo.pop()
        while at < end:
            left -= 1
            tag, at = _varint(raw, at, end)
            kind, number = tag & 7, tag >> 3
            if left < 0 or at < 0 or kind not in (0, 1, 2, 5):
                return True
            if kind == 0:
                _, at = _varint(raw, at, end)
            else:
                size, at = _varint(raw, at, end) if kind == 2 else (8 if kind == 1 else 4, at)
                inside = _WITHIN.get((place, number)) if kind == 2 else None
                if at < 0 or at + size > end or (inside == "shape" and size > _SHAPE):
                    return True
                if inside and inside != "shape":
                    todo.append((at, at + size, inside))
                at += size
            if at < 0:
                return True
    return False


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends; -1 if it does not."""
    value = 0
    for place in range(10):
        if at + place >= end:
            break
        value |= (raw[at + place] & 127) << 7 * place
        if raw[at + place] < 128:
            return value, at + place + 1
    return 0, -1


def features_in(request: Any, shape: tuple[int, ...]) -> FeatureRequest:
    """The features (n, *shape) of a `ModelInferRequest`, whichever of its two places they are in."""
    if len(request.inputs) != 1 or len(request.id) > 256:
        raise BadRequest("one input named features is needed, and an id of at most 256 characters")
    given = request.inputs[0]
    said = checked_shape(given.name, given.datatype, list(given.shape), shape)
    contents, raw = given.contents.fp32_contents, list(request.raw_input_contents)  # copied once
    if len(raw) > 1 or bool(raw) == bool(contents):
        raise BadRequest("features: the data are needed once, as raw content or as fp32 content")
    if raw:
        if len(raw[0]) != 4 * math.prod(said):
            raise BadRequest(f"features: {len(raw[0])} bytes given for shape {said}")
        return FeatureRequest(
            request.id, np.frombuffer(raw[0], "<f4").astype(np.float32).reshape(said)
        )
    if len(contents) != math.prod(said):
        raise BadRequest(f"features: {len(contents)} numbers given for shape {said}")
    return FeatureRequest(request.id, _packed(given.contents, len(contents)).reshape(said))


def _packed(contents: Any, count: int) -> Array:
    """The `fp32_contents`, out of the bytes of their message: one by one they would block all threads."""
    raw = contents.SerializeToString()
    start = len(raw) - 4 * count
    if raw[0] != _FP32 or _varint(raw, 1, start) != (4 * count, start):
        raise BadRequest("features: fp32 contents and no others are needed")
    return np.frombuffer(raw, "<f4", count, start).astype(np.float32)


def checked_shape(
    name: object, datatype: object, said: object, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape that an input states, if it is one that the body takes."""
    if name != "features":
        raise BadRequest("one input named features is needed")
    if datatype != "FP32":
        raise BadRequest(f"features: datatype FP32 is needed, {str(datatype)[:20]} given")
    whole = isinstance(said, list) and all(type(one) is int for one in said)
    found = tuple(said) if isinstance(said, list) and whole else ()
    if len(found) != len(shape) + 1 or found[1:] != shape or not 1 <= found[0] <= MOST:
        raise BadRequest(
            f"features: shape (n, {', '.join(map(str, shape))}) with n from 1 to {MOST} is needed, "
            f"{str(said)[:60]} given"
        )
    return found
