"""A summary of old exchanges: asked of a model, or put together from the record by itself. The view is not touched."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from app.llm.client import LLM
from app.memory.exchanges import Exchange
from app.memory.memory import SUMMARY, is_summary
from app.prompts import Prompts
from app.schema.errors import BudgetExceeded, LLMError
from app.schema.event import EventRecord, ModelReplied, ReasoningStreamed, TextStreamed
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
    UserSource,
    user_message,
)
from app.schema.request import ToolSpec
from app.schema.run import RunContext

SUMMARY_TOKENS = 4_000
SHORTEST_SUMMARY = 150
CHARS_PER_TOKEN = 3
"""On the safe side for English; other scripts give shorter summaries."""

ASSUMED_WINDOW = 8_192
"""The window of a summariser that nobody knows."""

ITEM_CHARS = 2_000
FEWEST_ITEM_CHARS = 100
MOST_CHUNKS = 4
"""A record that needs more requests than this is told more briefly."""

USER_CHARS, SAID_CHARS, LINE_CHARS = 500, 200, 120
"""How much of a message the summary without a model keeps."""

BY_USER = "The user said"
FILES = "Files named: "
_PATH = re.compile(r'"(?:path|file|filename|file_path)"\s*:\s*"([^"\\,\n]{1,120})"')

QUIET = (TextStreamed, ReasoningStreamed, ModelReplied)
"""Events of the summariser that nobody should take for the agent's own words."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What goes with the view in every request of an agent."""

    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    hint: str = ""


