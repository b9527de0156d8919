"""`Memory`: an agent's append-only log of messages and the view of it that a model sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.memory.journal import Journal
from app.schema.message import JSON, Message, ToolCallBlock, UserSource


class Memory:
    """The log never loses a message; the view may leave old exchanges out, but never separates a call from its result.

    With `max_messages` the view keeps its first message and the newest task, and drops whole exchanges from the oldest
    on, down to half the limit at once, so that the front of the prompt changes rarely. One exchange that is longer
    than the limit is kept whole. With a `journal` every message is written down; set it after what it already holds
    was added.
    """

    def __init__(self, max_messages: int | None = None) -> None:
        if max_messages is not None and max_messages < 4:
            raise ValueError("a view of fewer than four messages cannot hold an exchange")
        self.journal: Journal | None = None
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
        if self.journal is not None:
            self.journal.record(message)
        for result in message.tool_results:
            self._open.pop(result.call_id, None)
        self._log.append(message)
        self._view.append(message)
        if self._max is not None and len(self._view) > self._max and not self._open:
            self._shorten(self._max)
        return message

    def add_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.add(message)

    async def starting(self, call: ToolCallBlock, effect: str) -> None:
        """Write down that a call is about to have its effect. Raises `SessionError` when that cannot be."""
        if self.journal is not None:
            await self.journal.started(call, effect)

    async def settled(self) -> None:
        """Wait until everything added so far is on disk, if it is kept at all. Raises `SessionError`."""
        if self.journal is not None:
            await self.journal.settled()

    def replay(self, kind: str, data: Mapping[str, JSON]) -> None:
        """Do again what an earlier process noted in its journal at this place; an unknown kind changes nothing."""

    def view(self) -> tuple[Message, ...]:
        """What the model sees now."""
        return tuple(self._view)

    def _with_fresh_ids(self, message: Message) -> Message:
        content = [
            self._with_fresh_id(block) if isinstance(block, ToolCallBlock) else block for block in message.content
        ]
        return message if tuple(content) == message.content else message.replace(content=content)

    def _with_fresh_id(self, call: ToolCallBlock) -> ToolCallBlock:
        fresh, number = call.id, 2
        while not fresh or fresh in self._call_ids:
            fresh, number = f"{call.id or 'call'}-{number}", number + 1
        self._call_ids.add(fresh)
        self._open[fresh] = kept = call if fresh == call.id else ToolCallBlock(fresh, call.name, call.arguments)
        return kept

    def _shorten(self, limit: int) -> None:
        """Cut at the start of an exchange: the first that leaves at most half the limit, else the last there is."""
        view = self._view
        starts = [position for position in range(1, len(view)) if not view[position].tool_results]
        if not starts:
            return
        cut = next((start for start in starts if len(view) - start <= limit // 2), starts[-1])
        tasks = [message for message in view[:cut] if isinstance(message.source, UserSource)]
        newest_task_left = any(isinstance(message.source, UserSource) for message in view[cut:])
        pinned = [] if newest_task_left or not tasks or tasks[-1] is view[0] else [tasks[-1]]
        self._view = [view[0], *pinned, *view[cut:]]
