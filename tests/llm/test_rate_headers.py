"""Rate-limit headers in every vendor's spelling, and resets in every form of time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.llm.rate_headers import Seen, reset_s, seen_limits

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)

RESETS: dict[str, float | None] = {
    "1s": 1.0,
    "20ms": 0.02,
    "6m0s": 360.0,
    "1h2m3.5s": 3723.5,
    "7.66s": 7.66,
    "2m59.56s": 179.56,
    "12": 12.0,
    "0": 0.0,
    "0.5": 0.5,
    "1d": 86400.0,
    str(int(NOW.timestamp()) + 30): 30.0,
    str((int(NOW.timestamp()) + 30) * 1000): 30.0,
    str(int(NOW.timestamp()) - 5): 0.0,
    "2026-12-01T12:00:45Z": 45.0,
    "2026-12-01T13:00:45+01:00": 45.0,
    "2026-12-01T12:00:45": 45.0,
    "2026-12-01T11:00:00Z": 0.0,
    "": None,
    "soon": None,
    "-3": None,
    "nan": None,
    "1s later": None,
}


@pytest.mark.parametrize(("text", "seconds"), RESETS.items(), ids=[text or "empty" for text in RESETS])
def test_a_reset_in_any_form(text: str, seconds: float | None) -> None:
    assert reset_s(text, now=NOW) == (None if seconds is None else pytest.approx(seconds))


SPOKEN: dict[str, tuple[dict[str, str], list[Seen]]] = {
    "openai": (
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        [Seen("requests", 59, 60, 1.0), Seen("tokens", 149984, 150000, 360.0)],
    ),
    "anthropic": (
        {
            "date": "Tue, 01 Dec 2026 12:00:00 GMT",
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2026-12-01T12:00:01Z",
            "anthropic-ratelimit-tokens-limit": "40000",
            "anthropic-ratelimit-tokens-remaining": "39000",
            "anthropic-ratelimit-tokens-reset": "2026-12-01T12:00:02Z",
        },
        [Seen("requests", 49, 50, 1.0), Seen("tokens", 39000, 40000, 2.0)],
    ),
    "azure: no limit, no reset": (
        {"x-ratelimit-remaining-requests": "9", "x-ratelimit-remaining-tokens": "800"},
        [Seen("requests", 9), Seen("tokens", 800)],
    ),
    "openrouter": (
        {
            "x-ratelimit-limit": "20",
            "x-ratelimit-remaining": "0",
            "x-ratelimit-reset": str((int(NOW.timestamp()) + 60) * 1000),
        },
        [Seen("requests", 0, 20, 60.0)],
    ),
    "the internet draft": (
        {"ratelimit-limit": "100", "ratelimit-remaining": "50", "ratelimit-reset": "50"},
        [Seen("requests", 50, 100, 50.0)],
    ),
    "nonsense": ({"x-ratelimit-remaining-requests": "many", "x-ratelimit-remaining-tokens": "-1"}, []),
    "nothing": ({}, []),
}


@pytest.mark.parametrize(("headers", "seen"), SPOKEN.values(), ids=SPOKEN)
def test_limits_in_every_spelling(headers: dict[str, str], seen: list[Seen]) -> None:
    assert list(seen_limits(headers, now=NOW)) == seen
