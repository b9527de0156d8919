"""What a reply says of an account's rate limits and of waiting, in the spellings of the vendors."""

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

_BUCKETS = (
    *(spelling for _, spelling in SPELLINGS),
    "anthropic-ratelimit-input-tokens-{}",
    "anthropic-ratelimit-output-tokens-{}",
)
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


def retry_after_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """The provider's request to wait, in seconds: `retry-after-ms`, `retry-after` as number or HTTP date.

    Zero, negative, past and unreadable values are no request (RFC 9110 section 10.2.3).
    """
    if found := _RETRY_AFTER.fullmatch(headers.get("retry-after-ms", "")):
        return float(found.group(1)) / 1000 or None
    value = headers.get("retry-after", "")
    if found := _RETRY_AFTER.fullmatch(value):
        return float(found.group(1)) or None
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, IndexError, OverflowError):
        return None
    base = _aware(now or _server_time(headers) or datetime.now(UTC))
    wait = (_aware(when) - base).total_seconds()
    return wait if wait > 0 else None


def exhausted_s(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds until the last of the exhausted buckets is whole again, for a reply that was refused for its rate.

    A bucket whose remainder is not told counts when no bucket's is.
    """
    moment = now or _server_time(headers)
    empty: list[float] = []
    untold: list[float] = []
    told = False
    for spelling in _BUCKETS:
        reset = reset_s(headers.get(spelling.format("reset"), ""), now=moment)
        remaining = _number(headers.get(spelling.format("remaining")))
        told = told or remaining is not None
        if reset and remaining is None:
            untold.append(reset)
        elif reset and remaining == 0:
            empty.append(reset)
    return max(empty, default=None) if told else max(untold, default=None)


def told_wait_s(text: str) -> float | None:
    """The wait that the words of a refusal name, in seconds: "try again in 6m0s", "retry after 20 seconds", "请20秒后".

    Also google.rpc.RetryInfo and the `estimated_time` of a model that is being loaded (Hugging Face).
    """
    for pattern in _TOLD_WAITS:
        if found := pattern.search(text):
            parts = _WORDED.findall(found[1].lower())
            return round(sum(float(value) * _UNITS[_short(unit)] for value, unit in parts), 6) or None
    return None


def _short(unit: str) -> str:
    return "ms" if unit.startswith(("ms", "milli")) else unit[:1] or "s"


_RETRY_AFTER = re.compile(r"\s*([0-9]{1,10}(?:\.[0-9]{1,6})?)\s*", re.ASCII)
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_UNIT = r"(?:milliseconds?|ms|minutes?|mins?|m|hours?|hrs?|h|days?|d|seconds?|secs?|s)"
_WORDED = re.compile(rf"({_NUMBER}) ?([a-z]*)", re.ASCII)
_TOLD_WAITS = tuple(
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf'"retryDelay":\s*"({_NUMBER}s)"',
        rf'"estimated_time":\s*({_NUMBER})',
        rf"(?:try (?:again )?(?:in|after)|please wait|wait for) ((?:{_NUMBER} ?{_UNIT}(?![a-z]) ?){{1,4}})",
        rf"({_NUMBER}) ?秒.{{0,4}}后",
    )
)


def _aware(when: datetime) -> datetime:
    return when.replace(tzinfo=when.tzinfo or UTC)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _server_time(headers: Mapping[str, str]) -> datetime | None:
    try:
        return _aware(parsedate_to_datetime(headers["date"]))
    except (KeyError, ValueError, IndexError, OverflowError):
        return None
