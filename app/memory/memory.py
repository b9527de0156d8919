"""`Memory`: an agent's append-only log of messages and the view of it that a model sees.

What a view is changed to is decided in `compaction.py`; writing down is the journal's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from app.memory.journal import Journal
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    OpaqueBlock,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserSource,
    message_from_json,
    message_to_json,
)

COMPACTED = "compacted"
"""The kind under which a journal notes that the view was changed: `{"view": [id or message, …]}`."""

SUMMARY = "compaction"
"""The plugin of a message that stands for others which the view left out."""

MESSAGE_BYTES = 16
"""More than the tokens that any chat format puts around a message."""

IMAGE_BYTES = 8_192
"""No vendor takes more tokens for a picture of unknown size; more bytes of data count as they are."""


class Memory:
    """The log never loses a message; the view may leave old exchanges out, but never separates a call from its result.

    With `max_messages` the view keeps its first message, the newest task and a summary, and drops whole exchanges from
    the oldest on, down to half the limit at once, so that the front of the prompt changes rarely. One exchange that is
    longer than the limit is kept whole. With a `journal` every message is written down; set it after what it already
    holds was added.
    """

    def __init__(self, max_messages: int | None = None) -> None:
        if max_messages is not None and max_messages < 4:
            raise ValueError("a view of fewer than four messages cannot hold an exchange")
        self.journal: Journal | None = None
        self.duplicates = 0
        """How often a message was pushed that the log has already."""
        self._log: dict[str, Message] = {}
        self._view: list[Message] = []
        self._view_bytes = 0
        self._max = max_messages
        self._call_ids: set[str] = set()
        self._open: dict[str, ToolCallBlock] = {}

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything that was ever added, in order."""
        return tuple(self._log.values())

    def __len__(self) -> int:
        return len(self._log)

    @property
    def open_calls(self) -> tuple[ToolCallBlock, ...]:
        """Calls without a result yet, in order."""
        return tuple(self._open.values())

    @property
    def view_bytes(self) -> int:
        """The size of the view; no tokenizer makes more tokens of it, because each stands for at least a byte."""
        return self._view_bytes

    def add(self, message: Message) -> Message:
        """Append one message; returns it as stored, which differs only where call ids were used before.

        Some servers number their calls from zero in every reply; pairing needs ids that are unique in the history.
        A message that the log has already is not added again. A result that answers no open call stays out of the view.
        """
        if (known := self._log.get(message.id)) is not None:
            self.duplicates += 1
            return known
        if message.tool_calls:
            message = self._with_fresh_ids(message)
        if self.journal is not None:
            self.journal.record(message)
        results = message.tool_results
        answers = [self._open.pop(result.call_id, None) for result in results]
        self._log[message.id] = message
        if results and not any(answers) and len(results) == len(message.content):
            return message
        self._view.append(message)
        self._view_bytes += _bytes_of(message)
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

    def view(self) -> tuple[Message, ...]:
        """What the model sees now."""
        return tuple(self._view)

    def compact(self, view: Sequence[Message]) -> None:
        """Show this from now on instead of the view so far, and note it. The log stays as it is.

        A message with the id of another is a rewriting of it. Raises `ValueError`, and changes nothing, for a view
        that separates a call from its result, and while a call is open.
        """
        if self._open:
            raise ValueError("the view is not changed while a call is open")
        _check_pairs(view)
        if self.journal is not None:
            self.journal.note(COMPACTED, self._change(view))
        self._set_view(view)

    def replay(self, kind: str, data: Mapping[str, JSON]) -> None:
        """Do again what an earlier process noted in its journal at this place; an unknown kind changes nothing.

        Raises `KeyError` or `ValueError` for a damaged note, and changes nothing then.
        """
        if kind != COMPACTED:
            return
        shown = {message.id: message for message in self._view}
        items = cast("list[JSON]", data["view"])
        view = [
            (shown.get(item) or self._log[item]) if isinstance(item, str) else message_from_json(item) for item in items
        ]
        _check_pairs(view)
        self._set_view(view)

    def _change(self, view: Sequence[Message]) -> dict[str, JSON]:
        """A view as JSON: a message that is shown already, or stands in the log so, by its id alone."""
        shown = {message.id: message for message in self._view}
        known = [message == (shown.get(message.id) or self._log.get(message.id)) for message in view]
        pairs = zip(view, known, strict=True)
        return {"view": [message.id if is_known else message_to_json(message) for message, is_known in pairs]}

    def _set_view(self, view: Iterable[Message]) -> None:
        self._view = list(view)
        self._view_bytes = sum(map(_bytes_of, self._view))

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
        summaries = [message for message in view[1:cut] if is_summary(message)]
        tasks = [message for message in view[:cut] if isinstance(message.source, UserSource)]
        newest_task_left = any(isinstance(message.source, UserSource) for message in view[cut:])
        pinned = [] if newest_task_left or not tasks or tasks[-1] is view[0] else [tasks[-1]]
        self._set_view([view[0], *summaries[-1:], *pinned, *view[cut:]])


def is_summary(message: Message) -> bool:
    return isinstance(message.source, PluginSource) and message.source.plugin == SUMMARY


def _check_pairs(view: Iterable[Message]) -> None:
    """`ValueError` unless every call is answered once, and every result stands behind its call."""
    waiting: set[str] = set()
    for message in view:
        for result in message.tool_results:
            if result.call_id not in waiting:
                raise ValueError(f"a result without its call: {result.call_id}")
            waiting.discard(result.call_id)
        waiting.update(call.id for call in message.tool_calls)
    if waiting:
        raise ValueError(f"calls without their results: {', '.join(sorted(waiting))}")


def _bytes_of(message: Message) -> int:
    known = message.wire.get("bytes")
    if known is None:
        known = message.wire["bytes"] = MESSAGE_BYTES + sum(map(_block_bytes, message.content))
    return known


def _block_bytes(block: Block) -> int:
    match block:
        case TextBlock() | ReasoningBlock():
            return _utf8(block.text)
        case ImageBlock():
            return max(len(block.data), IMAGE_BYTES)
        case ToolCallBlock():
            return _utf8(block.id) + _utf8(block.name) + _utf8(block.arguments)
        case ToolResultBlock():
            return _utf8(block.call_id) + sum(map(_block_bytes, block.content))
        case OpaqueBlock():
            return _utf8(block.raw)


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
