"""Whatever happens to a memory, its view is a valid request for every dialect, before and after it was stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.config.settings import LLMSettings, MemorySettings
from app.llm import history
from app.llm.adapters.http import HTTPAdapter
from app.llm.adapters.scripted import ScriptedAdapter, Turn, fail, say
from app.llm.client import LLM
from app.llm.pool import LLMPool
from app.llm.transport import Timeouts, Transport
from app.memory.compaction import Compactor
from app.memory.memory import Memory
from app.memory.summary import Asked
from app.schema.errors import LLMError
from app.schema.message import (
    JSON,
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.request import CallConfig, ModelRequest
from app.schema.run import RunContext
from tests.agents.rig import Note, no_wait
from tests.fault_server import FaultServer
from tests.fault_server.messages import sealed
from tests.llm.dialects import DIALECTS, DialectRow
from tests.memory.test_memory import Notes

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
TOOLS = (Note().spec,)
OVERFLOW = LLMError("This model's maximum context length is 900 tokens.", "CONTEXT_WINDOW_EXCEEDED")
SERVER = cast(FaultServer, SimpleNamespace(url="http://127.0.0.1:9/v1", root="http://127.0.0.1:9"))

TEXT = st.sampled_from(["", "   ", "go on", "再来一次 \U0001f600", "long words " * 150, "<|endoftext|>", "</summary>"])
STEP = st.one_of(
    st.tuples(st.just("task"), TEXT),
    st.tuples(st.just("answer"), TEXT),
    st.tuples(st.just("calls"), st.integers(1, 3), TEXT),
    st.tuples(st.just("cancelled"), st.integers(1, 3)),
    st.tuples(st.just("picture"), st.booleans()),
    st.tuples(st.just("thinking"), TEXT),
    st.tuples(st.just("twice")),
    st.tuples(st.just("orphan")),
    st.tuples(st.just("plan")),
    st.tuples(st.just("compact"), st.sampled_from(["now", "before", "overflow"]), st.sampled_from([0, 1, 2, 3])),
    st.tuples(st.just("crash")),
    st.tuples(st.just("vendor")),
)

SUMMARIES: tuple[Turn, ...] = (say("a short summary"), say(""), say("x " * 2_000), fail("AUTH", "no key"))


@dataclass
class Story:
    """A memory that things happen to."""

    llm: LLM
    scripted: list[Turn]
    notes: Notes = field(default_factory=Notes)
    memory: Memory = field(default_factory=Memory)
    number: int = 0
    vendor: str = "main"

    def __post_init__(self) -> None:
        self.memory.journal = self.notes
        self.memory.add(user_message("the task"))

    def happen(self, step: tuple[Any, ...]) -> None:
        self.number += 1
        match step:
            case ("task", text):
                self.memory.add(user_message(text))
            case ("answer", text):
                self.say([TextBlock(text)] if text else [])
            case ("thinking", text):
                self.say([ReasoningBlock(text, sealed(text)), TextBlock("so")])
            case ("calls", count, text):
                self.calls(count, [TextBlock(text)])
            case ("plan",):
                self.calls(1, [TextBlock("the plan")], "planning")
            case ("picture", by_tool):
                picture = ImageBlock(PNG, "image/png", 1, 1)
                if by_tool:
                    self.calls(1, [TextBlock("shot"), picture])
                else:
                    self.memory.add(user_message([TextBlock("look"), picture]))
            case ("cancelled", count):
                # The first result came; the loop answers for the others.
                self.calls(count, [TextBlock("interrupted")])
            case ("twice",):
                self.memory.add(self.memory.messages[-1])
            case ("orphan",):
                self.memory.add(tool_result_message("nobody", "x"))
            case ("compact", how, which):
                asyncio.run(self.compact(how, SUMMARIES[which]))
            case ("crash",):
                self.crash()
            case ("vendor",):
                self.vendor = "other" if self.vendor == "main" else "main"
            case _:
                raise AssertionError(step)

    def say(self, content: list[Any]) -> Message:
        return self.memory.add(assistant_message(content, provider=self.vendor, model=f"model of {self.vendor}"))

    def calls(self, count: int, result: list[Any], name: str = "note") -> None:
        blocks = [ToolCallBlock(f"call_{n}", name, '{"text": "x"}') for n in range(count)]
        for call in self.say([TextBlock("I look"), *blocks]).tool_calls:
            self.memory.add(tool_result_message(call.id, result))

    async def compact(self, how: str, turn: Turn) -> None:
        self.scripted[:] = [turn]
        self.llm.facts = replace(self.llm.facts, context_window=None if how == "overflow" else 1_000)
        compactor = Compactor(self.llm, MemorySettings(compact_at=0.3))
        before = len(self.memory.view())
        match how:
            case "now":
                await compactor.now(self.memory, Asked(), RunContext())
            case "before":
                await compactor.before_request(self.memory, Asked(), RunContext())
            case _:
                await compactor.after_overflow(self.memory, Asked(), OVERFLOW, RunContext())
        assert len(self.memory.view()) <= before

    def crash(self) -> None:
        """Everything from its JSON again."""
        before, rows = self.memory, list(self.notes.rows)
        self.memory = self.notes.replayed()
        assert self.memory.view() == before.view()
        assert self.memory.messages == before.messages
        self.memory.journal = self.notes
        assert self.notes.rows == rows


@contextmanager
def a_story() -> Iterator[Story]:
    scripted: list[Turn] = []
    adapter = ScriptedAdapter(lambda request: scripted[0])
    model = LLMSettings(name="default", model="scripted", api_type="test")
    pool = LLMPool({"default": model}, adapters={"default": adapter}, sleep=no_wait)
    yield Story(pool.get(), scripted)


def encoder(row: DialectRow) -> HTTPAdapter:
    return cast(HTTPAdapter, row.adapter(SERVER, Transport(), Timeouts()))


NATIVE = [row for row in DIALECTS if row.name != "polling"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=25))
def test_any_sequence_gives_a_valid_request_for_every_dialect(steps: list[tuple[Any, ...]]) -> None:
    with a_story() as story:
        for step in steps:
            story.happen(step)
            sent = history.prepare(story.memory.view())
            assert history.is_valid(sent)
            assert history.problems(sent) == []
        story.crash()
        view = history.prepare(story.memory.view())
        assert view[0].text == "the task"
        log = story.memory.messages
        assert log[0].text == "the task"
        for row in NATIVE:
            assert refusals(row, view, story.vendor) == [], row.name


def refusals(row: DialectRow, view: tuple[Message, ...], model: str) -> list[str]:
    """What the strict server of a dialect finds wrong with this conversation."""
    request = ModelRequest(CallConfig("main", f"model of {model}"), view, "You test.", TOOLS)
    body: JSON = json.loads(encoder(row).encode(request))
    return row.wire().check(body)


@pytest.mark.parametrize("row", NATIVE, ids=[row.name for row in NATIVE])
def test_the_checks_can_fail(row: DialectRow) -> None:
    orphan = (user_message("task"), tool_result_message("nobody", "x"))
    assert refusals(row, orphan, "main") != [] or row.name == "ollama"


async def test_b132_empty_turns_do_not_break_a_compacted_conversation() -> None:
    with a_story() as story:
        for number in range(12):
            story.happen(("task", ""))
            story.happen(("answer", ""))
            story.happen(("calls", 1, f"words {number} " * 40))
        await story.compact("now", SUMMARIES[0])
        view = history.prepare(story.memory.view())
        assert history.problems(view) == []
        for row in NATIVE:
            assert refusals(row, view, "main") == [], row.name


def test_b123_a_limit_of_two_messages_never_leaves_a_result_alone() -> None:
    memory = Memory(4)
    for number in range(4):
        memory.add(user_message(f"task {number}"))
        reply = memory.add(
            assistant_message([ToolCallBlock(f"c{number}", "note", "{}")], provider="main", model="model of main")
        )
        memory.add(tool_result_message(reply.tool_calls[0].id, "ok"))
        memory.add(assistant_message("done", provider="main", model="model of main"))
        for row in NATIVE:
            assert refusals(row, memory.view(), "main") == [], row.name
