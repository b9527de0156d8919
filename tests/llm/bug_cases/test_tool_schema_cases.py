"""Public bug reports about tools and their arguments, from the name of a tool to what a model sends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from app.llm.text_formats import calls_in_text
from app.schema.errors import ToolError
from app.schema.message import ToolCallBlock
from app.schema.request import ToolSpec
from app.schema.run import RunContext
from app.tools.arguments import bind_arguments, read_arguments
from app.tools.base import Args, argument_schema, tool
from app.tools.toolbox import Toolbox


def named(name: str, answer: str) -> Any:
    def work() -> str:
        """Work."""
        return answer

    return tool(work, name=name, effect="read")


async def result(box: Toolbox, name: str, arguments: str, ctx: RunContext) -> str:
    return (await box.call(ToolCallBlock("c1", name, arguments), ctx)).block.text


def read(model: type[Args], raw: str) -> Any:
    return bind_arguments(model, read_arguments(raw, argument_schema(model))[0])


async def test_b077_two_servers_whose_names_run_together_clash_at_registration(ctx: RunContext) -> None:
    """macanderson/stella#2675"""
    with pytest.raises(ValueError, match="two tools are called 'mcp_acme__status'"):
        Toolbox(named("mcp_acme__status", "of acme_"), named("mcp_acme__status", "of acme"))


async def test_b078_no_tool_is_lost_by_a_name_and_two_may_swap_theirs(ctx: RunContext) -> None:
    """pydantic/pydantic-ai#6462"""
    with pytest.raises(ValueError, match="two tools are called 'b'"):
        Toolbox(named("b", "a renamed"), named("b", "b"))
    swapped = Toolbox(named("b", "I was a"), named("a", "I was b"))
    assert [await result(swapped, name, "{}", ctx) for name in ("a", "b")] == ["I was b", "I was a"]


def test_b086_arguments_are_described_also_right_after_prose() -> None:
    """openai/openai-agents-python#3832"""

    def weather(city: str, units: str = "metric") -> str:
        """The weather of a city.

        Note:
            It is of yesterday.
        Args:
            city: The name of the city,
                in English.
            units (str): `metric` or `imperial`.

        Returns:
            One line.
        """
        return f"{city} {units}"

    properties = tool(weather).spec.parameters["properties"]
    assert {name: field.get("description") for name, field in properties.items()} == {
        "city": "The name of the city, in English.",
        "units": "`metric` or `imperial`.",
    }


def test_b087_the_words_of_a_section_inside_a_sentence_are_no_section() -> None:
    """huggingface/smolagents#1146"""

    def work(x: int) -> str:
        """Function with Args: or Returns: keywords in its description.

        Args:
            x: A number.
        """
        return str(x)

    spec = tool(work).spec
    assert spec.description.splitlines()[0] == "Function with Args: or Returns: keywords in its description."
    assert spec.parameters["properties"]["x"]["description"] == "A number."


class Numbers(Args):
    n: float = 0
    i: int = 0


@pytest.mark.parametrize(
    ("raw", "expected"),
    [('{"n": 1}', (1.0, 0)), ('{"i": 1.0}', (0.0, 1)), ('{"i": "1"}', (0.0, 1)), ('{"n": "1.5"}', (1.5, 0))],
)
def test_b089_numbers_in_every_spelling(raw: str, expected: tuple[float, int]) -> None:
    """huggingface/smolagents#1623"""
    got = read(Numbers, raw)
    assert (got.n, got.i) == expected
    assert type(got.i) is int


@pytest.mark.parametrize("raw", ['{"i": true}', '{"n": true}', '{"i": 1.5}'])
def test_b089_what_is_no_number(raw: str) -> None:
    with pytest.raises(ToolError, match="input should be a"):
        read(Numbers, raw)


class Payload(BaseModel):
    x: int = 0


class Nested(BaseModel):
    argument: int = 0


class TakesPayload(Args):
    argument: Payload


class TakesNested(Args):
    argument: Nested


def test_b090_an_only_argument_may_be_left_unwrapped_and_is_never_unwrapped_twice() -> None:
    """pydantic/pydantic-ai#5560"""
    assert read(TakesPayload, '{"argument": {"x": 5}}').argument.x == 5
    assert read(TakesPayload, '{"x": 5}').argument.x == 5
    assert read(TakesNested, '{"argument": {"argument": 5}}').argument.argument == 5
    with pytest.raises(ToolError, match="input should be an object, got 5"):
        read(TakesNested, '{"argument": 5}')


FREE: dict[str, Any] = {"type": "object", "properties": {"author": {}, "max_results": {}, "to": {}, "key": {}}}


def test_b095_arguments_encoded_twice_are_decoded_twice_and_no_third_time() -> None:
    """crewAIInc/crewAI#1649"""
    once = json.dumps({"author": "", "max_results": 10})
    assert read_arguments(json.dumps(once), FREE)[0] == {"author": "", "max_results": 10}
    with pytest.raises(ToolError, match="input should be an object, got text"):
        read_arguments(json.dumps(json.dumps(once)), FREE)


def test_b096_arguments_in_a_fence_with_a_dot_behind_it() -> None:
    """crewAIInc/crewAI#923"""
    assert read_arguments('```json\n{\n "to": "a@example.com"\n}\n```.', FREE)[0] == {"to": "a@example.com"}


@pytest.mark.parametrize("value", [0, False, "", []])
async def test_b098_values_that_count_as_false_are_arguments(value: Any, ctx: RunContext) -> None:
    """pydantic/pydantic-ai#4442"""
    seen: list[Any] = []

    def keep(key: Any) -> str:
        """Keep a value."""
        seen.append(key)
        return "kept"

    assert await result(Toolbox(tool(keep, effect="read")), "keep", json.dumps({"key": value}), ctx) == "kept"
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_b099_bold_keywords_of_react() -> None:
    """crewAIInc/crewAI#103"""
    text = '**Thought:** x\n**Action:** search\n**Action Input:** {"q":"a"}'
    search = ToolSpec("search", "Search.", {"type": "object", "properties": {"q": {"type": "string"}}})
    (made,) = calls_in_text(text, [search], asked_in_text=True)
    assert (made.name, json.loads(made.arguments)) == ("search", {"q": "a"})
