"""Server-sent events from bytes: framing only, no input or output (WHATWG HTML, section 9.2.6).

Lines are split as bytes on CR, LF and CRLF alone: JSON may hold U+2028 and friends raw.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.schema.errors import LLMError

MAX_EVENT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SSEEvent:
    event: str
    data: bytes


class SSEDecoder:
    """Feed bytes split anywhere, get whole events. Comments and unknown fields are skipped.

    `flush()` at the end of the body gives the event whose closing blank line is missing, if any.
    Raises `MALFORMED_RESPONSE` for a line, or an event, over 16 MiB.
    """

    def __init__(self) -> None:
        self._open: list[bytes] = []
        self._open_size = 0
        self._after_cr = False
        self._started = False
        self._event = ""
        self._data: list[bytes] = []
        self._event_size = 0

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._keep(chunk)
            return []
        self._open.append(chunk)
        *lines, rest = b"".join(self._open).split(b"\n")
        self._open, self._open_size = [], 0
        self._keep(rest)
        events: list[SSEEvent] = []
        for line in lines:
            self._line(line, events)
        return events

    def flush(self) -> list[SSEEvent]:
        events: list[SSEEvent] = []
        if self._open:
            self._line(b"".join(self._open), events)
            self._open = []
        self._line(b"", events)
        return events

    def _keep(self, piece: bytes) -> None:
        self._open_size += len(piece)
        if self._open_size + self._event_size > MAX_EVENT_BYTES:
            raise LLMError("the stream sent an event of more than 16 MiB", "MALFORMED_RESPONSE")
        if piece:
            self._open.append(piece)

    def _line(self, line: bytes, events: list[SSEEvent]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(SSEEvent(self._event, b"\n".join(self._data)))
            self._event, self._data, self._event_size = "", [], 0
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._event_size += len(line)
        elif line.startswith(b"event:"):
            self._event = line[6:].strip().decode("utf-8", "replace")
        elif line == b"data":
            self._data.append(b"")
