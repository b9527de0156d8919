"""Histories that a provider takes: the check, its fast twin, and the repair, on examples and on random histories."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.history import INTERRUPTED, holds_images, is_valid, prepare, problems, repair
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
    assistant_message,
    create_message,
    system_message,
    tool_result_message,
    user_message,
)
from tests.llm.asking import PNG

IMAGE = ImageBlock(PNG, "image/png", 3, 2)


def calling(*ids: str, text: str = "") -> Message:
    blocks: list[Block] = [TextBlock(text)] if text else []
    return assistant_message([*blocks, *(ToolCallBlock(each, "bash", "{}") for each in ids)], provider="p", model="m")


def answer(call_id: str) -> Message:
    return tool_result_message(call_id, f"result {call_id}")


HI = user_message("hi")
FINE = (HI, calling("a", "b", text="let me see"), answer("a"), answer("b"), user_message("and now?"))


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        pytest.param(FINE, [], id="valid"),
        pytest.param((), [], id="empty"),
        pytest.param((HI, calling("a"), answer("a"), calling("a"), answer("a")), [], id="id used again later"),
        pytest.param((HI, calling("b", "a"), answer("a"), answer("b")), [], id="results in another order"),
        pytest.param((HI, calling("a")), ["the end: a not answered"], id="H2 unanswered at the end"),
        pytest.param((HI, calling("a"), HI), ["message 2: a not answered before it"], id="unanswered in the middle"),
        pytest.param((HI, answer("a")), ["message 1: a result for 'a', which is no open call"], id="H3 orphan"),
        pytest.param(
            (HI, calling("a"), answer("a"), answer("a")),
            ["message 3: a result for 'a', which is no open call"],
            id="answered twice",
        ),
        pytest.param((HI, calling("a", "a"), answer("a")), ["message 1: the call id 'a' twice"], id="id twice"),
        pytest.param(
            (HI, system_message("note"), HI), ["message 1: a system message inside the conversation"], id="H12 system"
        ),
        pytest.param((HI, user_message("  \n"), HI), ["message 1: empty"], id="defect 28 empty"),
        pytest.param(
            (HI, assistant_message((ReasoningBlock("hm"),), provider="p", model="m")),
            ["message 1: empty"],
            id="thinking alone",
        ),
        pytest.param((HI, user_message((OpaqueBlock("x", "{}"),))), ["message 1: empty"], id="unknown block alone"),
    ],
)
def test_what_is_wrong(history: tuple[Message, ...], wrong: list[str]) -> None:
    assert problems(history) == wrong
    assert is_valid(history) == (not wrong)
    assert (prepare(history) is history) == (not wrong)
    assert problems(repair(history)) == []


def test_images_are_wrong_only_for_a_blind_model() -> None:
    history = (user_message((TextBlock("look"), IMAGE)),)
    assert problems(history) == []
    assert problems(history, images=False) == ["message 0: an image for a model without vision"]
    assert (is_valid(history), is_valid(history, images=False)) == (True, False)
    assert holds_images(history)


def test_h2_interrupted_call_is_answered_where_it_was_made() -> None:
    first, call, result, second = repair((HI, calling("a"), user_message("go on")))
    assert (first, second.text, call.tool_calls[0].id) == (HI, "go on", "a")
    assert result.tool_results == (ToolResultBlock("a", (TextBlock(INTERRUPTED),), is_error=True),)


def test_late_result_does_not_answer_twice() -> None:
    fixed = repair((HI, calling("a"), user_message("go on"), answer("a")))
    assert [[result.call_id for result in message.tool_results] for message in fixed] == [[], [], ["a"], []]


def test_mixed_message_is_split_with_its_result_first() -> None:
    mixed = user_message((TextBlock("by the way"), ToolResultBlock("a", (TextBlock("x"),))))
    fixed = repair((HI, calling("a"), mixed))
    assert [message.tool_results != () for message in fixed] == [False, False, True, False]
    assert fixed[3].text == "by the way"
    assert fixed[3].id == mixed.id


def test_h10_picture_becomes_a_note_with_its_size() -> None:
    shown = user_message((TextBlock("look "), IMAGE))
    (fixed,) = repair((shown,), images=False)
    assert fixed.text == "look [image left out: image/png, 3x2 pixels; this model cannot see images]"
    assert repair((shown,), images=False)[0] is fixed, "the same bytes each time"
    in_result = repair((HI, calling("a"), tool_result_message("a", (IMAGE,))), images=False)
    assert in_result[2].tool_results[0].text.startswith("[image left out: image/png, 3x2")


def test_defect_27_nothing_of_the_callers_is_changed() -> None:
    messages = [HI, calling("a"), user_message((IMAGE,))]
    before = [(message.id, message.content, message.source) for message in messages]
    repair(messages, images=False)
    assert [(message.id, message.content, message.source) for message in messages] == before


TEXT = st.sampled_from(["", " ", "a", "b"]).map(TextBlock)
IDS = st.sampled_from("abc")
BLOCKS = st.one_of(
    TEXT,
    st.just(IMAGE),
    st.just(ReasoningBlock("hm")),
    st.just(OpaqueBlock("x", "{}")),
    IDS.map(lambda each: ToolCallBlock(each, "bash", "{}")),
    IDS.map(lambda each: ToolResultBlock(each, (TextBlock("r"), IMAGE))),
)
PLAIN = st.builds(
    create_message,
    st.sampled_from(["user", "assistant", "system"]),
    st.lists(BLOCKS, max_size=4),
    st.sampled_from([UserSource(), PluginSource("x")]),
)
USUAL = st.one_of(
    st.just(HI),
    IDS.map(calling),
    IDS.map(answer),
    st.lists(IDS, min_size=1, max_size=3, unique=True).map(lambda ids: calling(*ids)),
)
HISTORIES = st.lists(st.one_of(USUAL, PLAIN), max_size=10).map(tuple)


def user_texts(history: tuple[Message, ...]) -> Counter[str]:
    return Counter(
        block.text
        for message in history
        if message.role == "user"
        for block in message.content
        if isinstance(block, TextBlock) and block.text.strip()
    )


@given(HISTORIES, st.booleans())
def test_a_valid_history_has_no_problems(history: tuple[Message, ...], images: bool) -> None:
    if is_valid(history, images=images):
        assert problems(history, images=images) == []


@given(st.lists(USUAL, max_size=10).map(tuple), st.booleans())
def test_both_checks_agree_on_histories_of_our_own_making(history: tuple[Message, ...], images: bool) -> None:
    assert is_valid(history, images=images) == (not problems(history, images=images))


@given(HISTORIES, st.booleans())
def test_repair_is_valid_idempotent_and_loses_no_words_of_the_user(history: tuple[Message, ...], images: bool) -> None:
    fixed = repair(history, images=images)
    assert problems(fixed, images=images) == []
    assert is_valid(fixed, images=images)
    assert repair(fixed, images=images) == fixed
    assert not user_texts(history) - user_texts(fixed)


@given(HISTORIES)
def test_repair_invents_nothing_but_interrupted_results(history: tuple[Message, ...]) -> None:
    known = {message.id for message in history}
    for message in repair(history):
        invented = message.id.partition(":")[0] == "interrupted"
        assert invented or message.id.partition(":")[0] in known
