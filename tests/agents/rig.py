"""An agent with the real toolbox on a real workspace, asking a scripted model or the fault server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from app.agents.toolcall import ToolCallAgent
from app.config.settings import LLMSettings
from app.llm import history
from app.llm.adapters.scripted import Script, ScriptedAdapter, Turn
from app.llm.client import LLM
from app.llm.pool import LLMPool
from app.sandbox.local import LocalSandbox
from app.schema.event import EventRecord
from app.schema.message import Message
from app.schema.run import RunContext
from app.tools.approval import ApprovalRequest, Decision
from app.tools.ask_human import AskHuman
from app.tools.base import Args, Tool, ToolOutput
from app.tools.bash import Bash
from app.tools.planning import Planning
from app.tools.python_execute import PythonExecute
from app.tools.str_replace_editor import StrReplaceEditor
from app.tools.terminate import Terminate
from app.tools.toolbox import AnyTool, Toolbox
from tests.fault_server import FaultServer


class Yes:
    async def approve(self, request: ApprovalRequest, ctx: RunContext) -> Decision:
        return Decision(True)


async def no_wait(seconds: float) -> None:
    """Instead of a retry's delay; still a turn of the loop, so that a stop request can come in."""
    await asyncio.sleep(0)


class Rig:
    """Makes agents on `workspace`; `close()` frees what they hold."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.sandbox = LocalSandbox(workspace)
        self.pools: list[LLMPool] = []
        self.agents: list[ToolCallAgent] = []

    def toolbox(self, *more: AnyTool, max_result_chars: int = 30_000) -> Toolbox:
        return Toolbox(
            Bash(self.sandbox),
            PythonExecute(self.sandbox),
            StrReplaceEditor(self.workspace),
            AskHuman(),
            Planning(),
            Terminate(),
            *more,
            approver=Yes(),
            workspace=self.workspace,
            max_result_chars=max_result_chars,
        )

    def scripted_llm(self, script: Iterable[Turn] | Script, **facts: Any) -> tuple[LLM, ScriptedAdapter]:
        adapter = ScriptedAdapter(script)
        settings = LLMSettings(name="default", model="scripted", api_type="test")
        pool = LLMPool({"default": settings}, adapters={"default": adapter}, sleep=no_wait)
        self.pools.append(pool)
        llm = pool.get()
        llm.facts = replace(llm.facts, **facts)
        return llm, adapter

    def served_llm(self, server: FaultServer, *, sleep: Any = no_wait, **settings: Any) -> LLM:
        values = {"model": "test-model", "base_url": server.url, "api_key": SecretStr("sk-test"), **settings}
        pool = LLMPool({"default": LLMSettings(**values)}, sleep=sleep)
        self.pools.append(pool)
        return pool.get()

    def agent(self, llm: LLM, *more: AnyTool, toolbox: Toolbox | None = None, **options: Any) -> ToolCallAgent:
        agent = ToolCallAgent("tester", llm=llm, toolbox=toolbox or self.toolbox(*more), system="You test.", **options)
        self.agents.append(agent)
        return agent

    def scripted(
        self, script: Iterable[Turn] | Script, *more: AnyTool, **options: Any
    ) -> tuple[ToolCallAgent, ScriptedAdapter]:
        llm, adapter = self.scripted_llm(script)
        return self.agent(llm, *more, **options), adapter

    async def close(self) -> None:
        for agent in self.agents:
            await agent.close()
        for pool in self.pools:
            await pool.close()
        await self.sandbox.close()


class NoteArgs(Args):
    text: str = ""


class Note(Tool[NoteArgs]):
    """A read that takes `seconds` and answers with what it was given; remembers how many ran at once."""

    name = "note"
    description = "Give the text back."
    Arguments = NoteArgs
    effect = "read"

    def __init__(self, seconds: float = 0.0, **by_text: float) -> None:
        self.seconds = seconds
        self.by_text = by_text
        self.log: list[str] = []
        self.running = 0
        self.most = 0

    async def run(self, args: NoteArgs, ctx: RunContext) -> ToolOutput:
        self.running += 1
        self.most = max(self.most, self.running)
        self.log.append(f"+{args.text}")
        try:
            await asyncio.sleep(self.by_text.get(args.text, self.seconds))
        finally:
            self.running -= 1
        self.log.append(f"-{args.text}")
        return ToolOutput(args.text)


class Mark(Note):
    """The same with an effect, so that it runs alone."""

    name = "mark"
    effect = "once"


def results(agent: ToolCallAgent) -> list[str]:
    """The text of every tool result in memory, in order."""
    return [result.text for message in agent.memory.messages for result in message.tool_results]


def types(events: Iterable[EventRecord]) -> list[str]:
    return [record.event.type for record in events]


def notices(events: Iterable[EventRecord], code: str) -> list[str]:
    return [record.event.message for record in events if getattr(record.event, "code", None) == code]


def assert_valid(messages: tuple[Message, ...]) -> None:
    assert history.problems(messages) == []
