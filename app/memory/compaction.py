"""`Compactor`: makes a memory's view smaller before it overflows a model's window, and after it did; never the log.

When, how far and in which order is decided here; what is left out is `exchanges.py`'s, the words for it `summary.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.config.settings import MemorySettings
from app.llm import history
from app.llm.client import LLM
from app.llm.windows import stated_window
from app.memory.exchanges import LONG_RESULT, SHORTEST_RESULT, Cut, cut, lighter
from app.memory.memory import MESSAGE_BYTES, Memory
from app.memory.summary import SHORTEST_SUMMARY, SUMMARY_TOKENS, Asked, Summariser, extract
from app.prompts import Prompts
from app.schema.errors import LLMError
from app.schema.event import Compacted
from app.schema.message import Message
from app.schema.request import ModelReply, ToolSpec
from app.schema.run import RunContext

RELIEF = 0.75
"""A compaction before an overflow wants to come below this part of the threshold; else the next comes too soon."""

REST_REQUESTS = 5
"""So many requests pass after a compaction that did not come so far, before another is tried."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction came to, in tokens of the whole request."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the provider counted for the last request and its reply, and where the memory was then."""

    tokens: int
    length: int
    reply: str
    view_bytes: int


class Compactor:
    """Keeps the view of one agent's memory inside the window of its model.

    Before a request: when its estimate, hint and tools included, reaches `compact_at` of a known window. After a
    request that overflowed: once, and only a view that became smaller is tried again. In this order, as far as needed:
    pictures before the tail become notes, long or repeated tool results before it are shortened, the exchanges between
    the pinned messages and the tail become one summary. The system prompt, the first and the newest task, the newest
    plan and the tail stay word for word. `summariser` names another model for the summary; without one that answers,
    a record is put together by itself.
    """

    def __init__(
        self,
        llm: LLM,
        settings: MemorySettings | None = None,
        *,
        summariser: Callable[[], LLM] | None = None,
        workspace: Path | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        self.llm = llm
        self.settings = settings or MemorySettings()
        self._summariser = summariser
        self._workspace = workspace
        self._prompts = prompts or Prompts()
        self._seen: _Seen | None = None
        self._tools: tuple[tuple[ToolSpec, ...], int] = ((), 0)
        self._requests = 0
        self._rest_until = 0

    async def before_request(self, memory: Memory, asked: Asked, ctx: RunContext) -> Compaction | None:
        """Make room when the next request comes near the window. Never raises for a summary that failed."""
        self._requests += 1
        limit = self._limit()
        if not self.settings.compact or limit is None or memory.open_calls:
            return None
        if self._at_most(memory, asked) < limit or self._requests <= self._rest_until:
            return None
        before = self.estimate(memory, asked)
        if before < limit:
            return None
        goal = int(limit * RELIEF)
        keep = int((self.llm.facts.context_window or before) * self.settings.keep_tail)
        done = await self._compact(memory, asked, ctx, before, keep=keep, goal=goal)
        # A threshold of nothing asks for a compaction each time; it can never be met.
        if done is None or (limit and done.after > goal):
            self._rest_until = self._requests + REST_REQUESTS
        return done

    async def after_overflow(self, memory: Memory, asked: Asked, error: LLMError, ctx: RunContext) -> Compaction | None:
        """Make room after a refusal for length; None when nothing became smaller, so that trying again is no use.

        A window that the refusal names is believed from now on, if it is smaller than the known one.
        """
        window = stated_window(error.message)
        if window is not None and window < (self.llm.facts.context_window or window + 1):
            self.llm.facts = replace(self.llm.facts, context_window=window)
        if not self.settings.compact or memory.open_calls:
            return None
        before = max(self.estimate(memory, asked), self.llm.facts.context_window or 0)
        limit = self._limit()
        goal = before // 2 if limit is None else int(limit * RELIEF)
        return await self._compact(memory, asked, ctx, before, keep=0, goal=goal, overflowed=True)

    async def now(self, memory: Memory, asked: Asked, ctx: RunContext) -> Compaction | None:
        """Compact because a person says so; None when there is nothing that could be left out."""
        if memory.open_calls:
            return None
        before = self.estimate(memory, asked)
        # Somebody who asks wants it shorter than it is, whatever the window could hold.
        return await self._compact(memory, asked, ctx, before, keep=int(before * self.settings.keep_tail), goal=0)

    def saw(self, memory: Memory, reply: ModelReply) -> None:
        """Note what the provider counted; told before the reply is added to the memory."""
        usage = reply.usage
        if not usage.estimated:
            self._seen = _Seen(usage.total, len(memory), reply.message.id, memory.view_bytes)

    def estimate(self, memory: Memory, asked: Asked) -> int:
        """Tokens of the next request: our count, or what the provider counted last and what is new, if that is more."""
        counter = self.llm.counter
        hint = counter.text(asked.hint)
        counted = self._measure(memory.view(), asked) + hint
        seen = self._anchor(memory)
        if seen is None:
            return counted
        new = (counter.message(message) for message in memory.messages[seen.length :] if message.id != seen.reply)
        return max(counted, seen.tokens + sum(new) + hint)

    def _measure(self, view: Iterable[Message], asked: Asked) -> int:
        return self.llm.counter.request(tuple(view), system=asked.system, tools=asked.tools)

    def _anchor(self, memory: Memory) -> _Seen | None:
        """What was seen last, unless the view was made smaller since."""
        seen = self._seen
        return seen if seen is not None and memory.view_bytes >= seen.view_bytes else None

    def _at_most(self, memory: Memory, asked: Asked) -> int:
        """An upper bound of the next request that counts no token, so that short conversations load no tokenizer."""
        if asked.tools is not self._tools[0]:
            size = sum(len(json.dumps([tool.name, tool.description, tool.parameters])) for tool in asked.tools)
            self._tools = (asked.tools, size)
        hint = len(asked.hint.encode())
        frames = MESSAGE_BYTES * (len(asked.tools) + 3)
        bound = memory.view_bytes + len(asked.system.encode()) + hint + self._tools[1] + frames
        seen = self._anchor(memory)
        return bound if seen is None else max(bound, seen.tokens + memory.view_bytes - seen.view_bytes + hint)

    @property
    def _room(self) -> int | None:
        """The input tokens that the window has beside the reply; None while the window is unknown."""
        window = self.llm.facts.context_window
        return None if window is None else window - min(self.llm.settings.max_tokens or 0, window * 3 // 4)

    def _limit(self) -> int | None:
        """The input tokens from which on room is made."""
        window, room = self.llm.facts.context_window, self._room
        return None if window is None or room is None else min(int(window * self.settings.compact_at), room)

    async def _compact(
        self,
        memory: Memory,
        asked: Asked,
        ctx: RunContext,
        before: int,
        *,
        keep: int,
        goal: int,
        overflowed: bool = False,
    ) -> Compaction | None:
        """Stage by stage down to `goal`; the view is changed at the very end, so that a stop leaves it as it was."""
        view = history.prepare(memory.view())
        whole = self._measure(view, asked)
        # What the provider counts beyond our count is taken to shrink with it.
        scale = max(1.0, before / whole)

        def tokens(messages: Iterable[Message]) -> int:
            return round(self._measure(messages, asked) * scale)

        window = self.llm.facts.context_window
        limit = LONG_RESULT if window is None else min(LONG_RESULT, window // 2)
        here = cut(view, [self.llm.counter.message(message) for message in view], int(keep / scale))
        results_until, untouched = here.tail_message, here.pinned_ids
        if overflowed:
            results_until, untouched = len(view), frozenset[str]()
        best = self._lighter(view, here.tail_message, results_until, limit, untouched)
        if tokens(best) > goal and here.middle:
            prefix = view[: here.tail_message]
            answer = 2 * min(SUMMARY_TOKENS, window // 8) if window else 0
            fits = not overflowed and (window is None or tokens(prefix) + answer < window)
            best = await self._summed_up(_recut(here, best), asked, ctx, prefix=prefix if fits else ())
        # What is left is to stay word for word, but not at the price of a request that cannot be sent.
        most = goal if overflowed else self._room
        while most is not None and tokens(best) > most and limit > SHORTEST_RESULT:
            limit = max(SHORTEST_RESULT, limit // 4)
            best = self._lighter(best, 0, len(best), limit)
        after = tokens(best)
        if after >= tokens(view):
            ctx.notice("COMPACTION", "the conversation is long, and nothing in it can be left out", once=True)
            return None
        memory.compact(best)
        self._seen = None
        ctx.emit(Compacted(before, after))
        return Compaction(before, after)

    def _lighter(
        self,
        view: Sequence[Message],
        images_until: int,
        results_until: int,
        limit: int,
        untouched: Collection[str] = (),
    ) -> list[Message]:
        return lighter(
            view,
            images_until=images_until,
            results_until=results_until,
            limit=max(SHORTEST_RESULT, limit),
            workspace=self._workspace,
            untouched=untouched,
        )

    async def _summed_up(self, here: Cut, asked: Asked, ctx: RunContext, *, prefix: Sequence[Message]) -> list[Message]:
        """The view with its middle as a summary; as it is when no summary is smaller than what it stands for."""
        counter, window = self.llm.counter, self.llm.facts.context_window
        middle = here.middle
        size = sum(counter.message(message) for piece in middle for message in piece)
        room = max(SHORTEST_SUMMARY, min(SUMMARY_TOKENS, size // 4, window // 8 if window else SUMMARY_TOKENS))
        llm = self.llm if self._summariser is None else self._summariser()
        writer = Summariser(llm, prompts=self._prompts, ctx=ctx, use_model=self.settings.summarise)
        written = await writer.by_model(middle, room, prefix=prefix if llm is self.llm else (), asked=asked)
        for text in (written, extract(middle, room)):
            summary = writer.message(text)
            if text and counter.message(summary) < size:
                return here.with_summary(summary)
        ctx.notice("COMPACTION", "a summary of the older messages would be longer than they are; they stay", once=True)
        return [message for piece in here.pieces for message in piece]


def _recut(here: Cut, light: Sequence[Message]) -> Cut:
    """The same cut through the same messages, made lighter."""
    pieces: list[tuple[Message, ...]] = []
    at = 0
    for piece in here.pieces:
        pieces.append(tuple(light[at : at + len(piece)]))
        at += len(piece)
    return Cut(tuple(pieces), here.tail, here.pinned)
