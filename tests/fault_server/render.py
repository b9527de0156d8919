"""From a behaviour to socket actions: framing of events, HTTP framing and every fault of the way between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Protocol

from .behaviours import Behaviour, Cut, Delivery, EndOfBody, Events, InBand, Injection, Raw, Reply, Status
from .record import Request


@dataclass(frozen=True, slots=True)
class Send:
    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Finish:
    """`end` keeps the connection for the next request."""

    how: EndOfBody
    ping: bytes = b""
    ping_s: float | None = None


Action = Send | Pause | Finish


@dataclass(frozen=True, slots=True)
class Event:
    payload: str
    name: str | None = None


class Dialect(Protocol):
    """One provider's wire; a dialect subclasses this and overrides what differs from server-sent events."""

    done: str | None = None
    """The payload of the end marker, None where the wire has none."""
    content_type: str = "text/event-stream"

    def claims(self, request: Request) -> bool:
        """Whether this request asks a model, and so takes the next behaviour."""
        ...

    def streams(self, request: Request) -> bool: ...
    def events(self, reply: Reply, request: Request) -> list[Event]: ...
    def document(self, reply: Reply, request: Request) -> Any: ...
    def error(self, code: int, message: str) -> Any: ...
    def check(self, body: Any) -> list[str]:
        """What a strict provider would refuse in this request body."""
        ...

    def routes(self, models: tuple[str, ...]) -> dict[str, Any]:
        """Answers to GET requests, by path."""
        ...

    def in_band(self, error: InBand) -> Event:
        return Event(json.dumps({"error": {"code": error.code, "message": error.message}}))

    def frame(self, event: Event, delivery: Delivery, *, blank: bool) -> bytes:
        """One event's bytes; `blank` false leaves out what ends it, where the wire has such a thing."""
        return sse_frame(event, delivery, blank=blank)


def render(behaviour: Behaviour, request: Request, dialect: Dialect) -> Iterator[Action]:
    match behaviour:
        case Raw(data, then, delay_s):
            yield Pause(delay_s)
            yield Send(data)
            yield Finish(then, b": ping\n\n")
        case Status(code, body, message, delivery):
            payload = dialect.error(code, message) if body is None else body
            kind = "text/plain; charset=utf-8" if isinstance(payload, str | bytes) else "application/json"
            yield from document(code, payload, delivery, kind)
        case Reply(delivery=delivery):
            if dialect.streams(request) and "full_json" not in behaviour.odd:
                yield from stream(dialect.events(behaviour, request), delivery, dialect)
            else:
                injected = [_event(each, dialect).payload for each in delivery.injections]
                payload = injected[0] if injected else dialect.document(behaviour, request)
                yield from document(200, payload, delivery, "application/json")
        case Events(payloads, delivery):
            if dialect.streams(request):
                yield from stream([Event(payload) for payload in payloads], delivery, dialect)
            else:
                yield from document(200, payloads[0] if payloads else b"", delivery, "application/json")


