"""What the server remembers of a request, and whether consecutive requests keep their prefix; no serving here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. `number` counts from 1 over all requests of the server; `at` is `time.monotonic()`.

    Header names are lower-case; `json` is None when the body is not JSON; `connection` tells keep-alive reuse.
    """

    number: int
    connection: int
    at: float
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    json: Any = None


def prefix_violations(requests: Sequence[Request], *, tail_messages: int = 0, member: str = "messages") -> list[str]:
    """Where a request body, up to the end of its last message, is not a byte prefix of the next one.

    `tail_messages` last messages of every request are hints that may change. Tools must be byte-equal wherever they
    stand. `member` is what the dialect calls the messages. Requests without messages are skipped, so one conversation
    at a time should be given.
    """
    chats = [request for request in requests if isinstance(request.json, dict) and request.json.get(member)]
    problems: list[str] = []
    for before, after in itertools.pairwise(chats):
        name = f"request {before.number} → {after.number}"
        kept = _kept_prefix(before.body, tail_messages, member)
        if not after.body.startswith(kept):
            at = next((i for i, (a, b) in enumerate(zip(kept, after.body, strict=False)) if a != b), len(after.body))
            seen = f"{kept[max(0, at - 30) : at + 30]!r} became {after.body[max(0, at - 30) : at + 30]!r}"
            problems.append(f"{name}: the prefix changes at byte {at}: {seen}")
        if _member(before.body, "tools") != _member(after.body, "tools"):
            problems.append(f"{name}: the bytes of tools change")
    return problems


def _kept_prefix(body: bytes, tail_messages: int, member: str) -> bytes:
    text = body.decode()
    start, _ = _members(text)[member]
    ends = _element_ends(text, start)
    kept = ends[: len(ends) - tail_messages] if tail_messages else ends
    return text[: kept[-1] if kept else start + 1].encode()


def _member(body: bytes, name: str) -> str | None:
    text = body.decode()
    span = _members(text).get(name)
    return text[slice(*span)] if span else None


def _members(text: str) -> dict[str, tuple[int, int]]:
    """The span of every top-level value of a JSON object."""
    decoder = json.JSONDecoder()
    spans: dict[str, tuple[int, int]] = {}
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        spans[name] = (start, end)
        at = _after_comma(text, end)
    return spans


def _element_ends(text: str, start: int) -> list[int]:
    """Where each element of the array at `start` ends."""
    decoder = json.JSONDecoder()
    ends: list[int] = []
    at = _skip(text, start + 1)
    while text[at] != "]":
        _, end = decoder.raw_decode(text, at)
        ends.append(end)
        at = _after_comma(text, end)
    return ends


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
