"""Pictures as a model can take them: made to fit for one that sees, described by another model for one that is blind.

Nothing is dropped in silence: each change is a notice, and what cannot be described becomes a note in its place
(`history.py`). A rewritten message is remembered, so that the same history gives the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.llm.image_tokens import ImageRule
from app.llm.images import MOST_REQUEST_BYTES, fitted
from app.schema.errors import LLMError
from app.schema.event import EventRecord, ReasoningStreamed, TextStreamed
from app.schema.message import Block, ImageBlock, Message, TextBlock, ToolResultBlock
from app.schema.run import RunContext

if TYPE_CHECKING:
    from app.llm.client import LLM

HELPER = "vision"
"""The configuration `[llm.vision]` describes pictures for a model that cannot see them."""
QUESTION = (
    "Describe this picture for somebody who cannot see it and has to work with it: what it shows, every text and"
    " number in it word for word, and where things are. Answer with the description alone."
)
TOO_MANY = TextBlock("[image left out: the pictures of this conversation are larger than one request may be]")

Changed = Callable[[ImageBlock], Awaitable[Block]]


@dataclass(slots=True)
class Eyes:
    """How one model configuration deals with pictures. `helper` gives the client of `[llm.vision]`, if there is one."""

    model: str
    rule: ImageRule
    helper: Callable[[], LLM | None] = lambda: None

    async def prepare(self, messages: tuple[Message, ...], ctx: RunContext, *, sees: bool) -> tuple[Message, ...]:
        """The messages as this model can take them; themselves when there is nothing to change.

        Pictures that a blind model gets no description of stay as they are. Raises `LLMError`
        (`UNSUPPORTED_CONTENT`) for a picture that is too large and cannot be made smaller.
        """
        if not any(map(_shows, messages)):
            return messages
        if sees:
            shown = await self._each(messages, f"fitted:{self.rule.name}", self._fit)
            return _within(shown, MOST_REQUEST_BYTES, ctx)
        helper = self.helper()
        if helper is None:
            return messages

        async def describe(image: ImageBlock) -> Block:
            return await _described(helper, image, ctx)

        return await self._each(messages, f"described:{helper.settings.model}", describe)

    async def _fit(self, image: ImageBlock) -> Block:
        # Reading and writing a large picture takes a good part of a second.
        large = max(image.width, image.height) > self.rule.max_side or len(image.data) > self.rule.max_bytes
        return await asyncio.to_thread(fitted, image, self.rule) if large else image

    async def _each(self, messages: tuple[Message, ...], key: str, change: Changed) -> tuple[Message, ...]:
        changed: list[Message] = []
        for message in messages:
            if not _shows(message):
                changed.append(message)
                continue
            if key not in message.wire:
                content = await _blocks(message.content, change)
                message.wire[key] = message if content == message.content else message.replace(content=content)
            changed.append(message.wire[key])
        same = all(old is new for old, new in zip(messages, changed, strict=True))
        return messages if same else tuple(changed)


def _shows(message: Message) -> bool:
    """Whether there is a picture in a message, remembered with it."""
    known: bool | None = message.wire.get("shows")
    if known is None:
        known = message.wire["shows"] = any(True for _ in _images(message.content))
    return known


def _images(content: Iterable[Block]) -> Iterable[ImageBlock]:
    for block in content:
        if isinstance(block, ImageBlock):
            yield block
        elif isinstance(block, ToolResultBlock):
            yield from _images(block.content)


async def _blocks(content: tuple[Block, ...], change: Changed) -> tuple[Block, ...]:
    out: list[Block] = []
    for block in content:
        match block:
            case ImageBlock():
                out.append(await change(block))
            case ToolResultBlock():
                out.append(ToolResultBlock(block.call_id, await _blocks(block.content, change), block.is_error))
            case _:
                out.append(block)
    return tuple(out)


async def _described(helper: LLM, image: ImageBlock, ctx: RunContext) -> Block:
    """What the helper says of a picture, else the picture itself; both are told."""
    size = f"{image.width} x {image.height} pixels" if image.width else image.media_type
    model = helper.settings.model
    try:
        words = await helper.ask_with_images(QUESTION, (image,), ctx=_unseen(ctx))
    except LLMError as error:
        ctx.notice("IMAGE_DESCRIBED", f"[llm.vision] could not describe a picture ({size}): {error.message}")
        return image
    ctx.notice("IMAGE_DESCRIBED", f"{model} described a picture ({size}) for a model that cannot see")
    return TextBlock(f"[image, {size}, as {model} describes it]\n{words.strip()}\n[end of the image]")


def _unseen(ctx: RunContext) -> RunContext:
    """A context inside this one whose answer is not shown as if it were the main model's."""
    inner = ctx.child()
    outer = inner.sink

    def sink(record: EventRecord) -> None:
        if not isinstance(record.event, TextStreamed | ReasoningStreamed):
            outer(record)

    inner.sink = sink
    return inner


def _within(messages: tuple[Message, ...], most: int, ctx: RunContext) -> tuple[Message, ...]:
    """The messages with their oldest pictures replaced by a note until the rest is small enough for one request.

    A pure function of the history, in steps of half of the limit, so that the beginning of a request seldom changes.
    """
    sizes = [sum(len(image.data) for image in _images(message.content)) for message in messages]
    total = sum(sizes)
    if total <= most:
        return messages
    dropped, position = 0, 0
    while total - dropped > most // 2 and position < len(messages) - 1:
        dropped += sizes[position]
        position += 1
    ctx.notice("IMAGES_REPLACED", "older pictures are left out: together they are too large for a request", once=True)
    return tuple(
        _without(message) if index < position and sizes[index] else message for index, message in enumerate(messages)
    )


def _without(message: Message) -> Message:
    known: Message | None = message.wire.get("too_many")
    if known is None:
        known = message.wire["too_many"] = message.replace(content=_noted(message.content))
    return known


def _noted(content: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(
        TOO_MANY
        if isinstance(block, ImageBlock)
        else ToolResultBlock(block.call_id, _noted(block.content), block.is_error)
        if isinstance(block, ToolResultBlock)
        else block
        for block in content
    )
