"""What the headers of a reply say of an account's rate limits, in the spellings of the vendors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

Counted = Literal["requests", "tokens"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One limit as a reply told it: `limit` in all, `remaining` of it, and seconds until it is whole again.

    None = not said.
    """

    counted: Counted
    remaining: float
    limit: float | None = None
    reset_s: float | None = None


SPELLINGS: tuple[tuple[Counted, str], ...] = (
    ("requests", "x-ratelimit-{}-requests"),  # OpenAI, Azure, Groq, Mistral, Together
    ("tokens", "x-ratelimit-{}-tokens"),
    ("requests", "anthropic-ratelimit-requests-{}"),
    ("tokens", "anthropic-ratelimit-tokens-{}"),
    ("requests", "x-ratelimit-{}"),  # OpenRouter and many gateways
    ("requests", "ratelimit-{}"),  # draft-ietf-httpapi-ratelimit-headers
)
"""What is counted, and the header's name around `limit`, `remaining` and `reset`; the first that is there counts."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seen_limits(headers: Mapping[str, str], *, now: datetime | None = None) -> Iterator[Seen]:
    """The limits in these headers (names in lower case), at most one of each kind; what cannot be read is not there."""
    found: set[Counted] = set()
    for counted, spelling in SPELLINGS:
        remaining = _number(headers.get(spelling.format("remaining")))
        if remaining is None or counted in found:
            continue
        found.add(counted)
        reset = reset_s(headers.get(spelling.format("reset"), ""), now=_server_time(headers) or now)
        yield Seen(counted, remaining, _number(headers.get(spelling.format("limit"))), reset)


def reset_s(text: str, *, now: datetime | None = None) -> float | None:
    """Seconds from `now` until a reset: `1s`, `6m0s`, `20ms`, `7.66`, an epoch in seconds or milliseconds, RFC 3339.

    A time that is past is 0; None when it cannot be read.
    """
    text = text.strip()
    if not text:
        return None
    moment = now or datetime.now(UTC)
    if (number := _number(text)) is not None:
        if number < 1e9:
            return number
        return max(0.0, (number / 1000 if number >= 1e12 else number) - moment.timestamp())
    parts = _PART.findall(text)
    if parts and "".join(value + unit for value, unit in parts) == text:
        return sum(float(value) * _UNITS[unit] for value, unit in parts)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - moment).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _server_time(headers: Mapping[str, str]) -> datetime | None:
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, IndexError, OverflowError):
        return None
