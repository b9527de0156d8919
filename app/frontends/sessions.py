"""`main.py sessions …`: what is stored, looked at, searched, copied, moved and forgotten. Output is the answer."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.config.load import load_config
from app.frontends.front import Front
from app.frontends.terminal import many
from app.memory.memory import Memory
from app.memory.recover import Restored
from app.memory.salvage import salvage
from app.memory.session_export import LATEST, export_session, import_session
from app.memory.session_store import SessionRow
from app.memory.sessions import Sessions, sessions_folder, title
from app.schema.errors import DragomanError, UsageError
from app.schema.message import Message, message_to_json

SHOWN_CHARS = 2_000
"""How much of one block `show` prints; `export` has everything."""


def run_sessions(front: Front, options: argparse.Namespace) -> int:
    """Do what the options say; returns the exit code. Raises `DragomanError`."""
    with suppress(DragomanError):  # a broken configuration hides no session
        front.redactor.learn(load_config(Path(options.config) if options.config else None))
    action = options.action or "list"
    if action != "import" and not Sessions.exist():
        if action == "list":
            return 0
        raise UsageError("there is no session yet", hint="every run of main.py and run_flow.py is stored")
    if action == "repair":
        return _repair(front, options)
    with closing(Sessions(redact=front.redactor)) as sessions:
        for warning in sessions.warnings:
            front.tell(f"warning: {warning}")
        ACTIONS[action](front, sessions, options)
    return 0


def _list(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    for row in sessions.list():
        if options.json:
            _object(front, _facts(sessions, row))
        else:
            front.say(f"{row.id}  {_when(row.updated)}  {sessions.state(row):<11}  {row.task}")


def _show(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    row = sessions.find(options.session)
    held, damaged = sessions.read(row)
    if not options.json:
        front.say(f"{row.id}  {_when(row.updated)}  {sessions.state(row)}  {row.agent}  {row.workspace}")
    for thread, (memory, restored) in held.items():
        if options.json:
            for message in memory.messages:
                _object(front, message_to_json(message) | {"thread": thread})
        else:
            _tell(front, thread, memory, restored)
    if damaged:
        front.tell(f"warning: {many(len(damaged), 'row')} of this session cannot be read")


def _tell(front: Front, thread: str, memory: Memory, restored: Restored) -> None:
    if thread:
        front.say(f"\n{thread}")
    for message in memory.messages:
        front.say(_as_text(message))
    if restored.question is not None:
        front.say(f"waits for an answer: {restored.asked}")
    if restored.doubts:
        calls = ", ".join(f"{call.name} {_short(call.arguments)}" for call in restored.doubts)
        front.say(f"may have had its effect: {calls}")


def _search(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    for hit in sessions.search(" ".join(options.words), limit=options.limit):
        if options.json:
            found = {"session": hit.session.id, "seq": hit.seq, "time": _iso(hit.time)}
            _object(front, found | {"message": message_to_json(hit.message)})
        else:
            front.say(f"{hit.session.id}  {_when(hit.time)}  {title(_plain_text(hit.message))}")


def _fork(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    row = sessions.fork(options.session, at=options.at)
    _object(front, _facts(sessions, row)) if options.json else front.say(row.id)


def _export(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in export_session(sessions, options.session))
    if options.output is None:
        for line in lines:
            front.write(line)
        return
    sessions.find(options.session)
    try:
        with Path(options.output).expanduser().open("x", encoding="utf-8", errors="replace") as file:
            file.writelines(lines)
    except FileExistsError:
        raise UsageError(f"{options.output} exists already", hint="remove it or choose another name for -o") from None
    except OSError as error:
        raise UsageError(f"{options.output} cannot be written: {error.strerror or error}") from None


def _import(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    try:
        with Path(options.file).expanduser().open(encoding="utf-8", errors="replace") as file:
            name, problems = import_session(sessions, file)
    except OSError as error:
        raise UsageError(f"{options.file} cannot be read: {error.strerror or error}", hint="check the path") from None
    for problem in problems[:20]:
        front.tell(f"warning: left out: {problem}")
    _object(front, {"id": name, "left_out": len(problems)}) if options.json else front.say(name)


def _delete(front: Front, sessions: Sessions, options: argparse.Namespace) -> None:
    for reference in options.sessions:
        row = sessions.delete(reference)
        front.tell(f"deleted {row.id}")


def _repair(front: Front, options: argparse.Namespace) -> int:
    store, kept, lost = salvage(sessions_folder(), front.redactor)
    saved = len(store.sessions())
    store.close()
    if options.json:
        _object(front, {"sessions": saved, "lost_rows": lost, "kept": str(kept)})
    else:
        front.say(f"{many(saved, 'session')} saved, {many(lost, 'row')} lost; the old file is {kept}")
    return 0


ACTIONS: Mapping[str, Callable[[Front, Sessions, argparse.Namespace], None]] = {
    "list": _list,
    "show": _show,
    "search": _search,
    "fork": _fork,
    "export": _export,
    "import": _import,
    "delete": _delete,
}


def _facts(sessions: Sessions, row: SessionRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "time": _iso(row.updated),
        "created": _iso(row.created),
        "state": sessions.state(row),
        "task": row.task,
        "kind": row.kind,
        "agent": row.agent,
        "workspace": row.workspace,
    }


def _object(front: Front, value: Mapping[str, Any]) -> None:
    front.write(front.redactor(json.dumps(value, ensure_ascii=False)) + "\n")


def _as_text(message: Message) -> str:
    who = "you" if message.source.__class__.__name__ == "UserSource" else message.role
    lines: list[str] = []
    for block in message_to_json(message)["content"]:
        match block["kind"]:
            case "text":
                lines.append(f"{who}> {_short(block['text'])}")
            case "tool-call":
                lines.append(f"call> {block['name']} {_short(block['arguments'])}")
            case "tool-result":
                texts = "".join(part.get("text", f"[{part['kind']}]") for part in block["content"])
                lines.append(f"{'error' if block['is_error'] else 'result'}> {_short(texts)}")
            case "reasoning":
                continue
            case kind:
                lines.append(f"{who}> [{kind}]")
    return "\n".join(lines) or f"{who}>"


def _plain_text(message: Message) -> str:
    return _as_text(message).partition("> ")[2]


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}… ({len(text) - SHOWN_CHARS:,} more characters)"


def _when(moment: float) -> str:
    return datetime.fromtimestamp(_shown(moment)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _shown(moment: float) -> float:
    """A damaged row may hold any number; the nearest time that has a date is shown."""
    return 0.0 if math.isnan(moment) else min(max(moment, 0.0), LATEST)


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(_shown(moment), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
