"""Short names for chunks, as the stream cases write them, and strategies that draw whole streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from hypothesis import settings
from hypothesis import strategies as st

from app.schema.errors import LLMFailure
from app.schema.message import (
    Block,
    ImageBlock,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from app.schema.stream import (
    BlockAssembler,
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    block_kind,
)
from app.schema.usage import Usage

# The machine of a check may be busy: time is no property of a value.
PROPERTY = settings(deadline=None, max_examples=80)

FAILURE = LLMFailure("the provider failed", "SERVER", 503)
AUDIO = OpaqueBlock("audio", '{"kind": "audio", "url": "a.wav"}')


def S(index: int, kind: str) -> BlockStart:
    return BlockStart(index, kind)


def T(index: int, text: str) -> TextDelta:
    return TextDelta(index, text)


def R(index: int, text: str) -> ReasoningDelta:
    return ReasoningDelta(index, text)


def C(index: int, call: str, name: str | None, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index, call, name, arguments)


def E(index: int, block: Block) -> BlockEnd:
    return BlockEnd(index, block)


def U(input_tokens: int = 1, output_tokens: int = 1) -> UsageReport:
    return UsageReport(Usage(input_tokens, output_tokens))


def F(reason: FinishReason, replay_state: object = None) -> Finish:
    return Finish(reason, FAILURE if reason in ("error", "aborted") else None, replay_state)


A01: tuple[Chunk, ...] = (S(0, "text"), T(0, "Hel"), T(0, "lo"), E(0, TextBlock("Hello")), U(3, 2), F("stop"))


def assembled(chunks: Iterable[Chunk]) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


async def stream_of(chunks: Iterable[Chunk], error: Exception | None = None) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk
    if error is not None:
        raise error


texts = st.text(max_size=8)
indexes = st.integers(0, 3)
names = st.sampled_from(["", "f", "search"])
calls = st.builds(ToolCallBlock, names, names, texts)
simple_blocks = (
    st.builds(TextBlock, texts)
    | st.builds(ReasoningBlock, texts, st.none() | texts)
    | calls
    | st.just(ImageBlock("aGk=", "image/png", 2, 1))
    | st.just(AUDIO)
)
blocks = simple_blocks | st.builds(
    ToolResultBlock, names, st.lists(simple_blocks, max_size=2).map(tuple), st.booleans()
)
known_kinds = st.sampled_from(["text", "reasoning", "tool-call"])

deltas = (
    st.builds(TextDelta, indexes, texts)
    | st.builds(ReasoningDelta, indexes, texts)
    | st.builds(ToolCallDelta, indexes, names, st.none() | names, texts)
)
any_chunks = (
    deltas
    | st.builds(BlockStart, indexes, known_kinds)
    | st.builds(BlockEnd, indexes, blocks)
    | st.builds(UsageReport, st.builds(Usage, st.integers(0, 9), st.integers(0, 9)))
    | st.sampled_from([F("stop"), F("tool-calls"), F("max-tokens"), F("error"), F("aborted")])
)
loose_streams = st.lists(any_chunks, max_size=20)
"""Any mix of chunks whose open blocks can be assembled; most of them break the grammar."""


@st.composite
def grammatical_streams(draw: st.DrawFn) -> list[Chunk]:
    """A stream that obeys the grammar: interleaved blocks of every kind, reopened indexes, all ways to end."""
    chunks: list[Chunk] = []
    opened: dict[int, Block] = {}
    for _ in range(draw(st.integers(0, 16))):
        index = draw(indexes)
        if index not in opened:
            opened[index] = draw(blocks)
            chunks.append(S(index, block_kind(opened[index])))
        elif draw(st.booleans()):
            chunks.append(E(index, opened.pop(index)))
        else:
            chunks.extend(draw(_deltas_of(index, opened[index])))
    if draw(st.booleans()):
        chunks.append(U())
    failed = draw(st.booleans())
    if not failed:
        chunks.extend(E(index, block) for index, block in opened.items())
    reason: FinishReason = draw(
        st.sampled_from(["error", "aborted"] if failed else ["stop", "tool-calls", "max-tokens"])
    )
    return [*chunks, F(reason)]


def _deltas_of(index: int, block: Block) -> st.SearchStrategy[list[Chunk]]:
    match block:
        case TextBlock():
            return texts.map(lambda text: [T(index, text)])
        case ReasoningBlock():
            return texts.map(lambda text: [R(index, text)])
        case ToolCallBlock():
            return texts.map(lambda text: [C(index, block.id, block.name, text)])
        case _:
            return st.just([])
