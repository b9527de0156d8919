"""The seven chunk kinds of a model stream, the one assembler that joins them, and the grammar they obey.

Grammar of a finished stream: blocks open, take deltas of their own kind and close; at most one usage report;
exactly one finish, last. A failed stream may leave blocks open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never, cast

from app.schema.errors import LLMFailure, StreamGrammarError
from app.schema.message import (
    JSON,
    Block,
    ImageBlock,
    Message,
    ModelSource,
    OpaqueBlock,
    PluginSource,
    ReasoningBlock,
    Source,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    create_message,
    freeze_json,
)
from app.schema.usage import Usage

BlockKind = str
"""`text`, `reasoning`, `tool-call`, or the kind of a block this version does not know."""

FinishReason = Literal["stop", "tool-calls", "max-tokens", "aborted", "error"]


@dataclass(frozen=True, slots=True)
class BlockStart:
    index: int
    kind: BlockKind


@dataclass(frozen=True, slots=True)
class TextDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call. `id` is repeated on every piece, `name` may be None until known."""

    index: int
    id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Closes a block and carries it whole; the carried block wins over the deltas."""

    index: int
    block: Block


@dataclass(frozen=True, slots=True)
class UsageReport:
    usage: Usage


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a reply. `failure` is set for `error` and `aborted`; `model` is what the server says it ran.

    `marked` is false when the server closed properly but never named a reason (many local servers).
    """

    reason: FinishReason
    failure: LLMFailure | None = None
    replay_state: JSON = None
    model: str | None = None
    marked: bool = True


Chunk = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageReport | Finish


def is_token_delta(chunk: Chunk) -> bool:
    """True for the chunks that count as a first token: some text, some thinking, or a piece of a call."""
    match chunk:
        case TextDelta() | ReasoningDelta():
            return bool(chunk.text)
        case ToolCallDelta():
            return bool(chunk.arguments or chunk.name)
        case _:
            return False


class _Partial:
    __slots__ = ("arguments", "block", "call_id", "kind", "name", "text")

    def __init__(self, kind: BlockKind) -> None:
        self.kind = kind
        self.text: list[str] = []
        self.call_id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.block: Block | None = None

    def assemble(self, index: int) -> Block:
        if self.block is not None:
            return self.block
        match self.kind:
            case "text":
                return TextBlock("".join(self.text))
            case "reasoning":
                return ReasoningBlock("".join(self.text))
            case "tool-call":
                return ToolCallBlock(self.call_id or f"call-{index}", self.name, "".join(self.arguments))
            case kind:
                raise StreamGrammarError(f"an open block of the unknown kind {kind!r} cannot be assembled")