def document(code: int, payload: Any, delivery: Delivery, content_type: str) -> Iterator[Action]:
    body = payload if isinstance(payload, bytes) else _text(payload).encode()
    cut = delivery.cut
    if cut and cut.bytes is None:
        cut = replace(cut, bytes=len(body) // 2)
    yield from _respond(code, [Send(body)], replace(delivery, cut=cut), content_type, "length")


def stream(events: list[Event], delivery: Delivery, dialect: Dialect) -> Iterator[Action]:
    events = list(events)
    # From the back, so that positions count the reply's own events.
    for each in sorted(delivery.injections, key=lambda injection: -injection.after):
        rest = [] if each.ends else events[each.after :]
        events = [*events[: each.after], _event(each, dialect), *rest]
    if delivery.done and dialect.done is not None:
        events.append(Event(dialect.done))
    if delivery.cut and delivery.cut.events is not None:
        events = events[: delivery.cut.events]
    yield from _respond(200, _frames(events, delivery, dialect), delivery, dialect.content_type, "chunked")


def _frames(events: list[Event], delivery: Delivery, dialect: Dialect) -> list[Send | Pause]:
    steps: list[Send | Pause] = [Send(b"\xef\xbb\xbf")] if delivery.bom else []
    ping = Send((delivery.ping + delivery.line_end * 2).encode())
    for index, event in enumerate(events):
        steps += [ping, Pause(delivery.between_events_s)] * delivery.pings
        if index:
            steps.append(Pause(delivery.between_events_s))
        last = index == len(events) - 1
        steps.append(Send(dialect.frame(event, delivery, blank=delivery.last_blank or not last)))
    return [*steps, Send(delivery.tail)]


def _event(injection: Injection, dialect: Dialect) -> Event:
    if not isinstance(injection.payload, InBand):
        return Event(injection.payload, injection.event)
    event = dialect.in_band(injection.payload)
    return Event(event.payload, injection.event or event.name)


def sse_frame(event: Event, delivery: Delivery, *, blank: bool) -> bytes:
    payload = event.payload
    if delivery.multiline and payload.startswith("{"):
        payload = json.dumps(json.loads(payload), ensure_ascii=False, indent=1)
    lines = [f"event: {event.name}"] if event.name else []
    lines += delivery.fields
    lines += [("data: " if delivery.space else "data:") + line for line in payload.split("\n")]
    return (delivery.line_end.join(lines) + delivery.line_end * (2 if blank else 1)).encode()


def _respond(
    code: int, steps: list[Send | Pause], delivery: Delivery, content_type: str, transfer: str
) -> Iterator[Action]:
    transfer = delivery.transfer or transfer
    length = sum(len(step.data) for step in steps if isinstance(step, Send))
    headers = {"content-type": delivery.content_type or content_type}
    if transfer == "chunked":
        headers["transfer-encoding"] = "chunked"
    elif transfer == "length":
        headers["content-length"] = str(length)
    else:
        headers["connection"] = "close"
    headers |= {name.lower(): value for name, value in delivery.headers.items()}
    yield Pause(delivery.before_headers_s)
    yield Send(_head(code, headers))
    for step in _shaped(steps, delivery):
        if isinstance(step, Send) and transfer == "chunked":
            step = Send(b"%x\r\n%b\r\n" % (len(step.data), step.data))
        yield step
    cut = delivery.cut or Cut(how="end")
    if cut.how == "end" and transfer == "chunked":
        yield Send(b"0\r\n\r\n")
    ping = f"{delivery.ping}{delivery.line_end * 2}".encode()
    if transfer == "chunked":
        ping = b"%x\r\n%b\r\n" % (len(ping), ping)
    must_close = cut.how == "end" and (transfer == "close" or (transfer == "length" and cut.bytes is not None))
    yield Finish("close" if must_close else cut.how, ping, cut.ping_s)


def _head(code: int, headers: dict[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(code).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {code} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _shaped(steps: list[Send | Pause], delivery: Delivery) -> Iterator[Send | Pause]:
    """The body's steps, cut at its last byte and split into the wanted pieces; pieces are never empty."""
    cut = delivery.cut
    limit = cut.bytes if cut and cut.bytes is not None else None
    at = 0
    for step in _merged(steps) if delivery.split else steps:
        if isinstance(step, Pause):
            if step.seconds:
                yield step
            continue
        data = step.data if limit is None else step.data[: max(0, limit - at)]
        for piece in _pieces(data, at, delivery):
            yield Send(piece)
            if delivery.bytes_per_s:
                yield Pause(len(piece) / delivery.bytes_per_s)
            elif delivery.split:
                yield Pause(0)
        at += len(data)


def _merged(steps: list[Send | Pause]) -> Iterator[Send | Pause]:
    """The same steps with writes joined that no pause keeps apart, so that pieces may span events."""
    pending = b""
    for step in steps:
        if isinstance(step, Send):
            pending += step.data
        elif step.seconds:
            yield from (Send(pending), step)
            pending = b""
    yield Send(pending)


def _pieces(data: bytes, at: int, delivery: Delivery) -> Iterator[bytes]:
    if delivery.bytes_per_s and not delivery.split:
        # Ten writes a second look like a drip and still end when the rate is high.
        size = max(1, int(delivery.bytes_per_s / 10))
        marks = list(range(size, len(data), size))
    elif isinstance(delivery.split, tuple):
        marks = sorted(offset - at for offset in delivery.split if 0 < offset - at < len(data))
    elif delivery.split:
        first = delivery.split - at % delivery.split
        marks = list(range(first, len(data), delivery.split))
    else:
        marks = []
    for start, stop in zip([0, *marks], [*marks, len(data)], strict=True):
        if start < stop:
            yield data[start:stop]


def _text(payload: Any) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
