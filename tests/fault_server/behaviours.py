"""What the server can be told to do, as frozen values with one constructor each; nothing here knows a wire dialect.

A behaviour answers one request. `Reply` and `Events` are spoken in the dialect of the request, `Status` and
`Raw` are not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

EndOfBody = Literal["end", "close", "reset", "stall"]
"""`end`: as HTTP wants it; `close`: FIN in the middle; `reset`: RST; `stall`: silence until the client leaves."""

ODDITIES: dict[str, str] = {
    "index_zero": "every tool fragment has index 0",
    "index_missing": "no tool fragment has an index",
    "index_first_only": "only the first fragment of a call has its index",
    "index_one_based": "tool indexes count from 1",
    "index_string": "tool indexes are strings",
    "id_every": "id on every fragment of a call",
    "id_later": "the id comes with the second fragment of a call",
    "id_none": "no call has an id",
    "id_duplicate": "all calls have the same id",
    "name_every": "the name on every fragment of a call",
    "interleave": "fragments of parallel calls alternate",
    "arguments_object": "arguments are an object, in one fragment",
    "function_call": "the legacy field instead of tool_calls",
    "finish_stop": "finish reason stop although there are calls",
    "finish_empty": "an empty finish reason on every chunk before the last",
    "role_only": "the first chunk has a role and nothing else",
    "role_none": "no chunk has a role",
    "role_every": "every chunk repeats the role",
    "choices_null": "a first chunk with choices null",
    "choices_empty": "a first chunk with empty choices",
    "delta_missing": "a first chunk whose choice has no delta",
    "content_parts": "content is a list of text parts",
    "message": "one chunk with a whole message instead of deltas",
    "full_json": "a streamed request gets one JSON document",
    "no_deltas": "blocks come whole, without pieces (Responses)",
    "changing_ids": "every event gives its item another id (Responses)",
    "unknown_events": "an event of an unknown type before each other one (Responses)",
    "second_choice": "every content chunk has a second choice with other text",
}
"""Ways in which real servers deviate inside a reply; pass their names as `odd=`."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a body stops: after n events or n body bytes; both None spoils nothing but its end.

    A document has no events: without a number of bytes half of it is sent.
    """

    events: int | None = None
    bytes: int | None = None
    how: EndOfBody = "close"
    ping_s: float | None = None
    """For `stall`: a comment line every so many seconds instead of silence."""


@dataclass(frozen=True, slots=True)
class InBand:
    """An error inside a 200 stream, said as the dialect of the request says it."""

    code: int | str
    message: str


@dataclass(frozen=True, slots=True)
class Injection:
    """A foreign event after `after` events; `ends` drops what would have followed."""

    after: int
    payload: str | InBand
    event: str | None = None
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the bytes of an answer travel. Times in seconds."""

    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None
    transfer: Literal["chunked", "length", "close"] | None = None
    """None: chunked for streams, a content length for documents; `close`: the end of the connection ends the body."""
    before_headers_s: float = 0
    between_events_s: float = 0
    line_end: str = "\n"
    bom: bool = False
    pings: int = 0
    ping: str = ": keep-alive"
    """`pings` comment frames before each event."""
    fields: tuple[str, ...] = ()
    """Extra lines of every event, for example `id: 1`."""
    space: bool = True
    """False: `data:` without the space behind it."""
    multiline: bool = False
    """Pretty-printed payloads, one `data:` line per line."""
    done: bool = True
    last_blank: bool = True
    """False: the blank line after the last event is missing."""
    tail: bytes = b""
    """Bytes after the end marker."""
    split: int | tuple[int, ...] = 0
    """Pieces of n bytes (1 = at every position), or cuts at these body offsets; each piece is a write of its own."""
    bytes_per_s: float | None = None
    cut: Cut | None = None
    injections: tuple[Injection, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str
    id: str | None = None
    """None: the server makes one that is unique in the run (`call_<request>_<n>`)."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str | None = ""
    tool_calls: tuple[Call, ...] = ()
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    usage: dict[str, Any] | None = None
    usage_at: str = "auto"
    finish: str | None = "auto"
    model: str | None = None
    refusal: str | None = None
    pieces: int | tuple[str, ...] = 8
    odd: frozenset[str] = frozenset()
    delivery: Delivery = Delivery()


@dataclass(frozen=True, slots=True)
class Events:
    """Payloads sent as they are: one event each for a streamed request, else the first one as the whole document."""

    payloads: tuple[str, ...]
    delivery: Delivery = Delivery()


@dataclass(frozen=True, slots=True)
class Status:
    code: int
    body: Any = None
    """None: the dialect's own error object; str or bytes: as it is; else JSON."""
    message: str = ""
    delivery: Delivery = Delivery()


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes on the socket instead of an HTTP response."""

    data: bytes = b""
    then: EndOfBody = "close"
    delay_s: float = 0


Behaviour = Reply | Events | Status | Raw
B = TypeVar("B", Reply, Events, Status)


def call(name: str, arguments: dict[str, Any] | str = "{}", *, id: str | None = None) -> Call:
    """A tool call; a string is sent as raw arguments, valid or not."""
    return Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False), id)


def usage(prompt: int, completion: int, *, cached: int | None = None, reasoning: int | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        facts["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        facts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return facts


def reply(
    text: str | None = "",
    *,
    tool_calls: Sequence[Call | tuple[str, dict[str, Any] | str]] = (),
    reasoning: str = "",
    reasoning_field: str = "reasoning_content",
    usage: dict[str, Any] | None = None,
    usage_at: Literal["auto", "absent", "trailer", "finish", "twice", "every"] = "auto",
    finish: str | None = "auto",
    model: str | None = None,
    refusal: str | None = None,
    stream_pieces: int | Sequence[str] = 8,
    odd: str | Sequence[str] = (),
    **delivery: Any,
) -> Reply:
    """A model's answer: events for a streamed request, one JSON document otherwise.

    `usage` None means an estimate; `usage_at` "auto" obeys the request and "absent" hides it. `finish` None leaves
    the reason out. `stream_pieces` is a piece length in characters or the text's pieces themselves. `odd` names
    entries of `ODDITIES`. Everything else is a field of `Delivery`.
    """
    pieces = stream_pieces if isinstance(stream_pieces, int) else tuple(stream_pieces)
    if isinstance(pieces, tuple):
        if text and "".join(pieces) != text:
            raise ValueError("stream_pieces do not add up to the text")
        text = "".join(pieces)
    names = frozenset(odd.split() if isinstance(odd, str) else odd)
    if unknown := names - ODDITIES.keys():
        raise ValueError(f"unknown oddities: {', '.join(sorted(unknown))}")
    return Reply(
        text=text,
        tool_calls=tuple(each if isinstance(each, Call) else call(*each) for each in tool_calls),
        reasoning=reasoning,
        reasoning_field=reasoning_field,
        usage=usage,
        usage_at=usage_at,
        finish=finish,
        model=model,
        refusal=refusal,
        pieces=pieces,
        odd=names,
        delivery=Delivery(**delivery),
    )


def events(*payloads: Any, **delivery: Any) -> Events:
    """Payloads of one's own making; strings are sent raw, everything else as JSON."""
    return Events(tuple(_as_text(payload) for payload in payloads), Delivery(**delivery))


def status(
    code: int, body: Any = None, *, message: str = "", headers: dict[str, str] | None = None, **rest: Any
) -> Status:
    """An HTTP status; without a body the dialect's own error object carrying `message`."""
    return Status(code, body, message, Delivery(headers=headers or {}, **rest))


def raw(data: bytes, *, then: EndOfBody = "close", delay_s: float = 0) -> Raw:
    return Raw(data, then, delay_s)


def reset_before_headers(*, delay_s: float = 0) -> Raw:
    return Raw(b"", "reset", delay_s)


def close_before_headers(*, delay_s: float = 0) -> Raw:
    return Raw(b"", "close", delay_s)


def cut_after(
    of: B | None = None,
    *,
    events: int | None = None,
    bytes: int | None = None,
    reset: bool = False,
    clean: bool = False,
) -> B | Reply:
    """Stop after n events or body bytes: by FIN, by RST (`reset`), or as a well-formed HTTP end (`clean`)."""
    how: EndOfBody = "reset" if reset else "end" if clean else "close"
    return _delivered(of or sample(), cut=Cut(events, bytes, how))


def stall(of: B | None = None, *, events: int | None = None, ping_s: float | None = None) -> B | Reply | Raw:
    """Silence: before the headers (no `events`), or after n events; with `ping_s` comments keep coming."""
    if events is None:
        return Raw(b"", "stall")
    return _delivered(of or sample(), cut=Cut(events, None, "stall", ping_s))


def drip(bytes_per_s: float, of: B | None = None) -> B | Reply:
    return _delivered(of or sample(), bytes_per_s=bytes_per_s)


def in_band_error(
    body: Any = None,
    *,
    message: str = "slow down",
    code: int | str = 429,
    after: int = 2,
    event: str | None = None,
    ends: bool = True,
    done: bool = False,
    of: Reply | None = None,
) -> Reply:
    """An error inside a 200 stream after n events, as the dialect writes it, or named (`event="error"`).

    `body` replaces the dialect's object. A request without streaming gets it as its document.
    """
    payload = InBand(code, message) if body is None else _as_text(body)
    return _delivered(of or sample(), injections=(Injection(after, payload, event, ends),), done=done)


def malformed_json(*, payload: str = "{oops", after: int = 0, of: Reply | None = None) -> Reply:
    """A payload that is not JSON after n events; a document is replaced by it."""
    return _delivered(of or sample(), injections=(Injection(after, payload),), done=False)


def null_payload(*, payload: str = "null", after: int = 0) -> Reply:
    """A payload of the wrong JSON type (`null`, `[]`, `7`)."""
    return malformed_json(payload=payload, after=after)


def huge_line(size: int) -> Reply:
    """One event whose text has `size` characters."""
    return reply("x" * size, stream_pieces=max(1, size))


def redirect(url: str, *, code: int = 307) -> Status:
    return status(code, "", headers={"location": url})


def gzip_mismatch() -> Status:
    """200 whose body is plain JSON although the header says gzip."""
    return status(200, {"choices": []}, headers={"content-encoding": "gzip"})


def web_page(code: int = 200, *, title: str = "Sign in") -> Status:
    page = f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>"
    return status(code, page, content_type="text/html; charset=utf-8")


def sample() -> Reply:
    """The answer that faults spoil when none is given: role, Hel, lo, finish."""
    return reply(stream_pieces=("Hel", "lo"))


def _delivered(behaviour: B, **changes: Any) -> B:
    return replace(behaviour, delivery=replace(behaviour.delivery, **changes))


def _as_text(payload: Any) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
