"""The loops that are compared, behind one face: our agent, the bare SDK, and a floor that does only what it must.

Each imports what it needs inside its `open`, so that a process holds one of them and its start can be measured.
All send the same system text, task and tool, ask for streamed replies with usage (`sdk-json` does not stream), join
the pieces of each call, run the tool and answer with a result of 200 characters.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

SYSTEM = "You are a careful assistant. Use the tool until the work is done, then answer."
TASK = "Take notes until I say stop."
MODEL = "gpt-4o-mini"
DESCRIPTION = "Keep a note under a number."
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "description": DESCRIPTION,
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
OnText = Callable[[str], None]


def ignore(text: str) -> None:
    """The callback of a run whose text nobody watches."""


class Deeds:
    """The tool of all subjects, in three tempers; counts its calls."""

    def __init__(self) -> None:
        self.done = 0

    def result(self, n: int) -> str:
        self.done += 1
        return f"{n}:".ljust(200, "x")

    async def note(self, n: int) -> str:
        """Keep a note under a number."""
        return self.result(n)

    async def note_slowly(self, n: int) -> str:
        """Keep a note under a number."""
        await asyncio.sleep(0.1)
        return self.result(n)

    def note_blocking(self, n: int) -> str:
        """Keep a note under a number."""
        time.sleep(0.1)
        return self.result(n)


class Ours:
    """`ToolCallAgent` over the chat adapter, one pool for the process; no budget, nobody watches the events."""

    async def open(self, url: str) -> None:
        from app.config.settings import LLMSettings
        from app.llm.pool import LLMPool

        settings = LLMSettings(name="default", model=MODEL, api_type="openai", base_url=url, api_key="sk-none")  # type: ignore[arg-type]
        self._pool = LLMPool({"default": settings})
        self._tools: dict[Any, Any] = {}

    async def run(self, deed: Callable[..., Any], on_text: OnText = ignore) -> str:
        from app.agents.toolcall import ToolCallAgent
        from app.schema.event import EventRecord, TextStreamed
        from app.schema.run import RunContext, discard
        from app.tools.toolbox import Toolbox

        def sink(record: EventRecord) -> None:
            if isinstance(record.event, TextStreamed):
                on_text(record.event.text)

        toolbox = Toolbox(self._tool(deed))
        agent = ToolCallAgent("bench", llm=self._pool.get("default"), toolbox=toolbox, system=SYSTEM, max_steps=1000)
        result = await agent.run(TASK, RunContext(sink=discard if on_text is ignore else sink))
        if result.stop_reason != "answered":
            raise RuntimeError(f"{result.stop_reason}: {result.error}")
        return result.answer

    def _tool(self, deed: Callable[..., Any]) -> Any:
        """Declared once and shared by agents, as a decorated function of a module is."""
        from app.tools.base import tool

        if deed not in self._tools:
            self._tools[deed] = tool(deed, name="note", effect="read")
        return self._tools[deed]

    async def close(self) -> None:
        await self._pool.close()


class BareSDK:
    """The loop everybody writes: AsyncOpenAI, a list of messages, tools."""

    streams = True

    async def open(self, url: str) -> None:
        from openai import AsyncOpenAI

        self._client = AsyncOpenAI(base_url=url, api_key="sk-none")

    async def run(self, deed: Callable[..., Any], on_text: OnText = ignore) -> str:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
        while True:
            text, calls = await (self._streamed if self.streams else self._whole)(messages, on_text)
            if not calls:
                return text
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
            for call in calls:
                result = await deed(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    async def _streamed(self, messages: list[Any], on_text: OnText) -> tuple[str, list[Any]]:
        stream = await self._client.chat.completions.create(
            model=MODEL, messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )
        text: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.delta.content:
                    text.append(choice.delta.content)
                    on_text(choice.delta.content)
                for piece in choice.delta.tool_calls or ():
                    known = calls.get(piece.index)
                    if known is None:
                        function = {"name": piece.function.name, "arguments": piece.function.arguments or ""}
                        calls[piece.index] = {"id": piece.id, "type": "function", "function": function}
                    else:
                        known["function"]["arguments"] += piece.function.arguments or ""
        return "".join(text), list(calls.values())

    async def _whole(self, messages: list[Any], on_text: OnText) -> tuple[str, list[Any]]:
        reply = await self._client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
        message = reply.choices[0].message
        return message.content or "", [call.model_dump() for call in message.tool_calls or ()]

    async def close(self) -> None:
        await self._client.close()


class BareSDKWhole(BareSDK):
    streams = False


class Floor:
    """What cannot be saved: one aiohttp session, each message encoded once, a request joined of bytes."""

    async def open(self, url: str) -> None:
        import aiohttp

        self._url = f"{url}/chat/completions"
        self._headers = {"Authorization": "Bearer sk-none", "Content-Type": "application/json"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        options = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "tools": [TOOL]}
        self._head = _dumps(options)[:-1] + b',"messages":['

    async def run(self, deed: Callable[..., Any], on_text: OnText = ignore) -> str:
        messages = [_dumps({"role": "system", "content": SYSTEM}), _dumps({"role": "user", "content": TASK})]
        while True:
            text, calls = await self._ask(self._head + b",".join(messages) + b"]}", on_text)
            if not calls:
                return text
            messages.append(_dumps({"role": "assistant", "content": text, "tool_calls": calls}))
            for call in calls:
                result = await deed(**json.loads(call["function"]["arguments"]))
                messages.append(_dumps({"role": "tool", "tool_call_id": call["id"], "content": result}))

    async def _ask(self, body: bytes, on_text: OnText) -> tuple[str, list[Any]]:
        text: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        async with self._session.post(self._url, data=body, headers=self._headers) as response:
            response.raise_for_status()
            async for event in _events(response.content):
                for choice in event["choices"]:
                    delta = choice["delta"]
                    if piece := delta.get("content"):
                        text.append(piece)
                        on_text(piece)
                    for call in delta.get("tool_calls", ()):
                        known = calls.setdefault(call["index"], call)
                        if known is not call:
                            known["function"]["arguments"] += call["function"]["arguments"]
        for call in calls.values():
            del call["index"]
        return "".join(text), list(calls.values())

    async def close(self) -> None:
        await self._session.close()


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def _events(content: Any) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    async for data in content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event != b"data: [DONE]":
                yield json.loads(event[6:])


SUBJECTS: dict[str, type[Any]] = {"ours": Ours, "sdk": BareSDK, "sdk-json": BareSDKWhole, "floor": Floor}
