"""Cases G01 to G12 of the stream checker: what passes, what is refused, and at which chunk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from app.schema.errors import StreamGrammarError
from app.schema.message import ImageBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock
from app.schema.stream import Chunk, check_stream
from tests.schema.chunks import A01, AUDIO, C, E, F, R, S, T, U, stream_of

A = TextBlock("a")
CALL = ToolCallBlock("c1", "f", "{}")
PICTURE = ImageBlock("aGk=", "image/png")
RESULT = ToolResultBlock("c1", (A,))


async def passed(chunks: Iterable[Chunk], error: Exception | None = None) -> tuple[list[Chunk], Exception | None]:
    """The chunks that came out of the checker, and the exception that ended it."""
    out: list[Chunk] = []
    try:
        async for chunk in check_stream(stream_of(chunks, error)):
            out.append(chunk)
    except (StreamGrammarError, OSError) as raised:
        return out, raised
    return out, None


ACCEPTED: dict[str, tuple[Chunk, ...]] = {
    "G01-whole reply": A01,
    "G01-interleaved blocks": (
        *(S(0, "text"), S(1, "tool-call"), S(2, "reasoning")),
        *(T(0, "a"), C(1, "c1", "f", "{}"), R(2, "r")),
        *(E(2, ReasoningBlock("r")), E(0, A), E(1, CALL)),
        *(U(), F("tool-calls")),
    ),
    "G04-open block at an error": (S(0, "text"), T(0, "a"), F("error")),
    "G04-open block at an abort": (S(0, "text"), F("aborted")),
    "G08-index used again after its close": (S(0, "text"), E(0, A), S(0, "text"), E(0, A), F("stop")),
    "blocks of the other kinds": (
        *(S(0, "image"), E(0, PICTURE)),
        *(S(1, "tool-result"), E(1, RESULT)),
        *(S(2, "audio"), E(2, AUDIO)),
        F("stop"),
    ),
    "nothing but a finish": (F("error"),),
}


@pytest.mark.parametrize("chunks", ACCEPTED.values(), ids=ACCEPTED)
async def test_a_grammatical_stream_passes_unchanged(chunks: tuple[Chunk, ...]) -> None:
    out, error = await passed(chunks)
    assert error is None
    assert len(out) == len(chunks)
    assert all(got is sent for got, sent in zip(out, chunks, strict=True))


# Each case: the chunks, how many of them pass, and the words of the error.
REFUSED: dict[str, tuple[tuple[Any, ...], int, str]] = {
    "G02-usage after the finish": ((U(), F("stop"), U()), 2, "a chunk after the finish"),
    "G02-second finish": ((F("stop"), F("stop")), 1, "a chunk after the finish"),
    "G03-open block at the stop": ((S(0, "text"), F("stop")), 1, "block 0 is still open at the finish"),
    "G03-open block at the output limit": ((S(2, "text"), F("max-tokens")), 1, "block 2 is still open at the finish"),
    "G05-text before its start": ((T(0, "a"),), 0, "block 0 is not open"),
    "G05-reasoning before its start": ((R(0, "a"),), 0, "block 0 is not open"),
    "G05-call before its start": ((C(0, "c", "f", ""),), 0, "block 0 is not open"),
    "G05-end before its start": ((E(0, A),), 0, "block 0 is not open"),
    "G05-text after the close": ((S(0, "text"), E(0, A), T(0, "a")), 2, "block 0 is not open"),
    "G06-text into a call": ((S(0, "tool-call"), T(0, "a")), 1, "block 0 is a tool-call block, not text"),
    "G06-reasoning into text": ((S(0, "text"), R(0, "a")), 1, "block 0 is a text block, not reasoning"),
    "G06-call into text": ((S(0, "text"), C(0, "c", "f", "")), 1, "block 0 is a text block, not tool-call"),
    "G07-end of another kind": ((S(0, "text"), E(0, CALL)), 1, "block 0 is a text block, not tool-call"),
    "G07-end of an unknown kind": ((S(0, "video"), E(0, AUDIO)), 1, "block 0 is a video block, not audio"),
    "G08-start of an open index": ((S(0, "text"), S(0, "text")), 1, "block 0 is already open"),
    "G09-index -1": ((S(-1, "text"),), 0, "not a block index: -1"),
    "G09-index 1.5": ((S(1.5, "text"),), 0, "not a block index: 1.5"),  # pyright: ignore[reportArgumentType]
    "G09-index true": ((S(True, "text"),), 0, "not a block index: True"),
    "G09-delta index true": ((S(1, "text"), T(True, "a")), 1, "not a block index: True"),
    "G10-second usage": ((U(), U()), 1, "a second usage report"),
    "G11-no finish": ((S(0, "text"), E(0, A)), 2, "the stream ended without a finish"),
    "G11-nothing at all": ((), 0, "the stream ended without a finish"),
    "not a chunk": (({"type": "finish"},), 0, "not a chunk: {'type': 'finish'}"),
}


@pytest.mark.parametrize(("chunks", "good", "words"), REFUSED.values(), ids=REFUSED)
async def test_the_first_offence_is_refused(chunks: tuple[Any, ...], good: int, words: str) -> None:
    out, error = await passed(chunks)
    assert out == list(chunks[:good])
    assert isinstance(error, StreamGrammarError)
    assert error.message == words
    assert error.code == "INVARIANT"


async def test_G12_an_exception_of_the_source_comes_out_unchanged() -> None:
    broken = ConnectionResetError("reset by peer")
    out, error = await passed([S(0, "text")], broken)
    assert out == [S(0, "text")]
    assert error is broken
