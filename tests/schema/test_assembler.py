"""Cases A01 to A24 of the block assembler: what each order of chunks becomes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app.schema.errors import StreamGrammarError
from app.schema.message import (
    Block,
    ModelSource,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    thaw_json,
)
from app.schema.stream import BlockAssembler, Chunk, Finish, is_token_delta
from app.schema.usage import Usage
from tests.schema.chunks import A01, AUDIO, C, E, F, R, S, T, U, assembled

CALL = ToolCallBlock("c1", "f", "{}")

BLOCKS: dict[str, tuple[tuple[Chunk, ...], tuple[Block, ...]]] = {
    "A01-started, joined, closed": (A01, (TextBlock("Hello"),)),
    "A02-neither starts nor ends": ((T(0, "a"), R(1, "b")), (TextBlock("a"), ReasoningBlock("b"))),
    "A03-order of first sight": (
        (S(1, "reasoning"), S(0, "text"), R(1, "x"), T(0, "y")),
        (ReasoningBlock("x"), TextBlock("y")),
    ),
    "A04-second start is ignored": ((S(0, "text"), T(0, "a"), S(0, "tool-call"), T(0, "b")), (TextBlock("ab"),)),
    "A05-straggler after the close": (
        (S(0, "text"), T(0, "a"), E(0, TextBlock("a")), T(0, "zz")),
        (TextBlock("a"),),
    ),
    "A06-the carried block wins": ((S(0, "text"), T(0, "draft"), E(0, TextBlock("final"))), (TextBlock("final"),)),
    "A07-the first end wins": ((E(0, TextBlock("A")), E(0, TextBlock("B"))), (TextBlock("A"),)),
    "A08-the end decides the kind": ((S(0, "text"), E(0, CALL)), (CALL,)),
    "A09-arguments are joined raw": (
        (C(0, "c1", "add", '{"a":'), C(0, "c1", None, "1}")),
        (ToolCallBlock("c1", "add", '{"a":1}'),),
    ),
    "A10-broken arguments stay broken": ((C(0, "c1", "add", '{"a":'),), (ToolCallBlock("c1", "add", '{"a":'),)),
    "A11-a call without anything": ((S(3, "tool-call"),), (ToolCallBlock("call-3", "", ""),)),
    "A12-last id, last real name": ((C(0, "x", "f", ""), C(0, "y", "", "1")), (ToolCallBlock("y", "f", "1"),)),
    "A17-a cut call is dropped": ((T(0, "t"), C(1, "c1", "f", '{"p'), F("max-tokens")), (TextBlock("t"),)),
    "A18-a closed call is dropped too": (
        (T(0, "t"), C(1, "c1", "f", '{"p'), E(1, CALL), F("max-tokens")),
        (TextBlock("t"),),
    ),
}


@pytest.mark.parametrize(("chunks", "blocks"), BLOCKS.values(), ids=BLOCKS)
def test_chunks_become_blocks(chunks: tuple[Chunk, ...], blocks: tuple[Block, ...]) -> None:
    assert assembled(chunks).blocks() == blocks


def test_A01_usage_and_finish() -> None:
    assembler = assembled(A01)
    assert assembler.usage == Usage(3, 2)
    assert assembler.finish == Finish("stop")
    assert assembler.finished


def test_A13_last_usage_and_last_finish_win_replay_state_included() -> None:
    assembler = assembled([U(1, 1), F("stop", {"id": "r1"}), U(5, 7), F("tool-calls")])
    assert assembler.usage == Usage(5, 7)
    assert assembler.finish == Finish("tool-calls")
    assert assembler.replay_state is None


def test_A14_no_finish_reads_as_stop_but_is_not_finished() -> None:
    assembler = assembled([T(0, "a")])
    assert assembler.finish == Finish("stop")
    assert not assembler.finished
    assert assembler.usage is None


def test_A15_an_open_block_of_unknown_kind_cannot_be_read() -> None:
    assembler = assembled([S(0, "audio")])
    with pytest.raises(StreamGrammarError, match="'audio'"):
        assembler.blocks()
    assembler.add(E(0, AUDIO))
    assert assembler.blocks() == (AUDIO,)


def test_A16_what_is_no_chunk_is_refused() -> None:
    not_a_chunk: Any = {"type": "text-delta", "index": 0, "text": "a"}
    with pytest.raises(StreamGrammarError, match="not a chunk"):
        BlockAssembler().add(not_a_chunk)


REASONED_CALL = (R(0, "hm"), C(1, "c1", "f", '{"p'))


def test_A19_replay_entries_go_with_their_blocks() -> None:
    envelope = {"response": "r1", "blocks": ["sig-0", "sig-1"]}
    assembler = assembled([*REASONED_CALL, F("max-tokens", envelope)])
    assert assembler.replay_state == {"response": "r1", "blocks": ["sig-0"]}
    assert envelope == {"response": "r1", "blocks": ["sig-0", "sig-1"]}


def test_A19_replay_state_that_fits_is_the_same_object() -> None:
    envelope = {"response": "r1", "blocks": ["sig-0", "sig-1"]}
    assert assembled([*REASONED_CALL, F("tool-calls", envelope)]).replay_state is envelope


@pytest.mark.parametrize("reason", ["tool-calls", "max-tokens"])
def test_A20_replay_entries_of_another_count_drop_the_envelope(reason: Any) -> None:
    envelope = {"response": "r1", "blocks": [1, 2, 3]}
    assert assembled([*REASONED_CALL, F(reason, envelope)]).replay_state is None


@pytest.mark.parametrize(
    "state", [{"response": "r1"}, "opaque", ["blocks"]], ids=["A21-object", "A21-text", "A21-list"]
)
def test_A21_replay_state_without_a_block_list_is_untouched(state: object) -> None:
    assert assembled([*REASONED_CALL, F("max-tokens", state)]).replay_state is state


INTERRUPTED: dict[str, tuple[tuple[Chunk, ...], tuple[Block, ...]]] = {
    "A22-blank text and open calls go": ((R(0, "hm"), T(1, " \n"), C(2, "c", "f", "{}")), (ReasoningBlock("hm"),)),
    "A22-closed calls and unknown kinds go": ((T(0, "a"), E(1, CALL), S(2, "audio"), E(3, AUDIO)), (TextBlock("a"),)),
    "A22-closed text keeps its final form": ((T(0, "draft"), E(0, TextBlock("final"))), (TextBlock("final"),)),
    "A22-nothing arrived": ((), ()),
}


@pytest.mark.parametrize(("chunks", "blocks"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_A22_what_may_be_kept_of_an_interrupted_reply(chunks: tuple[Chunk, ...], blocks: tuple[Block, ...]) -> None:
    assert assembled(chunks).interrupted_blocks() == blocks


def test_A23_reading_after_each_chunk() -> None:
    assembler = BlockAssembler()
    assert assembler.blocks() == ()
    read: list[str] = []
    for chunk in A01:
        assembler.add(chunk)
        first, second = assembler.blocks(), assembler.blocks()
        assert first == second
        read.append("".join(block.text for block in first if isinstance(block, TextBlock)))
    assert read == ["", "Hel", "Hello", "Hello", "Hello", "Hello"]


def test_A24_message_is_a_frozen_assistant_message_of_the_blocks() -> None:
    assembler = assembled(A01)
    message = assembler.message()
    assert message.role == "assistant"
    assert message.content == assembler.blocks()
    assert message.source == PluginSource("assembler")
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.role = "user"  # pyright: ignore[reportAttributeAccessIssue]


def test_A24_a_model_source_receives_the_pruned_replay_state_frozen() -> None:
    assembler = assembled([*REASONED_CALL, F("max-tokens", {"id": "r1", "blocks": [{"sig": "a"}, {"sig": "b"}]})])
    source = assembler.message(ModelSource("deepseek", "chat")).source
    assert isinstance(source, ModelSource)
    assert (source.provider, source.model) == ("deepseek", "chat")
    assert thaw_json(source.replay_state) == {"id": "r1", "blocks": [{"sig": "a"}]}
    with pytest.raises(TypeError):
        source.replay_state["id"] = "r2"


TOKEN_DELTAS: dict[str, tuple[Chunk, bool]] = {
    "text": (T(0, "a"), True),
    "empty text": (T(0, ""), False),
    "reasoning": (R(0, "a"), True),
    "empty reasoning": (R(0, ""), False),
    "call with a name": (C(0, "c", "f", ""), True),
    "call with arguments": (C(0, "c", None, "{"), True),
    "call with an id only": (C(0, "c", None, ""), False),
    "start": (S(0, "text"), False),
    "end": (E(0, TextBlock("a")), False),
    "usage": (U(), False),
    "finish": (F("stop"), False),
}


@pytest.mark.parametrize(("chunk", "expected"), TOKEN_DELTAS.values(), ids=TOKEN_DELTAS)
def test_which_chunks_count_as_a_first_token(chunk: Chunk, expected: bool) -> None:
    assert is_token_delta(chunk) is expected
