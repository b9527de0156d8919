"""Stopped at any event of a run: what is remembered is stored and valid, and the next run goes on from it."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from pathlib import Path

import pytest

from app.agents.toolcall import ToolCallAgent
from app.llm import history
from app.llm.adapters.scripted import Turn, call, fail, say
from app.memory.memory import Memory
from app.memory.sessions import Sessions
from app.schema.event import EventRecord
from app.schema.run import RunContext, RunResult
from app.tools.base import tool
from app.tools.toolbox import Toolbox
from tests.agents.rig import Rig

EFFECTS: list[str] = []


@tool(effect="read")
async def look(at: str) -> str:
    "Look."
    await asyncio.sleep(0.001)
    return f"seen {at}"


@tool
async def act(on: str) -> str:
    "Act."
    EFFECTS.append(on)
    await asyncio.sleep(0.001)
    return f"acted on {on}"


SCRIPT = (
    Turn(text="I look.", calls=(("look", {"at": "a"}), ("look", {"at": "b"}), ("act", {"on": "c"}))),
    fail("RATE_LIMIT"),
    call("act", {"on": "d"}, text="Now this."),
    say("It is all done."),
)


class Stop:
    """A sink that stops the run at its `at`-th event: by request, or by cancelling the task that runs it."""

    def __init__(self, at: int, *, hard: bool) -> None:
        self.at, self.hard, self.count = at, hard, 0
        self.ctx = RunContext(sink=self)
        self.task: asyncio.Task[RunResult] | None = None

    def __call__(self, record: EventRecord) -> None:
        self.count += 1
        if self.count == self.at:
            if self.hard and self.task is not None:
                self.task.cancel()
            else:
                self.ctx.cancel.cancel("SIGINT")


def agent_of(rig: Rig, *script: Turn) -> ToolCallAgent:
    llm, _ = rig.scripted_llm(script)
    return rig.agent(llm, toolbox=Toolbox(look, act))


@pytest.mark.parametrize("hard", [False, True], ids=["asked", "cancelled"])
async def test_stopped_at_any_event_what_is_remembered_is_stored_and_valid(
    rig: Rig, tmp_path: Path, *, hard: bool
) -> None:
    at, ended = 0, False
    while not ended:
        at += 1
        EFFECTS.clear()
        with closing(Sessions(tmp_path / f"{at}")) as sessions:
            session, agent, stop = sessions.create(), agent_of(rig, *SCRIPT), Stop(at, hard=hard)
            session.attach(agent.memory)
            stop.task = asyncio.ensure_future(agent.run("the task", stop.ctx))
            with suppress(asyncio.CancelledError):
                result = await stop.task
                ended = stop.count < at
                assert result.stop_reason in ("cancelled", "answered")
            session.close()
            assert agent.memory.messages[0].text == "the task"
            assert history.problems(agent.memory.messages) == []
            session, memory = sessions.resume("last"), Memory()
            restored = session.attach(memory)
            assert memory.messages == agent.memory.messages
            assert (restored.closers, restored.damaged) == ((), [])
            done = [result.text for message in memory.messages for result in message.tool_results]
            # An effect that happened has its result, or is in doubt.
            in_doubt = {call.arguments for call in restored.doubts}
            for on in EFFECTS:
                assert f"acted on {on}" in done or f'{{"on": "{on}"}}' in in_doubt
            next_agent = agent_of(rig, say("The end."))
            next_agent.memory = memory
            assert (await next_agent.go_on()).ok
            session.close()
    assert at > 20
