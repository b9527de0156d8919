"""The scripted provider (`test`): answers from a script in our own vocabulary, offline, and complains about misuse.

A script is a sequence of turns, or a function from request to turn. It is too short when it is asked once more than
it has turns, and too long when `assert_finished()` finds turns left.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo
from app.schema.errors import ConfigError, InvariantError, LLMError
from app.schema.message import JSON, ReasoningBlock, TextBlock, ToolCallBlock
from app.schema.request import ModelRequest
from app.schema.stream import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from app.schema.usage import Usage


@dataclass(frozen=True, slots=True)
class Turn:
    """One scripted reply. `calls` are (name, arguments) with arguments as an object or as raw text."""

    text: str = ""
    calls: tuple[tuple[str, JSON], ...] = ()
    reasoning: str = ""
    finish: FinishReason | None = None
    usage: Usage | None = None
    error: LLMError | None = None
    delay_s: float = 0.0


def say(text: str, **more: Any) -> Turn:
    return Turn(text=text, **more)


def call(name: str, arguments: JSON = None, **more: Any) -> Turn:
    """A turn with one tool call."""
    return Turn(calls=((name, {} if arguments is None else arguments),), **more)


def fail(code: str, message: str = "scripted failure", **more: Any) -> Turn:
    return Turn(error=LLMError(message, code, **more))


Script = Callable[[ModelRequest], Turn]


class ScriptedAdapter(LLMAdapter):
    """Plays a script. `requests` holds every request in order; text streams in pieces of `piece` characters."""

    def __init__(self, script: Iterable[Turn] | Script, *, piece: int = 12) -> None:
        self.requests: list[ModelRequest] = []
        self._script = script if callable(script) else None
        self._turns = [] if callable(script) else list(script)
        self._piece = piece

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, "scripted", "test", local=True)

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        return ModelInfo(route, model, model, context_window=1_000_000)

    def assert_finished(self) -> None:
        """Raise `InvariantError` when the script has turns that nobody asked for."""
        if self._turns:
            raise InvariantError(
                f"{len(self._turns)} scripted turns were never asked for; the next is {self._turns[0]!r}"
            )

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        turn = self._next(request)
        if turn.delay_s:
            await asyncio.sleep(turn.delay_s)
        if turn.error is not None:
            raise turn.error
        for chunk in self._chunks(turn):
            yield chunk

    def _next(self, request: ModelRequest) -> Turn:
        if self._script is not None:
            return self._script(request)
        if not self._turns:
            raise LLMError(
                f"the script has no turn for request number {len(self.requests)}",
                "INVALID_REQUEST",
                hint="lengthen the script",
            )
        return self._turns.pop(0)

    def _chunks(self, turn: Turn) -> Iterable[Chunk]:
        index = 0
        for kind, text in (("reasoning", turn.reasoning), ("text", turn.text)):
            if not text:
                continue
            yield BlockStart(index, kind)
            for start in range(0, len(text), self._piece):
                piece = text[start : start + self._piece]
                yield ReasoningDelta(index, piece) if kind == "reasoning" else TextDelta(index, piece)
            yield BlockEnd(index, ReasoningBlock(text) if kind == "reasoning" else TextBlock(text))
            index += 1
        for name, arguments in turn.calls:
            raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            block = ToolCallBlock(f"call-{uuid.uuid4().hex[:8]}", name, raw)
            yield BlockStart(index, "tool-call")
            yield ToolCallDelta(index, block.id, name, raw)
            yield BlockEnd(index, block)
            index += 1
        yield UsageReport(turn.usage or Usage(input_tokens=10, output_tokens=5))
        yield Finish(turn.finish or ("tool-calls" if turn.calls else "stop"), model="scripted")


def load_script(path: str) -> list[Turn]:
    """Turns from a JSON file: a list of `{"text", "reasoning", "calls": [{"name", "arguments"}], "finish", "delay_s"}`.

    Raises `ConfigError` for a file that cannot be read as such.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        return [_turn(entry) for entry in cast("list[Mapping[str, Any]]", data)]
    except OSError as error:
        raise ConfigError(f"the script {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the script {path} is not a list of turns: {error}", hint="see docs/scripted.md") from error


def _turn(entry: Mapping[str, Any]) -> Turn:
    if unknown := set(entry) - {"text", "reasoning", "calls", "finish", "delay_s", "error"}:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r}")
    error = entry.get("error")
    return Turn(
        text=entry.get("text", ""),
        reasoning=entry.get("reasoning", ""),
        calls=tuple((item["name"], item.get("arguments", {})) for item in entry.get("calls", ())),
        finish=entry.get("finish"),
        delay_s=float(entry.get("delay_s", 0)),
        error=LLMError(error.get("message", "scripted failure"), error["code"]) if error else None,
    )


def demonstration(request: ModelRequest) -> Turn:
    """The built-in script: plans, uses three tools, writes a file into the workspace, and ends; works in a flow too."""
    if request.purpose == "plan":
        return call(
            "planning",
            {
                "command": "create",
                "title": "Write and check a greeting",
                "steps": ["Write greeting.txt", "Check greeting.txt"],
            },
        )
    if request.purpose == "summary":
        return say("Both steps are done: greeting.txt is written and checked.")
    offered = {tool.name for tool in request.tools}
    turns = [
        Turn(
            text="I will plan, write a file and look at it.",
            calls=(
                (
                    "planning",
                    {"command": "create", "title": "Demonstration", "steps": ["Write greeting.txt", "Check it"]},
                ),
            ),
        ),
        call(
            "str_replace_editor",
            {"command": "create", "path": "greeting.txt", "file_text": "Hello from Dragoman.\n"},
        ),
        call("bash", {"command": "cat greeting.txt"}),
        call("planning", {"command": "mark_step", "step": "1", "status": "completed"}),
        call("terminate", {"status": "success", "answer": "greeting.txt is written; it says: Hello from Dragoman."}),
    ]
    usable = [turn for turn in turns if not turn.calls or turn.calls[0][0] in offered]
    done = sum(message.role == "assistant" for message in request.messages)
    return usable[done] if done < len(usable) else say("greeting.txt is written; it says: Hello from Dragoman.")
