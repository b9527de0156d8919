"""The run that is killed: 50 steps whose effects an outside file records, by a model that knows only its history."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

from app.agents.toolcall import ToolCallAgent
from app.config.settings import LLMSettings
from app.llm import history
from app.llm.adapters.scripted import ScriptedAdapter, Turn, call, say
from app.llm.pool import LLMPool
from app.memory.sessions import Session, Sessions
from app.schema.message import Message
from app.schema.request import ModelRequest
from app.schema.run import RunContext, RunResult
from app.tools.base import Args, Tool, ToolOutput
from app.tools.toolbox import Toolbox

STEPS = 50
TASK = "do fifty things"
EFFECTS = ("once", "read", "idempotent", "once", "once")


class Observer:
    """A file outside everything: what is written there has happened, whatever becomes of the writer."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def saw(self, kind: str, what: object) -> None:
        os.write(self._file, f"{json.dumps([kind, what])}\n".encode())


class NumberArgs(Args):
    number: int


class Do(Tool[NumberArgs]):
    """Leaves a mark with the observer; a step's number says what kind of deed it is."""

    Arguments = NumberArgs
    description = "Do something."

    def __init__(self, effect: str, observer: Observer, seconds: float) -> None:
        self.name = effect  # pyright: ignore[reportAttributeAccessIssue]
        self.effect = effect  # pyright: ignore[reportAttributeAccessIssue]
        self._observer = observer
        self._seconds = seconds

    async def run(self, args: NumberArgs, ctx: RunContext) -> ToolOutput:
        self._observer.saw("effect", [self.name, args.number])
        await asyncio.sleep(self._seconds)
        return ToolOutput(f"done {args.number} " + "x" * (args.number % 7) * 300)


def naive(observer: Observer) -> Callable[[ModelRequest], Turn]:
    """A model that repeats whatever has no good result, until it is told plainly that this may not be."""

    def answer(request: ModelRequest) -> Turn:
        for problem in history.problems(request.messages):
            observer.saw("invalid", problem)
        settled = 0
        for message in request.messages:
            for result in message.tool_results:
                settled += "done" in result.text or "not run" in result.text
        if settled >= STEPS:
            return say("all is done")
        if settled % 10 == 5:  # three at once, two of them side by side
            numbers = range(settled, min(settled + 3, STEPS))
            return Turn(calls=tuple(("read" if n > numbers[0] else "once", {"number": n}) for n in numbers))
        return call(EFFECTS[settled % len(EFFECTS)], {"number": settled})

    return answer


class Watched(Session):
    """Tells the observer what was promised to be on disk, once it was promised."""

    observer: Observer

    def __init__(self, *args: object, **more: object) -> None:
        self.promised: list[str] = []
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def record(self, message: Message, thread: str = "") -> None:
        super().record(message, thread)
        self.promised.append(message.id)

    async def settled(self) -> None:
        told, self.promised = self.promised, []
        try:
            await super().settled()
        except BaseException:
            self.promised = told + self.promised
            raise
        for name in told:
            self.observer.saw("kept", name)


async def work(
    folder: Path, observer: Observer, session_id: str | None, prepare: Callable[[Sessions], None] = lambda _: None
) -> RunResult:
    """Go on with a session, or begin one, to the end."""
    adapter = ScriptedAdapter(naive(observer))
    settings = LLMSettings(name="default", model="scripted", api_type="test")
    pool = LLMPool({"default": settings}, adapters={"default": adapter})
    sessions = Sessions(folder)
    prepare(sessions)
    Watched.observer = observer
    row = sessions.find(session_id) if session_id else None
    session = Watched(sessions, row) if row else Watched(sessions, os.urandom(4).hex(), kind="agent")
    toolbox = Toolbox(*(Do(effect, observer, 0.0004) for effect in ("once", "read", "idempotent")))
    agent = ToolCallAgent("worker", llm=pool.get(), toolbox=toolbox, max_steps=500)
    restored = session.attach(agent.memory)
    toolbox.doubt(restored.doubts)
    observer.saw("session", session.id)
    ctx = RunContext(sink=session.watch, session=session.id)
    begun = any(message.role == "user" for message in agent.memory.messages)
    result = await (agent.go_on(ctx) if begun else agent.run(TASK, ctx))
    try:
        session.close()
    finally:
        sessions.close()
    return result