class Summariser:
    """Makes the text that stands for old exchanges."""

    def __init__(self, llm: LLM, *, prompts: Prompts, ctx: RunContext, use_model: bool = True) -> None:
        self.llm = llm
        self._prompts = prompts
        self._ctx = ctx
        self._use_model = use_model and not llm.facts.small

    async def by_model(
        self, middle: Sequence[Exchange], tokens: int, *, prefix: Sequence[Message] = (), asked: Asked = Asked()
    ) -> str:
        """What a model writes, in about `tokens`; empty when none can.

        With a `prefix` the agent's own model is asked behind its own request, which its provider has in the cache.
        """
        if not self._use_model:
            return ""
        if prefix:
            question = user_message(self._question(tokens), PluginSource(SUMMARY, "notice"))
            text = await self._ask([*prefix, question], asked)
            if text or not self._use_model:
                return text
        return await self._of_record(middle, tokens)

    async def _of_record(self, middle: Sequence[Exchange], tokens: int) -> str:
        """A summary of the record as text, in several requests when one would not fit."""
        window = self.llm.facts.context_window or ASSUMED_WINDOW
        room = max(200, window // 2 - tokens)
        system = Asked(self._prompts.render("memory/summary_system"))
        dropped, chunks = self._chunks(middle, room)
        earlier = extract(dropped, tokens)
        for chunk in chunks:
            question = self._question(tokens, record=_harmless(chunk, "record"), earlier=_harmless(earlier, "earlier"))
            earlier = await self._ask([user_message(question, PluginSource(SUMMARY))], system)
            if not earlier:
                return ""
        return earlier

    def message(self, text: str) -> Message:
        """What a model is shown instead of what `text` sums up: marked as a record, not as words to obey."""
        shown = self._prompts.render("memory/summary", text=_harmless(text.strip(), "summary"))
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return user_message(shown, PluginSource(SUMMARY, "summary", first))

    def _question(self, tokens: int, record: str = "", earlier: str = "") -> str:
        words = max(100, tokens * 7 // 10)
        return self._prompts.render("memory/summarise", words=words, record=record, earlier=earlier)

    async def _ask(self, messages: Sequence[Message], asked: Asked) -> str:
        """The text of the reply; empty when there is none, with the reason told."""
        self.llm.tell_where(self._ctx)
        ctx = _quiet(self._ctx)
        try:
            reply = await self.llm.ask_tool(
                messages, system=asked.system, tools=asked.tools, ctx=ctx, purpose="compaction"
            )
        except (LLMError, BudgetExceeded) as error:
            self._use_model = False
            self._tell(error.message)
            return ""
        text = reply.text.strip()
        # A call is no summary, and neither is one that was cut.
        if reply.finish.reason == "max-tokens" or reply.message.tool_calls or not text:
            self._tell("it was cut" if reply.finish.reason == "max-tokens" else "it gave no text")
            return ""
        return text

    def _tell(self, why: str) -> None:
        self._ctx.notice("COMPACTION", f"{self.llm.settings.model} did not sum up the older messages: {why}")

    def _chunks(self, middle: Sequence[Exchange], room: int) -> tuple[Sequence[Exchange], list[str]]:
        """(oldest exchanges that found no place, the record in pieces of at most `room` tokens).

        Its items are cut shorter until few pieces are enough; then the oldest are left to the short record.
        """
        chars, start = ITEM_CHARS, 0
        while True:
            chunks = self._packed([_item(message, chars) for piece in middle[start:] for message in piece], room)
            if len(chunks) <= MOST_CHUNKS:
                return middle[:start], chunks
            if chars > FEWEST_ITEM_CHARS:
                chars //= 2
            else:
                start += max(1, (len(middle) - start) // 4)

    def _packed(self, items: Iterable[str], room: int) -> list[str]:
        chunks: list[list[str]] = [[]]
        used = 0
        for item in items:
            size = self.llm.counter.text(item)
            if size > room:
                item, size = _clip(item, room), room
            if used + size > room and chunks[-1]:
                chunks.append([])
                used = 0
            chunks[-1].append(item)
            used += size
        return ["\n".join(chunk) for chunk in chunks]


def extract(middle: Iterable[Exchange], tokens: int) -> str:
    """A summary without a model: what was asked, said and done, a line each. Comes to about `tokens`.

    The newest lines are kept, the files that were named, and what the user said, for up to a third of the room each;
    the rest is told as numbers.
    """
    messages = [message for piece in middle for message in piece]
    files = _files(messages, tokens * CHARS_PER_TOKEN // 3)
    lines = [line for message in messages for line in _lines(message) if not line.startswith(FILES)]
    room = tokens * CHARS_PER_TOKEN - len(files)
    kept: set[int] = set()
    by_user = [place for place, line in enumerate(lines) if line.startswith(BY_USER)]
    for places, most in ((by_user, room // 3), (range(len(lines)), room)):
        used = sum(len(lines[place]) + 1 for place in kept)
        for place in reversed(places):
            if place in kept:
                continue
            used += len(lines[place]) + 1
            if used > most:
                break
            kept.add(place)
    dropped = [line for place, line in enumerate(lines) if place not in kept]
    head = [f"({len(dropped)} earlier lines left out{_tools_in(dropped)})"] if dropped else []
    return "\n".join(filter(None, [files, *head, *(lines[place] for place in sorted(kept))]))


def _files(messages: Iterable[Message], chars: int) -> str:
    """A line with the paths that calls named, the newest that fit; those of an earlier summary included."""
    found: dict[str, None] = {}
    for message in messages:
        told = [line.removeprefix(FILES).split(", ") for line in _lines(message) if line.startswith(FILES)]
        for path in (*itertools.chain(*told), *_PATH.findall("".join(call.arguments for call in message.tool_calls))):
            found.pop(path, None)
            found[path] = None
    newest = list(found)
    while newest and len(FILES) + sum(len(path) + 2 for path in newest) > chars:
        del newest[0]
    return FILES + ", ".join(newest) if newest else ""


def _lines(message: Message) -> list[str]:
    if is_summary(message):
        return _summary_text(message).splitlines()
    out: list[str] = []
    for block in message.content:
        match block:
            case TextBlock() if block.text.strip():
                user = isinstance(message.source, UserSource)
                who = BY_USER if user else "The assistant said" if message.role == "assistant" else "The program said"
                out.append(f"{who}: {_clip(_one_line(block.text), USER_CHARS if user else SAID_CHARS)}")
            case ToolCallBlock():
                out.append(f"Call: {block.name} {_clip(_one_line(block.arguments), LINE_CHARS)}")
            case ToolResultBlock():
                out.append(f"{'Failed' if block.is_error else 'Result'}: {_clip(_one_line(block.text), LINE_CHARS)}")
            case _:
                pass
    return out


def _tools_in(lines: Iterable[str]) -> str:
    names = Counter(line.split(" ", 2)[1] for line in lines if line.startswith("Call: "))
    return "".join(f", {name} x{times}" for name, times in names.most_common(8))


def _item(message: Message, chars: int) -> str:
    """One message as a record has it."""
    if is_summary(message):
        return f"[earlier summary] {_summary_text(message)}"
    who = "user" if isinstance(message.source, UserSource) else message.role
    return "\n".join(filter(None, (_block_item(who, block, chars) for block in message.content)))


def _block_item(who: str, block: Block, chars: int) -> str:
    match block:
        case TextBlock():
            return f"[{who}] {_clip(block.text, chars)}" if block.text.strip() else ""
        case ToolCallBlock():
            return f"[call {block.name}] {_clip(block.arguments, chars)}"
        case ToolResultBlock():
            return f"[{'error' if block.is_error else 'result'}] {_clip(block.text, chars)}"
        case ImageBlock():
            return f"[{who}] (a picture, {block.media_type})"
        case ReasoningBlock() | OpaqueBlock():
            return ""
        case _:
            assert_never(block)


def _summary_text(message: Message) -> str:
    """What a summary message says, without its frame."""
    _, _, inner = message.text.partition("<summary>\n")
    return inner.rpartition("\n</summary>")[0] or message.text


def _clip(text: str, chars: int) -> str:
    """The text, or its head and tail when it is longer."""
    if len(text) <= chars:
        return text
    tail = chars // 4
    return f"{text[: chars - tail]} … {text[len(text) - tail :]}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _harmless(text: str, tag: str) -> str:
    """The text without the tag that would end the frame around it."""
    return text.replace(f"</{tag}", f"<\u200b/{tag}")


def _quiet(ctx: RunContext) -> RunContext:
    """A context for a question that is nobody's step: notices and retries are told, its words are not."""

    def pass_on(record: EventRecord) -> None:
        if not isinstance(record.event, QUIET):
            ctx.emit(record.event)

    quiet = ctx.child()
    quiet.sink, quiet.seq, quiet.ledger = pass_on, itertools.count(1), ctx.ledger
    return quiet
