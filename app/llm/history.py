"""Makes a history valid for any provider, and proves it. Pure functions over messages; nothing is edited in place.

Valid means: every call is answered exactly once, directly after the message that made it; no orphan results; no empty
messages; system text only in front; images only where the model takes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from app.schema.message import (
    Block,
    ImageBlock,
    Message,
    OpaqueBlock,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
)

INTERRUPTED = "The call was interrupted before it gave a result; its outcome is unknown."


def problems(messages: Iterable[Message], *, images: bool = True) -> list[str]:
    """What is wrong with a history, one sentence each; an empty list means that it may be sent."""
    found: list[str] = []
    pending: dict[str, None] = {}
    for position, message in enumerate(messages):
        results = message.tool_results
        for result in results:
            if result.call_id in pending:
                del pending[result.call_id]
            else:
                found.append(f"message {position}: a result for {result.call_id!r}, which is no open call")
        if not results and pending:
            found.append(f"message {position}: {', '.join(pending)} not answered before it")
            pending.clear()
        for call in message.tool_calls:
            if call.id in pending:
                found.append(f"message {position}: the call id {call.id!r} twice")
            pending[call.id] = None
        if message.role == "system":
            found.append(f"message {position}: a system message inside the conversation")
        if not _has_substance(message):
            found.append(f"message {position}: empty")
        if not images and _has_image(message.content):
            found.append(f"message {position}: an image for a model without vision")
    if pending:
        found.append(f"the end: {', '.join(pending)} not answered")
    return found


def is_valid(messages: tuple[Message, ...], *, images: bool = True) -> bool:
    """The same question as `problems`, answered fast: one pass, per-message facts remembered."""
    pending: tuple[str, ...] = ()
    for message in messages:
        shape = message.wire.get("shape")
        if shape is None:
            shape = message.wire["shape"] = _shape(message)
        plain, calls, result, image = shape
        if not plain or (image and not images):
            return False
        if result is not None:
            if result not in pending:
                return False
            pending = tuple(call for call in pending if call != result)
            continue
        if pending:
            return False
        pending = calls
    return not pending


Shape = tuple[bool, tuple[str, ...], str | None, bool]


def _shape(message: Message) -> Shape:
    """(sendable as it is, ids of its calls, the one call it answers, holds an image)."""
    calls = tuple(call.id for call in message.tool_calls)
    results = message.tool_results
    plain = (
        message.role != "system"
        and _has_substance(message)
        and len(results) <= 1
        and len(results) in (0, len(message.content))
        and len(set(calls)) == len(calls)
    )
    return plain, calls, results[0].call_id if results else None, _has_image(message.content)


def repair(messages: Iterable[Message], *, images: bool = True) -> tuple[Message, ...]:
    """The nearest valid history: loses no user text, invents nothing but "interrupted" results. Idempotent."""
    out: list[Message] = []
    pending: dict[str, None] = {}

    def answer_open_calls() -> None:
        out.extend(_interrupted(call_id) for call_id in pending)
        pending.clear()

    for message in _answers_first(tuple(messages)):
        current = message if images else _without_images(message)
        if current.role == "system":
            current = Message(current.id, "user", current.content, current.source, current.time)
        rest = tuple(block for block in current.content if not isinstance(block, ToolResultBlock))
        for result in current.tool_results:
            if result.call_id in pending:
                del pending[result.call_id]
                out.append(_only_result(current, result))
        if not rest or not _has_substance(current.replace(content=rest)):
            continue
        answer_open_calls()
        current = _unique_calls(current.replace(content=rest) if len(rest) != len(current.content) else current)
        out.append(current)
        pending.update(dict.fromkeys(call.id for call in current.tool_calls))
    answer_open_calls()
    return tuple(out)


def _answers_first(messages: tuple[Message, ...]) -> Iterator[Message]:
    """The messages with each result right behind its call: a notice that came between them waits."""
    answers: dict[str, list[int]] = {}
    for position, message in enumerate(messages):
        for result in message.tool_results:
            answers.setdefault(result.call_id, []).append(position)
    moved: set[int] = set()
    for position, message in enumerate(messages):
        if position in moved:
            continue
        yield message
        later: set[int] = set()
        for call in message.tool_calls:
            free = (at for at in answers.get(call.id, ()) if at > position and at not in moved | later)
            later.update(itertools.islice(free, 1))
        moved |= later
        yield from (messages[at] for at in sorted(later))


def prepare(messages: tuple[Message, ...], *, images: bool = True) -> tuple[Message, ...]:
    """The messages themselves when they are valid (the usual case), else their repair."""
    return messages if is_valid(messages, images=images) else repair(messages, images=images)


def holds_images(messages: Iterable[Message]) -> bool:
    return any(_has_image(message.content) for message in messages)


def _has_substance(message: Message) -> bool:
    for block in message.content:
        match block:
            case TextBlock():
                if block.text.strip():
                    return True
            case ReasoningBlock() | OpaqueBlock():
                continue
            case _:
                return True
    return False


def _has_image(content: Iterable[Block]) -> bool:
    for block in content:
        if isinstance(block, ImageBlock):
            return True
        if isinstance(block, ToolResultBlock) and _has_image(block.content):
            return True
    return False


def _only_result(message: Message, result: ToolResultBlock) -> Message:
    if message.content == (result,):
        return message
    return Message(f"{message.id}:{result.call_id}", "user", (result,), ToolSource(result.call_id), message.time)


def _interrupted(call_id: str) -> Message:
    content = (ToolResultBlock(call_id, (TextBlock(INTERRUPTED),), is_error=True),)
    return Message(f"interrupted:{call_id}", "user", content, PluginSource("history"))


def _unique_calls(message: Message) -> Message:
    seen: set[str] = set()
    kept: list[Block] = []
    for block in message.content:
        if isinstance(block, ToolCallBlock):
            if block.id in seen:
                continue
            seen.add(block.id)
        kept.append(block)
    return message if len(kept) == len(message.content) else message.replace(content=kept)


def _without_images(message: Message) -> Message:
    """The message with each image replaced by a note; remembered, so that the same message gives the same bytes."""
    if not _has_image(message.content):
        return message
    known = message.wire.get("without_images")
    if known is None:
        known = message.wire["without_images"] = message.replace(content=_replace_images(message.content))
    return known


def _replace_images(content: Iterable[Block]) -> list[Block]:
    out: list[Block] = []
    for block in content:
        match block:
            case ImageBlock():
                size = f", {block.width}x{block.height} pixels" if block.width else ""
                out.append(TextBlock(f"[image left out: {block.media_type}{size}; this model cannot see images]"))
            case ToolResultBlock():
                out.append(ToolResultBlock(block.call_id, tuple(_replace_images(block.content)), block.is_error))
            case _:
                out.append(block)
    return out