class BlockAssembler:
    """Joins chunks into blocks; the only place that does. Tolerant where `check_stream` is strict.

    `blocks()` may be read at any time and any number of times. With finish `max-tokens` tool calls are dropped,
    because their arguments may be cut in the middle.
    """

    def __init__(self) -> None:
        self._partials: dict[int, _Partial] = {}
        self.usage: Usage | None = None
        self._finish: Finish | None = None

    def add(self, chunk: Chunk) -> None:
        match chunk:
            case TextDelta():
                partial = self._open(chunk.index, "text")
                if partial.block is None:
                    partial.text.append(chunk.text)
            case ReasoningDelta():
                partial = self._open(chunk.index, "reasoning")
                if partial.block is None:
                    partial.text.append(chunk.text)
            case ToolCallDelta():
                partial = self._open(chunk.index, "tool-call")
                if partial.block is None:
                    partial.call_id = chunk.id
                    partial.name = chunk.name or partial.name
                    partial.arguments.append(chunk.arguments)
            case BlockStart():
                self._open(chunk.index, chunk.kind)
            case BlockEnd():
                partial = self._open(chunk.index, "")
                if partial.block is None:
                    partial.block = chunk.block
            case UsageReport():
                self.usage = chunk.usage
            case Finish():
                self._finish = chunk
            case _:  # pyright: ignore[reportUnnecessaryComparison]
                raise StreamGrammarError(f"not a chunk: {chunk!r}")

    def _open(self, index: int, kind: BlockKind) -> _Partial:
        partial = self._partials.get(index)
        if partial is None:
            partial = self._partials[index] = _Partial(kind)
        return partial

    @property
    def finished(self) -> bool:
        return self._finish is not None

    @property
    def finish(self) -> Finish:
        """The last finish, or a plain `stop` when none arrived."""
        return self._finish or Finish("stop")

    def blocks(self) -> tuple[Block, ...]:
        """One block per index in the order first seen. Raises on an open block of an unknown kind."""
        return tuple(block for block, kept in self._assembled() if kept)

    def interrupted_blocks(self) -> tuple[Block, ...]:
        """What may be kept of a cancelled reply: non-blank text and thinking; never calls."""
        found: list[Block] = []
        for index, partial in self._partials.items():
            if partial.block is None and partial.kind not in ("text", "reasoning"):
                continue
            block = partial.assemble(index)
            if isinstance(block, TextBlock | ReasoningBlock) and block.text.strip():
                found.append(block)
        return tuple(found)

    @property
    def replay_state(self) -> JSON:
        """The adapter's replay state, pruned in step with dropped blocks.

        The one shape understood here is an object with a `blocks` list, one entry a block; an envelope whose list
        does not match the blocks is dropped whole, any other value passes through untouched.
        """
        state = self.finish.replay_state
        if not isinstance(state, Mapping) or "blocks" not in state:
            return cast("JSON", state)
        envelope = cast("Mapping[str, JSON]", state)
        kept = [keep for _, keep in self._assembled()]
        entries = envelope["blocks"]
        if not isinstance(entries, list | tuple) or len(cast("list[JSON]", entries)) != len(kept):
            return None
        if all(kept):
            return envelope
        pruned = [entry for entry, keep in zip(cast("list[JSON]", entries), kept, strict=True) if keep]
        return {**envelope, "blocks": pruned}

    def message(self, source: Source | None = None) -> Message:
        """A frozen assistant message of the blocks; a `ModelSource` receives the replay state."""
        source = source or PluginSource("assembler")
        if isinstance(source, ModelSource) and self.replay_state is not None:
            source = ModelSource(source.provider, source.model, freeze_json(self.replay_state))
        return create_message("assistant", self.blocks(), source)

    def _assembled(self) -> list[tuple[Block, bool]]:
        cut = self._finish is not None and self._finish.reason == "max-tokens"
        pairs: list[tuple[Block, bool]] = []
        for index, partial in self._partials.items():
            block = partial.assemble(index)
            pairs.append((block, not (cut and isinstance(block, ToolCallBlock))))
        return pairs


def block_kind(block: Block) -> BlockKind:
    match block:
        case TextBlock():
            return "text"
        case ReasoningBlock():
            return "reasoning"
        case ToolCallBlock():
            return "tool-call"
        case ImageBlock():
            return "image"
        case ToolResultBlock():
            return "tool-result"
        case OpaqueBlock():
            return block.kind
        case _:
            assert_never(block)


async def check_stream(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Pass chunks through and raise `StreamGrammarError` at the first that breaks the grammar.

    An exception of the source comes out unchanged.
    """
    open_blocks: dict[int, BlockKind] = {}
    seen_usage = finished = False
    async for chunk in chunks:
        if finished:
            raise StreamGrammarError("a chunk after the finish")
        match chunk:
            case BlockStart():
                _check_index(chunk.index)
                if chunk.index in open_blocks:
                    raise StreamGrammarError(f"block {chunk.index} is already open")
                open_blocks[chunk.index] = chunk.kind
            case TextDelta():
                _check_delta(open_blocks, chunk.index, "text")
            case ReasoningDelta():
                _check_delta(open_blocks, chunk.index, "reasoning")
            case ToolCallDelta():
                _check_delta(open_blocks, chunk.index, "tool-call")
            case BlockEnd():
                _check_delta(open_blocks, chunk.index, block_kind(chunk.block))
                del open_blocks[chunk.index]
            case UsageReport():
                if seen_usage:
                    raise StreamGrammarError("a second usage report")
                seen_usage = True
            case Finish():
                if open_blocks and chunk.reason not in ("error", "aborted"):
                    raise StreamGrammarError(f"block {min(open_blocks)} is still open at the finish")
                finished = True
            case _:  # pyright: ignore[reportUnnecessaryComparison]
                raise StreamGrammarError(f"not a chunk: {chunk!r}")
        yield chunk
    if not finished:
        raise StreamGrammarError("the stream ended without a finish")


def _check_index(index: object) -> None:
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise StreamGrammarError(f"not a block index: {index!r}")


def _check_delta(open_blocks: dict[int, BlockKind], index: int, kind: BlockKind) -> None:
    _check_index(index)
    if index not in open_blocks:
        raise StreamGrammarError(f"block {index} is not open")
    if open_blocks[index] != kind:
        raise StreamGrammarError(f"block {index} is a {open_blocks[index]} block, not {kind}")
