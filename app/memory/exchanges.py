"""A view in pieces that may be left out as a whole, and the cheap ways to make it smaller. Pure but for kept files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.memory.memory import is_summary
from app.sandbox.scratch import cut_before, cut_middle, keep_text, where_kept
from app.schema.message import Block, ImageBlock, Message, TextBlock, ToolResultBlock, UserSource

PLAN_TOOL = "planning"
"""The tool whose newest result is the plan that an agent works by."""

LONG_RESULT = 8_192
SHORTEST_RESULT = 600
"""A longer tool result is shortened to half of this in front and an eighth of it at the end; less in a small window."""

REPEATED = 1_000
"""A result of so many characters that comes again later is shown once."""

Exchange = tuple[Message, ...]
"""A message with the results of its calls."""


def exchanges(view: Iterable[Message]) -> list[Exchange]:
    """A valid view in pieces that hold both a call and its results, or neither."""
    pieces: list[list[Message]] = []
    waiting: set[str] = set()
    for message in view:
        if waiting or message.tool_results:
            pieces[-1].append(message)
        else:
            pieces.append([message])
        waiting.difference_update(result.call_id for result in message.tool_results)
        waiting.update(call.id for call in message.tool_calls)
    return [tuple(piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a view is cut: the pieces from `tail` on stay, so do the `pinned`; what is between may be summed up."""

    pieces: tuple[Exchange, ...]
    tail: int
    pinned: frozenset[int]

    @property
    def tail_message(self) -> int:
        """The place of the first message of the tail in the view."""
        return sum(map(len, self.pieces[: self.tail]))

    @property
    def pinned_ids(self) -> frozenset[str]:
        """Messages that stay as they are although they stand before the tail."""
        return frozenset(message.id for place in self.pinned for message in self.pieces[place])

    @property
    def middle(self) -> tuple[Exchange, ...]:
        """What may be summed up; empty when a summary of it would only sum up a summary."""
        found = tuple(piece for place, piece in enumerate(self.pieces[: self.tail]) if place not in self.pinned)
        return () if all(is_summary(piece[0]) for piece in found) else found

    def with_summary(self, summary: Message) -> list[Message]:
        """The view with one message where the middle began."""
        out: list[Message] = []
        told = False
        for place, piece in enumerate(self.pieces):
            if place >= self.tail or place in self.pinned:
                out.extend(piece)
            elif not told:
                told = True
                out.append(summary)
        return out


def cut(view: Iterable[Message], sizes: Sequence[int], keep: int) -> Cut:
    """Keep the last pieces whose `sizes` (one a message) come to at most `keep`, at least one; and what is pinned:
    the first task, the newest task and the newest plan.
    """
    pieces = tuple(exchanges(view))
    of_piece: list[int] = []
    at = 0
    for piece in pieces:
        of_piece.append(sum(sizes[at : at + len(piece)]))
        at += len(piece)
    tail = max(0, len(pieces) - 1)
    total = of_piece[tail] if pieces else 0
    while tail > 0 and total + of_piece[tail - 1] <= keep:
        tail -= 1
        total += of_piece[tail]
    return Cut(pieces, tail, _pinned(pieces))


def _pinned(pieces: Sequence[Exchange]) -> frozenset[int]:
    tasks = [place for place, piece in enumerate(pieces) if isinstance(piece[0].source, UserSource)]
    plans = [place for place, piece in enumerate(pieces) if _shows_plan(piece)]
    first = [0] if pieces and pieces[0][0].role == "user" and not is_summary(pieces[0][0]) else []
    return frozenset((*first, *tasks[:1], *tasks[-1:], *plans[-1:]))


def _shows_plan(piece: Exchange) -> bool:
    asked = {call.id for call in piece[0].tool_calls if call.name == PLAN_TOOL}
    return any(result.call_id in asked and not result.is_error for message in piece for result in message.tool_results)


def lighter(
    view: Sequence[Message],
    *,
    images_until: int,
    results_until: int,
    limit: int,
    workspace: Path | None,
    untouched: Collection[str] = (),
) -> list[Message]:
    """The view without pictures before `images_until`, with short and unrepeated results before `results_until`.

    A picture becomes a note; a result of more than `limit` characters keeps its head and tail and the name of the file
    with all of it. Messages whose ids are `untouched` stay.
    """
    repeated = _repeated(view)
    out: list[Message] = []
    for place, message in enumerate(view):
        content = message.content
        if message.id in untouched:
            out.append(message)
            continue
        if place < images_until:
            content = tuple(map(_without_image, content))
        if place < results_until:
            content = tuple(_short(block, limit, repeated, workspace) for block in content)
        # Blocks that nothing was done to are the same objects, so that an unchanged message keeps its bytes.
        same = all(new is old for new, old in zip(content, message.content, strict=True))
        out.append(message if same else message.replace(content=content))
    return out


def _without_image(block: Block) -> Block:
    match block:
        case ImageBlock():
            size = f", {block.width}x{block.height} pixels" if block.width else ""
            return TextBlock(f"[image left out to save room: {block.media_type}{size}; it was seen before]")
        case ToolResultBlock() if any(isinstance(inner, ImageBlock) for inner in block.content):
            return ToolResultBlock(block.call_id, tuple(map(_without_image, block.content)), block.is_error)
        case _:
            return block


def _short(block: Block, limit: int, repeated: dict[str, str], workspace: Path | None) -> Block:
    if not isinstance(block, ToolResultBlock):
        return block
    again = repeated.get(block.call_id)
    if again is not None:
        note = f"[the same text as the later result of the call {again}]"
        others = tuple(inner for inner in block.content if not isinstance(inner, TextBlock))
        return ToolResultBlock(block.call_id, (TextBlock(note), *others), block.is_error)
    if all(not isinstance(inner, TextBlock) or len(inner.text) <= limit for inner in block.content):
        return block
    content = tuple(
        TextBlock(shortened(inner.text, limit, block.call_id, workspace)) if isinstance(inner, TextBlock) else inner
        for inner in block.content
    )
    return ToolResultBlock(block.call_id, content, block.is_error)


def shortened(text: str, limit: int, name: str, workspace: Path | None) -> str:
    """A text of more than `limit` characters with its head and tail, and where all of it is; others as they are."""
    if len(text) <= limit:
        return text
    omitted, where = cut_before(text) or (0, where_kept(workspace, keep_text(workspace, name, text)))
    return cut_middle(text, limit // 2, limit // 8, where, omitted=omitted)


def _repeated(view: Iterable[Message]) -> dict[str, str]:
    """Calls whose long result comes again, word for word, with the newest call that has it."""
    newest: dict[str, str] = {}
    same: dict[str, list[str]] = {}
    for message in view:
        for result in message.tool_results:
            text = result.text
            if len(text) >= REPEATED:
                newest[text] = result.call_id
                same.setdefault(text, []).append(result.call_id)
    return {call: newest[text] for text, calls in same.items() for call in calls if call != newest[text]}
