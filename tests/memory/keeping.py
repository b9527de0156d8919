"""A folder of sessions and the small words of their tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from app.memory.memory import Memory
from app.memory.recover import Restored
from app.memory.sessions import Session, Sessions
from app.schema.message import Message, ToolCallBlock, assistant_message


@contextmanager
def opened(folder: Path) -> Iterator[Sessions]:
    with closing(Sessions(folder, redact=lambda text: text.replace("s3cr3t-key", "***"))) as sessions:
        yield sessions


def begin(sessions: Sessions, workspace: str = "/w") -> tuple[Session, Memory]:
    session = sessions.create(agent="manus", workspace=workspace)
    memory = Memory()
    session.attach(memory)
    return session, memory


def again(sessions: Sessions, reference: str = "last", **more: bool) -> tuple[Session, Memory, Restored]:
    session = sessions.resume(reference)
    memory = Memory()
    return session, memory, session.attach(memory, **more)


def called(*calls: tuple[str, str, str]) -> Message:
    """A reply with calls: (id, name, arguments)."""
    return assistant_message([ToolCallBlock(*call) for call in calls], provider="p", model="m")


def said(text: str) -> Message:
    return assistant_message(text, provider="p", model="m")


def results(memory: Memory) -> list[str]:
    return [result.text for message in memory.messages for result in message.tool_results]


def raw(sessions: Sessions, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Reach into the file, to look or to do damage."""
    return sessions.store._db.execute(statement, values).fetchall()
