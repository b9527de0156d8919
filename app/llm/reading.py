"""What is made of a finished reply: calls and thinking that stand in its text, and whether it says anything at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.llm import text_formats, textcalls
from app.schema.errors import LLMError
from app.schema.message import Block, Message, ReasoningBlock, TextBlock
from app.schema.request import ModelReply, ToolSpec


def with_content(reply: ModelReply, content: Iterable[Block]) -> ModelReply:
    return replace(reply, message=reply.message.replace(content=content))


def thinking_of(reply: ModelReply) -> tuple[Block, ...]:
    return tuple(block for block in reply.message.content if isinstance(block, ReasoningBlock))


def says_something(message: Message) -> bool:
    return bool(message.text.strip() or message.tool_calls or message.reasoning.strip())


def needs_text(reply: ModelReply, *, limit: int | None = None) -> ModelReply:
    """The reply itself. Raises `OUTPUT_LIMIT`, which names the configured `limit`, or `EMPTY_RESPONSE` without text."""
    if reply.text.strip():
        return reply
    model = reply.finish.model or "the model"
    if reply.finish.reason == "max-tokens":
        of = f" of {limit} tokens" if limit else ""
        raise LLMError(
            f"{model} reached the output limit{of} before its answer", "OUTPUT_LIMIT", hint="raise max_tokens"
        )
    raise LLMError(f"{model} thought, but gave no answer", "EMPTY_RESPONSE")


def read_calls(reply: ModelReply, tools: Iterable[ToolSpec], *, asked_in_text: bool = False) -> ModelReply:
    """The reply with its text read as calls, when it is nothing but calls; else the reply itself."""
    if reply.message.tool_calls or not reply.text or reply.finish.reason == "max-tokens":
        return reply
    calls = text_formats.calls_in_text(reply.text, tools, asked_in_text=asked_in_text)
    return with_content(reply, (*thinking_of(reply), *calls)) if calls else reply


def read_schema(reply: ModelReply, tools: Iterable[ToolSpec]) -> ModelReply:
    """The reply to a request whose answer had to follow `textcalls.schema_for`."""
    outcome = textcalls.read_schema_reply(reply.text, tools)
    if isinstance(outcome, str):
        outcome = (TextBlock(outcome),) if outcome else ()
    return with_content(reply, (*thinking_of(reply), *outcome))


def split_thinking(message: Message) -> Message:
    """Thinking that a model wrote into its text, moved into reasoning blocks."""
    if not any(f"{word}>" in message.text for word in ("think", "thinking", "thought")):
        return message
    content: list[Block] = []
    for block in message.content:
        if not isinstance(block, TextBlock):
            content.append(block)
            continue
        answer, thinking = textcalls.strip_thinking(block.text)
        if thinking.strip():
            content.append(ReasoningBlock(thinking))
        if answer.strip():
            content.append(TextBlock(answer))
    return message.replace(content=content)
