"""Cases V01 to V11 of messages: frozen values, fixed roles and sources, a JSON form that loses nothing."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.schema.message import (
    Block,
    ImageBlock,
    Message,
    ModelSource,
    OpaqueBlock,
    OpaqueSource,
    PluginSource,
    ReasoningBlock,
    Source,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    UserSource,
    assistant_message,
    block_from_json,
    block_to_json,
    create_message,
    freeze_json,
    message_from_json,
    message_to_json,
    source_from_json,
    source_to_json,
    system_message,
    thaw_json,
    tool_result_message,
    user_message,
)
from app.schema.run import CancelToken
from tests.schema.chunks import PROPERTY, blocks

DEPTH = 5000


def test_V01_a_message_is_detached_from_the_callers_values() -> None:
    content: list[Block] = [TextBlock("a")]
    state: dict[str, Any] = {"items": [{"id": "r1"}]}
    message = create_message("assistant", content, PluginSource("p"))
    reply = assistant_message(content, provider="p", model="m", replay_state=state)
    content.append(TextBlock("b"))
    state["items"][0]["id"] = "changed"
    assert message.content == reply.content == (TextBlock("a"),)
    assert isinstance(reply.source, ModelSource)
    assert thaw_json(reply.source.replay_state) == {"items": [{"id": "r1"}]}


def test_V01_a_message_cannot_be_edited() -> None:
    message: Any = assistant_message("a", provider="p", model="m", replay_state={"items": [1]})
    for target, name in [(message, "content"), (message.content[0], "text"), (message.source, "model")]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(target, name, "x")
    for target, key in [(message.content, 0), (message.source.replay_state, "items")]:
        with pytest.raises(TypeError):
            target[key] = "x"
    with pytest.raises(TypeError):
        message.source.replay_state["items"][0] = "x"


def test_V02_equal_input_gives_another_id_and_equal_content() -> None:
    first, second = user_message("a"), user_message("a")
    assert first.id != second.id
    assert uuid.UUID(first.id).version == 4
    assert first.content == second.content == (TextBlock("a"),)
    assert first.source == second.source == UserSource()


@pytest.mark.parametrize("create", [create_message, user_message, assistant_message, tool_result_message])
def test_V03_an_explicit_id_is_rejected(create: Any) -> None:
    with pytest.raises(TypeError, match="'id'"):
        create(id="mine")


def test_V04_a_tool_result_is_a_user_message_with_one_block() -> None:
    message = tool_result_message("c1", "x", is_error=False)
    assert message.role == "user"
    assert message.source == ToolSource("c1")
    assert message.content == (ToolResultBlock("c1", (TextBlock("x"),), False),)
    assert message.tool_results[0].text == "x"
    assert message_to_json(message)["content"] == [
        {"kind": "tool-result", "call_id": "c1", "content": [{"kind": "text", "text": "x"}], "is_error": False}
    ]


def test_V05_an_imported_message_keeps_its_id_and_is_detached() -> None:
    data: dict[str, Any] = {
        "id": "m1",
        "role": "user",
        "content": [{"kind": "text", "text": "a"}],
        "source": {"kind": "user"},
        "time": 12.5,
    }
    message = message_from_json(data)
    data["content"][0]["text"] = "changed"
    data["content"].append({"kind": "text", "text": "b"})
    assert message == Message("m1", "user", (TextBlock("a"),), UserSource())
    assert message.time == 12.5


def test_V05_a_rewrite_keeps_id_and_time_and_forgets_the_encoded_bytes() -> None:
    message = assistant_message("a", provider="p", model="m", replay_state={"id": "r1"})
    message.wire["openai"] = b"{}"
    rewritten = message.replace(source=ModelSource("p", "m"))
    assert (rewritten.id, rewritten.role, rewritten.time) == (message.id, "assistant", message.time)
    assert rewritten.content == message.content
    assert rewritten.source == ModelSource("p", "m", None)
    assert rewritten.wire == {}
    assert message.replace(content=[TextBlock("b")]).content == (TextBlock("b"),)


def test_V06_an_assistant_message_keeps_provider_model_and_replay_state() -> None:
    message = assistant_message("a", provider="p", model="m", replay_state={"id": "r1"})
    assert message.role == "assistant"
    assert message.source == ModelSource("p", "m", {"id": "r1"})


def _nested(depth: int) -> Any:
    value: Any = "core"
    for level in range(depth):
        value = {"inner": value} if level % 2 else [value]
    return value


def _depth(value: Any, *containers: type) -> int:
    """How many levels lie around the core, all of them of these types."""
    levels = 0
    while value != "core":
        assert isinstance(value, containers)
        value = value["inner"] if isinstance(value, Mapping) else value[0]
        levels += 1
    return levels


def test_V08_freezing_holds_for_any_depth_and_thaws_back() -> None:
    frozen = freeze_json(_nested(DEPTH))
    assert _depth(frozen, MappingProxyType, tuple) == DEPTH
    assert _depth(thaw_json(frozen), dict, list) == DEPTH


@pytest.mark.parametrize("kind", ["list", "object", "deep"])
def test_V08_a_cycle_is_refused_in_words(kind: str) -> None:
    ring: list[Any] = []
    ring.append({"self": ring} if kind == "object" else [[ring]] if kind == "deep" else ring)
    with pytest.raises(ValueError, match="contains itself"):
        freeze_json({"ring": ring})


def test_V08_a_shared_value_is_no_cycle() -> None:
    shared = {"a": [1]}
    assert thaw_json(freeze_json([shared, shared, {"again": shared}])) == [shared, shared, {"again": shared}]


def test_V08_a_cancel_token_inside_stays_itself_and_works() -> None:
    token = CancelToken()
    frozen = freeze_json({"deep": [{"token": token}]})
    assert frozen["deep"][0]["token"] is token
    token.cancel("user")
    assert token.cancelled


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@PROPERTY
@given(json_values)
def test_V08_thawing_a_frozen_value_gives_it_back(value: Any) -> None:
    assert thaw_json(freeze_json(value)) == value


KNOWN_BLOCKS = {"text", "image", "reasoning", "tool-call", "tool-result"}
KNOWN_SOURCES = {"user", "plugin", "model", "tool"}


def _unknown(known: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    kinds = st.text(max_size=6).filter(lambda kind: kind not in known)
    others = st.dictionaries(st.text(max_size=4).filter(lambda name: name != "kind"), json_values, max_size=3)
    return st.builds(lambda kind, rest: {"kind": kind, **rest}, kinds, others)


texts = st.text(max_size=6)
images = st.builds(
    ImageBlock, texts, texts, st.integers(0, 9), st.integers(0, 9), st.sampled_from(["auto", "low", "high"])
)
opaque_blocks = _unknown(KNOWN_BLOCKS).map(block_from_json)
flat_blocks = blocks | images | opaque_blocks
any_blocks = flat_blocks | st.builds(
    ToolResultBlock, texts, st.lists(flat_blocks, max_size=2).map(tuple), st.booleans()
)
any_sources = (
    st.just(UserSource())
    | st.builds(PluginSource, texts, st.none() | texts, st.none() | st.text(max_size=130))
    | st.builds(ModelSource, texts, texts, json_values.map(freeze_json))
    | st.builds(ToolSource, texts)
    | _unknown(KNOWN_SOURCES).map(source_from_json)
)
any_messages = st.builds(
    Message,
    texts,
    st.sampled_from(["system", "user", "assistant"]),
    st.lists(any_blocks, max_size=4).map(tuple),
    any_sources,
    st.floats(0, 4e9),
)


@PROPERTY
@given(any_messages)
def test_V10_a_message_survives_json(message: Message) -> None:
    text = json.dumps(message_to_json(message), ensure_ascii=False)
    back = message_from_json(json.loads(text))
    assert back == message
    assert back.time == message.time
    assert json.dumps(message_to_json(back), ensure_ascii=False) == text


EVERY_BLOCK: dict[str, tuple[Block, dict[str, Any]]] = {
    "V10-text": (TextBlock("a"), {"kind": "text", "text": "a"}),
    "V10-image": (
        ImageBlock("aGk=", "image/png", 2, 1, "low"),
        {"kind": "image", "data": "aGk=", "media_type": "image/png", "width": 2, "height": 1, "detail": "low"},
    ),
    "V10-reasoning": (ReasoningBlock("a"), {"kind": "reasoning", "text": "a"}),
    "V10-signed reasoning": (ReasoningBlock("a", "s"), {"kind": "reasoning", "text": "a", "signature": "s"}),
    "V10-call with broken arguments": (
        ToolCallBlock("c1", "f", '{"a" :'),
        {"kind": "tool-call", "id": "c1", "name": "f", "arguments": '{"a" :'},
    ),
    "V10-result": (
        ToolResultBlock("c1", (ImageBlock("aGk=", "image/png"), TextBlock("x")), True),
        {
            "kind": "tool-result",
            "call_id": "c1",
            "content": [
                {"kind": "image", "data": "aGk=", "media_type": "image/png", "width": 0, "height": 0, "detail": "auto"},
                {"kind": "text", "text": "x"},
            ],
            "is_error": True,
        },
    ),
    "V10-unknown": (
        OpaqueBlock("audio", '{"kind": "audio", "url": "ü.wav", "parts": [1, null]}'),
        {"kind": "audio", "url": "ü.wav", "parts": [1, None]},
    ),
}


@pytest.mark.parametrize(("block", "data"), EVERY_BLOCK.values(), ids=EVERY_BLOCK)
def test_V10_the_json_form_of_each_block(block: Block, data: dict[str, Any]) -> None:
    assert block_to_json(block) == data
    assert block_from_json(data) == block


EVERY_SOURCE: dict[str, tuple[Source, dict[str, Any]]] = {
    "user": (UserSource(), {"kind": "user"}),
    "plugin": (PluginSource("p"), {"kind": "plugin", "plugin": "p"}),
    "notice": (
        PluginSource("p", "notice", "short"),
        {"kind": "plugin", "plugin": "p", "form": "notice", "summary": "short"},
    ),
    "model": (ModelSource("p", "m"), {"kind": "model", "provider": "p", "model": "m"}),
    "replayed model": (
        ModelSource("p", "m", freeze_json({"blocks": [{"sig": "a"}]})),
        {"kind": "model", "provider": "p", "model": "m", "replay_state": {"blocks": [{"sig": "a"}]}},
    ),
    "tool": (ToolSource("c1"), {"kind": "tool", "call_id": "c1"}),
    "unknown": (OpaqueSource("relay", '{"kind": "relay", "hop": 2}'), {"kind": "relay", "hop": 2}),
}


@pytest.mark.parametrize(("source", "data"), EVERY_SOURCE.values(), ids=EVERY_SOURCE)
def test_V10_the_json_form_of_each_source(source: Source, data: dict[str, Any]) -> None:
    assert source_to_json(source) == data
    assert source_from_json(data) == source


WHOLE = {"id": "m1", "role": "user", "content": [], "source": {"kind": "user"}, "time": 1.0}
DAMAGE: dict[str, dict[str, Any]] = {
    "no id": {name: value for name, value in WHOLE.items() if name != "id"},
    "role of another vocabulary": WHOLE | {"role": "tool"},
    "content is no list": WHOLE | {"content": None},
    "a block is no object": WHOLE | {"content": ["text"]},
    "a block without its text": WHOLE | {"content": [{"kind": "text"}]},
    "source is no object": WHOLE | {"source": "user"},
    "time is no number": WHOLE | {"time": None},
}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_message_raises_what_the_import_promises(data: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        message_from_json(data)


@pytest.mark.parametrize(
    ("given_length", "stored"),
    [(120, "x" * 120), (121, "x" * 119 + "…"), (5000, "x" * 119 + "…")],
    ids=["V11-120", "V11-121", "V11-5000"],
)
def test_V11_a_long_summary_is_cut_to_120_characters(given_length: int, stored: str) -> None:
    source = PluginSource("p", "notice", "x" * given_length)
    assert source.summary == stored
    assert len(stored) == 120


def test_the_views_of_a_message_pick_their_blocks_in_order() -> None:
    call, result = ToolCallBlock("c1", "f", ""), ToolResultBlock("c1", (TextBlock("x"), TextBlock("y")))
    content = [ReasoningBlock("r1"), TextBlock("a"), call, ReasoningBlock("r2"), TextBlock("b"), result]
    message = create_message("assistant", content, UserSource())
    assert (message.text, message.reasoning) == ("ab", "r1r2")
    assert (message.tool_calls, message.tool_results) == ((call,), (result,))
    assert result.text == "xy"


def test_empty_text_gives_no_block() -> None:
    assert user_message("").content == ()
    assert system_message("be brief").content == (TextBlock("be brief"),)
    assert system_message("be brief").role == "system"
