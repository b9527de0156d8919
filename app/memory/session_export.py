"""A session as JSON lines, out and in: a header line, then an event a line. Data only; nothing in a file is run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from app.memory.packing import Row, message_row, parse, plain_row, unpack_message
from app.memory.sessions import ID, Sessions
from app.schema.errors import SessionError
from app.schema.message import JSON, message_from_json, message_to_json

FORMAT = "dragoman-session"
VERSION = 1
KINDS = frozenset({"created", "message", "started", "run_started", "run_finished", "plan_changed", "compacted"})
LONGEST_LINE = 64 * 1024 * 1024
LATEST = 253402214400.0
"""Seconds; the last day of the year 9999. No calendar shows a time after it."""


def export_session(sessions: Sessions, reference: str) -> Iterator[dict[str, JSON]]:
    """The header and every event of a session, what it shares with others included; damaged rows are left out."""
    row = sessions.find(reference)
    yield {
        "format": FORMAT,
        "version": VERSION,
        "id": row.id,
        "kind": row.kind,
        "agent": row.agent,
        "workspace": row.workspace,
        "task": row.task,
        "state": sessions.state(row),
        "created": row.created,
    }
    events, _ = sessions.store.events(row.number)
    for event in events:
        data = event.data
        if event.kind == "message":
            try:
                data = message_to_json(unpack_message(event.data, event.bodies))
            except (KeyError, ValueError):
                continue
        yield {"seq": event.seq, "time": event.time, "kind": event.kind, "thread": event.thread, "data": data}


def import_session(sessions: Sessions, lines: Iterable[str]) -> tuple[str, list[str]]:
    """Store a session that was exported; returns its id and what was wrong with lines that were left out.

    It keeps its id unless that is taken. Raises `SessionError`: `SESSION_NEWER` for a newer format, else `SESSION`
    when the first line is no header of ours.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    header = _header(next(numbered, (0, ""))[1])
    rows: list[Row] = []
    problems: list[str] = []
    for number, line in numbered:
        try:
            rows.append(_row(line, sessions))
        except (ValueError, KeyError, TypeError, AttributeError, SessionError) as error:
            problems.append(f"line {number}: {error}")
    name = str(header.get("id", ""))
    if not ID.match(name) or sessions.store.sessions("id = ?", (name,)):
        name = secrets.token_hex(4)
    now = time.time()
    columns: dict[str, JSON] = {"id": name, "created": _moment(header.get("created"), now), "updated": now}
    columns |= {key: sessions.redact(_text(header.get(key, ""))) for key in ("agent", "workspace", "task", "state")}
    columns["kind"] = "flow" if header.get("kind") == "flow" else "agent"
    origin = plain_row("created", {"imported": True}, thread="", time=now, redact=sessions.redact, durable=True)
    sessions.store.append(None, [origin, *rows], columns=columns)
    return name, problems


def _header(line: str) -> Mapping[str, JSON]:
    try:
        header = parse(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or cast("dict[str, JSON]", header).get("format") != FORMAT:
        raise SessionError("this is no exported session", hint="export one: python main.py sessions export ID -o FILE")
    known = cast("dict[str, JSON]", header)
    version = known.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise SessionError(
            f"the file has format {version}; this version knows {VERSION}",
            code="SESSION_NEWER",
            hint="import it with the newer version of Dragoman",
        )
    return known


def _row(line: str, sessions: Sessions) -> Row:
    if len(line) > LONGEST_LINE:
        raise ValueError("longer than 64 MB")
    event = parse(line)
    kind, thread, moment = str(event["kind"]), _text(event["thread"]), _moment(event["time"], 0.0)
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    data = event["data"]
    if kind == "message":
        return message_row(message_from_json(data), thread=thread, time=moment, redact=sessions.redact)
    return plain_row(kind, data, thread=thread, time=moment, redact=sessions.redact, durable=True)


def _moment(value: JSON, default: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= LATEST else default


def _text(value: JSON) -> str:
    """As text that can be stored: half a surrogate pair, which JSON can carry, becomes a question mark."""
    return str(value).encode(errors="replace").decode()
