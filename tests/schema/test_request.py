"""Case V07: which call configurations are different, and what a request and a reply are."""

from __future__ import annotations

import dataclasses

import pytest

from app.schema.message import assistant_message
from app.schema.request import CallConfig, ModelReply, ToolSpec
from app.schema.stream import Finish
from app.schema.usage import Usage

BASE = CallConfig("openai", "gpt")

DIFFERENT: dict[str, tuple[CallConfig, CallConfig]] = {
    "V07-stop absent or empty": (BASE, dataclasses.replace(BASE, stop=())),
    "V07-stop in another order": (
        dataclasses.replace(BASE, stop=("a", "b")),
        dataclasses.replace(BASE, stop=("b", "a")),
    ),
    "V07-temperature 0 or absent": (dataclasses.replace(BASE, temperature=0), BASE),
    "V07-provider": (BASE, dataclasses.replace(BASE, provider="azure")),
    "V07-model": (BASE, dataclasses.replace(BASE, model="gpt-2")),
    "V07-effort": (BASE, dataclasses.replace(BASE, reasoning_effort="off")),
    "V07-output cap": (BASE, dataclasses.replace(BASE, max_tokens=1)),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_V07_configs_differ_by_every_field(one: CallConfig, other: CallConfig) -> None:
    assert one != other
    assert dataclasses.replace(one) == one
    assert len({one, other, dataclasses.replace(one)}) == 2


def test_a_config_cannot_be_edited() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.model = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_encoded_bytes_of_a_tool_are_no_part_of_its_value() -> None:
    encoded, fresh = (ToolSpec("f", "does f", {"type": "object"}) for _ in range(2))
    encoded.wire["openai"] = b"{}"
    assert encoded == fresh
    assert hash(encoded) == hash(fresh)
    assert fresh.wire == {}
    assert fresh != ToolSpec("f", "does f", {"type": "object", "properties": {}})


def test_the_text_of_a_reply_is_that_of_its_message() -> None:
    message = assistant_message("hello", provider="p", model="m")
    reply = ModelReply(message, Usage(1, 2), Finish("stop"))
    assert (reply.text, reply.attempts) == ("hello", 1)
