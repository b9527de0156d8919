"""A stop request at every stage: quick, with valid memory, a next run that works, and nothing left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app.agents.toolcall import ToolCallAgent
from app.schema.event import EventRecord
from app.schema.run import RunContext, RunResult
from tests.agents.rig import Note, Rig, assert_valid, results, types
from tests.conftest import MakeServer
from tests.fault_server.behaviours import reply, stall, status


async def run_and_stop(
    agent: ToolCallAgent, ready: Callable[[list[EventRecord]], bool], cause: str = "SIGINT"
) -> tuple[RunResult, list[EventRecord], float]:
    """Run until `ready`, then ask for a stop; gives result, events, and the seconds from request to result."""
    events: list[EventRecord] = []
    ctx = RunContext(sink=events.append)
    run = asyncio.ensure_future(agent.run("one", ctx))
    async with asyncio.timeout(5):
        while not ready(events):
            await asyncio.sleep(0.002)
    asked = time.monotonic()
    ctx.cancel.cancel(cause)
    result = await run
    return result, events, time.monotonic() - asked


async def assert_next_run_works(agent: ToolCallAgent) -> None:
    assert_valid(agent.memory.messages)
    assert (await agent.run("two")).answer == "fine"


async def test_before_the_run_starts(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([reply("fine")])
    agent = rig.agent(rig.served_llm(server))
    ctx = RunContext()
    ctx.cancel.cancel("SIGTERM")
    result = await agent.run("one", ctx)
    assert (result.stop_reason, result.exit_code, server.chats) == ("cancelled", 143, [])
    await assert_next_run_works(agent)


async def test_l11_while_waiting_for_the_first_byte(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([stall(), reply("fine")])
    agent = rig.agent(rig.served_llm(server))
    result, events, seconds = await run_and_stop(agent, lambda _: bool(server.chats))
    assert (result.stop_reason, result.answer) == ("cancelled", "")
    assert seconds < 0.5
    assert types(events)[-1] == "run_finished"
    assert [message.role for message in agent.memory.messages] == ["user"]
    await server.until(lambda s: s.disconnects == 1)
    await assert_next_run_works(agent)


async def test_l10_while_text_streams(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([stall(reply("half an answer"), events=3), reply("fine")])
    agent = rig.agent(rig.served_llm(server))
    result, _, seconds = await run_and_stop(agent, lambda events: "text_delta" in types(events))
    assert (result.stop_reason, result.answer, result.exit_code) == ("cancelled", "", 130)
    assert seconds < 0.5
    assert [message.role for message in agent.memory.messages] == ["user"]
    await server.until(lambda s: s.disconnects == 1)
    await assert_next_run_works(agent)


async def test_while_a_call_streams_the_call_is_dropped(rig: Rig, fault_server: MakeServer) -> None:
    note = Note()
    begun = reply("I look.", tool_calls=[("note", {"text": "a long text, so that it comes in pieces"})])
    server = await fault_server([stall(begun, events=5), reply("fine")])
    agent = rig.agent(rig.served_llm(server), note)
    await run_and_stop(agent, lambda events: "text_delta" in types(events))
    assert note.log == []
    await assert_next_run_works(agent)


async def test_while_waiting_for_a_retry(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([status(503), reply("fine")])
    agent = rig.agent(rig.served_llm(server, sleep=asyncio.sleep))
    result, _, seconds = await run_and_stop(agent, lambda events: "retrying" in types(events))
    assert result.stop_reason == "cancelled"
    assert seconds < 0.2
    assert len(server.chats) == 1
    await assert_next_run_works(agent)


@pytest.mark.parametrize("tool", ["bash", "python_execute"])
async def test_l12_f11_67_while_a_command_runs(rig: Rig, fault_server: MakeServer, workspace: Path, tool: str) -> None:
    pid_file = workspace / "pid"
    shell = {"command": "sleep 60 & echo $! > pid.new; mv pid.new pid; wait"}
    python = {
        "code": "import subprocess, os\np = subprocess.Popen(['sleep', '60'])\n"
        "open('pid.new', 'w').write(str(p.pid))\nos.rename('pid.new', 'pid')\np.wait()"
    }
    server = await fault_server([reply(tool_calls=[(tool, shell if tool == "bash" else python)]), reply("fine")])
    agent = rig.agent(rig.served_llm(server))
    result, events, seconds = await run_and_stop(agent, lambda _: pid_file.exists())
    assert (result.stop_reason, result.cause) == ("cancelled", "SIGINT")
    assert seconds < 2.5
    assert results(agent) == [f"{tool}: interrupted before it gave a result; its outcome is unknown"]
    assert types(events).count("tool_started") == types(events).count("tool_finished") == 1
    assert len(server.chats) == 1
    child = int(pid_file.read_text())
    async with asyncio.timeout(3):
        while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
    await assert_next_run_works(agent)


async def test_cancelling_the_surrounding_task_still_cancels(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([reply(tool_calls=[("note", {})]), reply("fine")])
    note = Note(seconds=5)
    agent = rig.agent(rig.served_llm(server), note)
    run = asyncio.ensure_future(agent.run("one"))
    while not note.log:
        await asyncio.sleep(0.002)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert note.running == 0
    await assert_next_run_works(agent)


async def test_a_stop_after_the_end_changes_nothing(rig: Rig, fault_server: MakeServer) -> None:
    server = await fault_server([reply("done"), reply("fine")])
    agent = rig.agent(rig.served_llm(server))
    ctx = RunContext()
    assert (await agent.run("one", ctx)).answer == "done"
    ctx.cancel.cancel()
    await assert_next_run_works(agent)
