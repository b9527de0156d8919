"""`Memory`: an agent's append-only log of messages and the view of it that a model sees."""

from __future__ import annotations

from collections.abc import Iterable

from app.schema.message import Message, ToolCallBlock


class Memory:
    """The log never loses a message; the view may leave old exchanges out, but never separates a call from its result.

    With `max_messages` the view keeps the first message (the task) and drops whole exchanges from the oldest on, down
    to half the limit at once, so that the front of the prompt changes rarely.
    """

    def __init__(self, max_messages: int | None = None) -> None:
        if max_messages is not None and max_messages < 4:
            raise ValueError("a view of fewer than four messages cannot hold an exchange")
        self._log: list[Message] = []
        self._view: list[Message] = []
        self._max = max_messages
        self._call_ids: set[str] = set()
        self._open: dict[str, ToolCallBlock] = {}

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything that was ever added, in order."""
        return tuple(self._log)

    def __len__(self) -> int:
        return len(self._log)

    @property
    def open_calls(self) -> tuple[ToolCallBlock, ...]:
        """Calls without a result yet, in order."""
        return tuple(self._open.values())

    def add(self, message: Message) -> Message:
        """Append one message; returns it as stored, which differs only where call ids were used before.

        Some servers number their calls from zero in every reply; pairing needs ids that are unique in the history.
        """
        if message.tool_calls:
            message = self._with_fresh_ids(message)
        for result in message.tool_results:
            self._open.pop(result.call_id, None)
        self._log.append(message)
        self._view.append(message)
        if self._max is not None and len(self._view) > self._max and not self._open:
            self._shorten()
        return message

    def add_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.add(message)

    def view(self) -> tuple[Message, ...]:
        """What the model sees now."""
        return tuple(self._view)

    def _with_fresh_ids(self, message: Message) -> Message:
        renamed = False
        content = list(message.content)
        for position, block in enumerate(content):
            if not isinstance(block, ToolCallBlock):
                continue
            call = block
            number = 2
            while call.id in self._call_ids:
                call = ToolCallBlock(f"{block.id}-{number}", block.name, block.arguments)
                number += 1
            renamed = renamed or call is not block
            content[position] = call
            self._call_ids.add(call.id)
            self._open[call.id] = call
        return message.replace(content=content) if renamed else message

    def _shorten(self) -> None:
        assert self._max is not None
        target = len(self._view) - max(2, self._max // 2)
        for start in range(target, len(self._view)):
            if not self._view[start].tool_results:
                self._view = [self._view[0], *self._view[start:]]
                return
