"""What a caller asks, made a request: texts, hints and pictures. What comes back is `reading.py`'s matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.schema.message import ImageBlock, Message, PluginSource, user_message
from app.schema.request import ModelRequest


def as_messages(messages: Sequence[Message] | str) -> tuple[Message, ...]:
    return (user_message(messages),) if isinstance(messages, str) else tuple(messages)


def with_hint(request: ModelRequest, hint: str) -> ModelRequest:
    """The request with a hint at its tail, for this one time."""
    if not hint:
        return request
    return replace(request, messages=(*request.messages, user_message(hint, PluginSource("hint"))))


def with_images(messages: tuple[Message, ...], images: tuple[ImageBlock, ...]) -> tuple[Message, ...]:
    """The messages with images in the last one that a user wrote, or in a new one when there is none."""
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.role == "user" and not message.tool_results:
            shown = message.replace(content=(*message.content, *images))
            return (*messages[:position], shown, *messages[position + 1 :])
    return (*messages, user_message(images))
