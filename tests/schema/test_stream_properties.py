"""Properties of the assembler and the checker over streams nobody would write by hand (case A25)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.schema.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from app.schema.stream import (
    BlockAssembler,
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    check_stream,
)
from tests.schema.chunks import PROPERTY, F, assembled, deltas, grammatical_streams, loose_streams, stream_of


@st.composite
def split_streams(draw: st.DrawFn) -> tuple[list[Chunk], list[Chunk]]:
    """A stream, and the same stream with each of its deltas cut into one to three pieces."""
    whole = draw(loose_streams)
    pieces: list[Chunk] = []
    for chunk in whole:
        match chunk:
            case TextDelta() | ReasoningDelta():
                pieces.extend(replace(chunk, text=part) for part in draw(_cuts(chunk.text)))
            case ToolCallDelta():
                pieces.extend(replace(chunk, arguments=part) for part in draw(_cuts(chunk.arguments)))
            case _:
                pieces.append(chunk)
    return whole, pieces


@st.composite
def _cuts(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@PROPERTY
@given(split_streams())
def test_A25_splitting_a_delta_anywhere_changes_nothing(streams: tuple[list[Chunk], list[Chunk]]) -> None:
    whole, pieces = streams
    assert assembled(pieces).blocks() == assembled(whole).blocks()


@PROPERTY
@given(loose_streams, st.lists(deltas, max_size=6), st.integers(0, 20))
def test_stragglers_after_a_close_change_nothing(chunks: list[Chunk], late: list[Chunk], place: int) -> None:
    before, after = chunks[:place], chunks[place:]
    closed = {chunk.index for chunk in before if isinstance(chunk, BlockEnd)}
    stragglers = [chunk for chunk in late if not isinstance(chunk, UsageReport | Finish) and chunk.index in closed]
    assert assembled([*before, *stragglers, *after]).blocks() == assembled(chunks).blocks()


@PROPERTY
@given(loose_streams)
def test_never_more_blocks_than_indexes(chunks: list[Chunk]) -> None:
    indexes = {chunk.index for chunk in chunks if not isinstance(chunk, UsageReport | Finish)}
    assembler = assembled(chunks)
    if assembler.finish.reason == "max-tokens":
        assert len(assembler.blocks()) <= len(indexes)
    else:
        assert len(assembler.blocks()) == len(indexes)


@PROPERTY
@given(loose_streams)
def test_reading_changes_nothing(chunks: list[Chunk]) -> None:
    read_often = BlockAssembler()
    for chunk in chunks:
        read_often.add(chunk)
        assert read_often.blocks() == read_often.blocks()
        assert read_often.interrupted_blocks() == read_often.interrupted_blocks()
    assert read_often.blocks() == assembled(chunks).blocks()


@PROPERTY
@given(loose_streams)
def test_message_content_equals_blocks(chunks: list[Chunk]) -> None:
    assembler = assembled(chunks)
    assert assembler.message().content == assembler.blocks()


async def _checked(chunks: list[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in check_stream(stream_of(chunks))]


@PROPERTY
@given(grammatical_streams())
def test_what_the_checker_accepts_assembles(chunks: list[Chunk]) -> None:
    assert asyncio.run(_checked(chunks)) == chunks
    assembler = assembled(chunks)
    if assembler.finish.reason in ("error", "aborted"):
        # A failed stream may leave a block open that has no meaning until it is closed; the part to keep never fails.
        kept = assembler.interrupted_blocks()
        assert all(isinstance(block, TextBlock | ReasoningBlock) and block.text.strip() for block in kept)
    else:
        assert list(assembler.blocks()) == _first_closed(chunks)


def _first_closed(chunks: list[Chunk]) -> list[Block]:
    """The blocks that a reply holds: for each index, in order of its start, the first block that closed it."""
    starts = dict.fromkeys(chunk.index for chunk in chunks if isinstance(chunk, BlockStart))
    ends: dict[int, Block] = {}
    for chunk in chunks:
        if isinstance(chunk, BlockEnd):
            ends.setdefault(chunk.index, chunk.block)
    cut = F("max-tokens") in chunks
    return [ends[index] for index in starts if not (cut and isinstance(ends[index], ToolCallBlock))]
