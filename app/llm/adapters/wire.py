"""JSON on a wire: written deterministically, read without trusting its types. Knows no dialect."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, cast

from app.schema.errors import LLMError
from app.schema.message import JSON

Table = dict[str, Any]

# Made once: json.dumps makes an encoder at each call with options.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def dumps(value: Any) -> bytes:
    """Deterministic JSON bytes; lone surrogates, which no server takes, become replacement characters."""
    text = _ENCODER.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def loads(data: bytes, who: str) -> JSON:
    """The value of JSON bytes. Raises `MALFORMED_RESPONSE` that quotes their beginning."""
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LLMError(f"{who} sent something that is no JSON: {text[:120]!r}", "MALFORMED_RESPONSE") from error


def arguments_table(raw: str) -> Table | None:
    """The object that raw call arguments stand for, or None when they are no JSON object."""
    try:
        return as_table(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def as_table(value: JSON) -> Table | None:
    return cast("Table", value) if isinstance(value, dict) else None


def as_items(value: JSON) -> list[JSON]:
    return cast("list[JSON]", value) if isinstance(value, list) else []


def as_text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def as_number(value: JSON) -> int:
    """A count: servers send it as an integer, a float or digits; anything else is 0, and so is a negative one."""
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(0, value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value) else 0


MAX_ID = 64
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")


def short_id(call_id: str) -> str:
    """The id of a call as it came; one of more than 64 characters, which OpenAI refuses, as `legal_id`."""
    return call_id if len(call_id) <= MAX_ID else legal_id(call_id)


def mistral_id(call_id: str) -> str:
    """The id of a call as Mistral wants it: exactly nine letters or digits, always the same for the same id."""
    return call_id if _MISTRAL_ID.fullmatch(call_id) else _digest(call_id)[:9]


def legal_id(call_id: str) -> str:
    """The id of a call as vendors allow it (letters, digits, `_`, `-`, at most 64), always the same for the same id."""
    if _ID.fullmatch(call_id):
        return call_id
    return f"{re.sub(r'[^a-zA-Z0-9_-]', '_', call_id)[:48]}-{_digest(call_id)[:12]}"


def _digest(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
