"""What a run is given: the task from words or standard input, and pictures from files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.frontends.redact import repaired
from app.schema.errors import UsageError

if TYPE_CHECKING:
    from app.schema.message import ImageBlock

MOST_BYTES = 20 * 1024 * 1024


def task_of(options: argparse.Namespace) -> str | None:
    """The task in words; None asks for a conversation. Raises `UsageError` for a blank one."""
    given: str | None = options.task if options.task is not None else options.prompt
    at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if given is None and at_terminal:
        if options.json or options.image:
            raise UsageError("there is no prompt", hint='give one: python main.py "what to do"')
        return None
    if given is None or (given == "-" and options.prompt is None):
        given = _standard_input()
    task = repaired(given).strip()
    if not task:
        raise UsageError(
            "the prompt is empty", hint='say what to do, for example: python main.py "list the files here"'
        )
    return task


def _standard_input() -> str:
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    except OSError as error:
        raise UsageError(f"standard input cannot be read: {error.strerror or error}") from None


def read_image(path: str) -> ImageBlock:
    """The picture in a file; its type is read from its bytes. Raises `UsageError` for what is no whole picture."""
    from app.llm.images import image_block, whole_picture
    from app.schema.errors import LLMError

    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"the image {path} cannot be read: {error.strerror or error}", hint="check the path") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"the image {path} has more than 20 MB", hint="make it smaller")
    try:
        return image_block(whole_picture(data))
    except LLMError as error:
        raise UsageError(f"{path} is no picture that can be sent: {error.message}", hint=error.hint) from None
