"""Messages as bytes: a length of four bytes, then JSON. Bounded, and with a clean end.

Not for: what a message means (messages.py), nor for sockets (client/connection.py, broker/edge/server.py).
"""

from __future__ import annotations

from gpulease.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Message = Mapping[str, Any]
else:
    Message = dict  # `typing` is not loaded for a name

LIMIT = 1 << 20  # bytes of one message
MAX_VALUES = 100_000  # texts, numbers and lists of one request: each takes time to read, be it empty
HEAD = 4


class _Plain:
    """What the scanner of `json` asks for."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def _codec() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """To text and back, by the C part of `json` where it is as we know it: all of `json` loads more than a command."""
    try:
        from _json import encode_basestring, make_encoder, make_scanner

        chunks = make_encoder(None, _refuse, encode_basestring, None, ":", ",", False, False, True)
        scan = make_scanner(_Plain())  # type: ignore[arg-type]
        "".join(chunks({}, 0)), scan("{}", 0)
    except (ImportError, AttributeError, TypeError):
        import json

        return json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode, json.loads

    def decode(text: str) -> Any:
        text = text.strip(" \t\n\r")
        try:
            value, end = scan(text, 0)
        except (StopIteration, RecursionError, SystemError):
            end = -1  # SystemError: up to 3.12 the scanner finds its own error only where `json` is loaded
        if end != len(text):
            raise ValueError("no JSON, or more than one document")
        return value

    return lambda value: "".join(chunks(value, 0)), decode


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} cannot be sent")


to_text, from_text = _codec()


class Written(str):
    """A part of an answer that is JSON already: made a piece at a time, or once for many who get it."""


def listed(rows: list[str]) -> Written:
    return Written(f"[{','.join(rows)}]")


def _text(message: Message) -> str:
    """With the parts of what it says that are written already."""
    for kind, answer in message.items():
        if type(answer) is dict and any(type(value) is Written for value in answer.values()):
            parts = (f'"{name}":{v if type(v) is Written else to_text(v)}' for name, v in answer.items())
            return f'{{"{kind}":{{{",".join(parts)}}}}}'
    return to_text(message)


def pack(message: Message, limit: int = LIMIT) -> bytes:
    text = _text(message)
    try:
        body = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a letter, from a stranger: it must not keep others from being answered
        body = text.encode("utf-8", "replace")
    if len(body) > limit:
        raise ProtocolError(f"The message has {len(body)} bytes, and {limit} are the most.", "Ask for less at once.")
    return len(body).to_bytes(HEAD, "big") + body


class Unpacker:
    """Bytes as they come in, whole messages as they are complete."""

    def __init__(self, limit: int = LIMIT, values: int | None = None) -> None:
        self._limit, self._values = limit, values
        self._bytes = bytearray()

    @property
    def pending(self) -> bool:
        """Whether a message has begun, complete or not."""
        return bool(self._bytes)

    @property
    def size(self) -> int:
        """Bytes that were not taken out yet."""
        return len(self._bytes)

    @property
    def whole(self) -> bool:
        """Whether the next message can be read: it is complete, or so large that reading it is refused."""
        size = len(self._bytes)
        return size >= HEAD and (size >= HEAD + self._length or self._length > self._limit)

    @property
    def _length(self) -> int:
        return int.from_bytes(self._bytes[:HEAD], "big")

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self.keep(data)
        messages = []
        while self.whole:
            messages.append(self.next())
        return messages

    def keep(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> dict[str, Any]:
        """The next message, which is complete."""
        try:
            return self.read()
        finally:
            self.skip()

    def read(self) -> dict[str, Any]:
        """The same, which stays where it is."""
        if self._length > self._limit:
            raise ProtocolError(f"A message of {self._length} bytes was announced, and {self._limit} are the most.")
        body = bytes(self._bytes[HEAD : HEAD + self._length])
        if self._values is not None and body.count(b",") > self._values and _values(body) > self._values:
            raise ProtocolError(f"A message has more than {self._values} values.", "Send it in parts.")
        return _decode(body)

    def skip(self) -> int:
        """Leave it out; how many bytes it has."""
        size = HEAD + self._length
        del self._bytes[:size]
        return size

    def peek(self, length: int) -> bytes:
        """How the next message begins."""
        return bytes(self._bytes[HEAD : HEAD + length])


def _values(body: bytes) -> int:
    """About how many it has: commas, but for those inside of texts."""
    if b"\\" not in body:
        return sum(part.count(b",") for part in body.split(b'"')[::2])
    import re

    return re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"', b"", body).count(b",")


def _decode(body: bytes) -> dict[str, Any]:
    text = body.decode("utf-8", "surrogateescape")
    try:
        message = from_text(text)
        # Half a letter, which no encoding can carry, must get nowhere. It comes as an escape only, which we never send.
        if "\\u" in text:
            to_text(message).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError):
        raise ProtocolError("A message is not JSON, or not text.") from None
    if not isinstance(message, dict):
        raise ProtocolError("A message is not a JSON object.")
    return message
