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


def pack(message: Message, limit: int = LIMIT) -> bytes:
    text = to_text(message)
    try:
        body = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a letter, from a stranger: it must not keep others from being answered
        body = text.encode("utf-8", "replace")
    if len(body) > limit:
        raise ProtocolError(f"The message has {len(body)} bytes, and {limit} are the most.", "Ask for less at once.")
    return len(body).to_bytes(HEAD, "big") + body


class Unpacker:
    """Bytes as they come in, whole messages as they are complete."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
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
        return _decode(bytes(self._bytes[HEAD : HEAD + self._length]))

    def skip(self) -> int:
        """Leave it out; how many bytes it has."""
        size = HEAD + self._length
        del self._bytes[:size]
        return size

    def peek(self, length: int) -> bytes:
        """How the next message begins."""
        return bytes(self._bytes[HEAD : HEAD + length])


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
