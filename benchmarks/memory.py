"""What remembering costs: a step at 20 to 400 steps, against building it all anew, and how stable the prefix is.

    python benchmarks/memory.py

Remembering a step is to add a call and its result, look at the limits, count the whole request and take the view: it
should cost what is new, however long the history is. Then the view is proved valid and encoded; joining bytes that are
there is all that touches old messages. The other subject builds the same request from plain JSON, as programs do that
keep lists. Each goal is printed with PASS or FAIL; the exit code is 1 when one failed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.agents.toolcall import ToolCallAgent  # noqa: E402
from app.config.settings import LLMSettings, MemorySettings  # noqa: E402
from app.llm import history  # noqa: E402
from app.llm.adapters.accounts import Quirks  # noqa: E402
from app.llm.adapters.chat_encode import ChatEncoder  # noqa: E402
from app.llm.adapters.corrections import Learned  # noqa: E402
from app.llm.adapters.scripted import ScriptedAdapter  # noqa: E402
from app.llm.client import LLM  # noqa: E402
from app.llm.pool import LLMPool  # noqa: E402
from app.llm.tokens import TokenCounter  # noqa: E402
from app.memory.compaction import Compactor  # noqa: E402
from app.memory.memory import Memory  # noqa: E402
from app.memory.summary import Asked  # noqa: E402
from app.schema.message import (  # noqa: E402
    Message,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    message_from_json,
    message_to_json,
    tool_result_message,
    user_message,
)
from app.schema.request import CallConfig, ModelRequest, ToolSpec  # noqa: E402
from app.schema.run import RunContext  # noqa: E402
from app.tools.base import Args, Tool, ToolOutput  # noqa: E402
from app.tools.toolbox import Toolbox  # noqa: E402
from tests.fault_server import FaultServer, prefix_violations, reply  # noqa: E402

SIZES = (20, 100, 400)
WINDOW = 200_000
STEPS = 50
NEW = 40
"""Steps that are measured at each size; the best of them counts, because other work can only add to it."""

FLAT = 1.6
SHARE = 0.05


class NoteArgs(Args):
    text: str = ""


class Note(Tool[NoteArgs]):
    """A tool that costs nothing."""

    name = "note"
    description = "Give the text back."
    Arguments = NoteArgs
    effect = "read"

    async def run(self, args: NoteArgs, ctx: RunContext) -> ToolOutput:
        return ToolOutput(args.text)


def exchange(number: int) -> list[Message]:
    call = ToolCallBlock(f"call-{number}", "note", json.dumps({"text": f"what number {number} is about"}))
    said = assistant_message([TextBlock(f"I look at part {number} now."), call], provider="main", model="m")
    text = " ".join(f"word{(number * 7919 + n) % 9973}" for n in range(60))
    return [said, tool_result_message(call.id, text)]


class Step:
    """What our agent does before a request."""

    def __init__(self, llm: LLM, tools: tuple[ToolSpec, ...]) -> None:
        self.memory = Memory()
        self.memory.add(user_message("The task: look at every part."))
        # The threshold is low so that every step counts tokens, and high enough that none compacts.
        self.compactor = Compactor(llm, MemorySettings(compact_at=0.5))
        self.asked = Asked("You work.", tools)
        self.encoder = ChatEncoder("main", Quirks())
        self.llm = llm

    async def remember(self, messages: Iterable[Message], ctx: RunContext) -> int:
        self.memory.add_all(messages)
        await self.compactor.before_request(self.memory, self.asked, ctx)
        return self.compactor.estimate(self.memory, self.asked) + len(self.memory.view())

    def build(self) -> int:
        return len(encode(self.encoder, history.prepare(self.memory.view()), self.asked))


def encode(encoder: ChatEncoder, view: tuple[Message, ...], asked: Asked) -> bytes:
    request = ModelRequest(CallConfig("main", "m"), view, asked.system, asked.tools)
    return encoder.body(request, Learned(), token_field="max_tokens", temperature=True)


def from_scratch(stored: list[str], asked: Asked) -> int:
    """The same request from plain JSON, with nothing remembered."""
    view = history.prepare(tuple(message_from_json(json.loads(line)) for line in stored))
    tools = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in asked.tools)
    TokenCounter("m").request(view, system=asked.system, tools=tools)
    return len(encode(ChatEncoder("main", Quirks()), view, Asked(asked.system, tools)))


async def costs(llm: LLM, size: int) -> tuple[float, float, float]:
    """Processor milliseconds of (remembering a step, building its request, both from scratch) after `size` steps."""
    step, ctx = Step(llm, Toolbox(Note()).specs), RunContext()
    for number in range(size):
        await step.remember(exchange(number), ctx)
        step.build()
    remembered: list[float] = []
    built: list[float] = []
    scratch: list[float] = []
    for number in range(size, size + NEW):
        new = exchange(number)
        gc.collect()
        began = time.process_time()
        await step.remember(new, ctx)
        then = time.process_time()
        length = step.build()
        remembered.append(then - began)
        built.append(time.process_time() - then)
        if number % 8 == 0:
            stored = [json.dumps(message_to_json(message)) for message in step.memory.messages]
            began = time.process_time()
            assert from_scratch(stored, step.asked) == length
            scratch.append(time.process_time() - began)
    return min(remembered) * 1e3, min(built) * 1e3, min(scratch) * 1e3


async def stability() -> tuple[int, int]:
    """(steps, those whose request keeps the bytes of the one before) against a server on loopback."""
    turns = [reply(tool_calls=[("note", {"text": f"{number} {'word ' * 60}"})]) for number in range(STEPS - 1)]
    async with FaultServer([*turns, reply("done")]) as server:
        pool = LLMPool({"default": LLMSettings(model="m", base_url=server.url, context_window=WINDOW)})
        agent = ToolCallAgent("agent", llm=pool.get(), toolbox=Toolbox(Note()), system="You work.", max_steps=STEPS)
        result = await agent.run("go")
        assert result.answer == "done", result
        broken = len(prefix_violations(server.chats))
        await agent.close()
        await pool.close()
    return STEPS, STEPS - broken


def goal(words: str, *, met: bool) -> bool:
    print(f"{'PASS' if met else 'FAIL'}  {words}")
    return met


async def main() -> int:
    model = LLMSettings(name="default", model="m", api_type="test", context_window=WINDOW)
    pool = LLMPool({"default": model}, adapters={"default": ScriptedAdapter([])})
    llm = pool.get()
    llm.counter.text("load the encoding before the clock starts")
    figures = {size: await costs(llm, size) for size in SIZES}
    print("steps  messages  remember ms  build ms  from scratch ms  ratio")
    for size, (remember, build, scratch) in figures.items():
        ratio = (remember + build) / scratch
        print(f"{size:5}  {2 * size + 1:8}  {remember:11.3f}  {build:8.3f}  {scratch:15.2f}  {ratio:5.3f}")
    flat = figures[SIZES[-1]][0] / figures[SIZES[0]][0]
    at_400 = await costs(llm, 200)
    share = (at_400[0] + at_400[1]) / at_400[2]
    steps, kept = await stability()
    met = [
        goal(
            f"remembering after {SIZES[-1]} steps costs {flat:.2f} x that after {SIZES[0]} (goal {FLAT})",
            met=flat <= FLAT,
        ),
        goal(f"view, count and request at 400 messages: {share:.3f} x from scratch (goal {SHARE})", met=share <= SHARE),
        goal(f"{kept} of {steps} requests keep the prefix byte for byte (goal all)", met=kept == steps),
    ]
    await pool.close()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
