"""`Journal`: what a memory is written down in while it grows. The words of the promise; the deed is `sessions.py`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from app.schema.message import JSON, Message, ToolCallBlock


class Journal(Protocol):
    """Keeps what a memory is told, in order.

    `record` and `note` return at once and promise nothing yet; `started` and `settled` return when everything recorded
    so far, and for `started` the call itself, is on disk. They raise `SessionError` when it could not be written: then
    nothing may happen that was not recorded first.
    """

    def record(self, message: Message) -> None:
        """A message was added to the log."""
        ...

    def note(self, kind: str, data: Mapping[str, JSON]) -> None:
        """Something else happened, such as a change of its view. `Memory.replay` is given it on resume."""
        ...

    async def started(self, call: ToolCallBlock, effect: str) -> None:
        """A call is about to have its effect (`read`, `idempotent` or `once`)."""
        ...

    async def settled(self) -> None:
        """Wait until everything recorded so far is on disk."""
        ...
