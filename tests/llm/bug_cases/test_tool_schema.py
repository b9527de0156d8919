"""Public bug reports about tool descriptions: what each wire is sent of a schema, a name and its words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.llm.tool_schemas import CUT, fitted, usable, wire_name, with_own_names
from app.schema.message import Message, ToolCallBlock, user_message
from app.schema.request import ToolSpec


def spec(parameters: dict[str, Any], name: str = "f", description: str = "Does it.") -> ToolSpec:
    return ToolSpec(name, description, parameters)


def test_b075_names_with_slashes_and_dots_become_legal_and_come_back() -> None:
    """FoundationAgents/OpenManus#1143"""
    tool = spec({"type": "object", "properties": {}}, "mcp_files/local.v1_read.file")
    name = fitted(tool, "chat").name
    assert name == wire_name(tool.name) == "mcp_files_local_v1_read_file-" + name[-8:]
    assert len(wire_name("x" * 90)) == 64
    assert wire_name("a.b") != wire_name("a/b")
    said: Message = user_message("x").replace(content=(ToolCallBlock("c1", name, "{}"),))
    assert [call.name for call in with_own_names(said, (tool,)).tool_calls] == [tool.name]


def test_b080_members_of_all_of_are_visited() -> None:
    """pydantic/pydantic-ai#6394"""
    one = {"type": "object", "properties": {"a": {"type": "string", "$comment": "x"}}}
    two = {"type": "object", "properties": {"b": {"type": "integer"}}}
    expected = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    assert fitted(spec({"allOf": [one, two]}), "chat").parameters == expected
    nested = {"type": "object", "properties": {"x": {"allOf": [one, two]}}}
    assert fitted(spec(nested), "gemini").parameters == {"type": "object", "properties": {"x": expected}}


def test_b081_a_map_shows_that_it_has_no_fixed_properties() -> None:
    """pydantic/pydantic-ai#3712"""
    given = {"type": "object", "properties": {"env": {"type": "object", "additionalProperties": {"type": "string"}}}}
    env = fitted(spec(given), "chat").parameters["properties"]["env"]
    assert env == {"type": "object", "additionalProperties": {"type": "string"}, "properties": {}}


def test_b083_a_schema_too_deep_loses_its_tool_alone() -> None:
    """openai/openai-agents-python#4358"""
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(1000):
        deep = {"type": "object", "properties": {"x": deep}}
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(1000)}
    good = spec({"type": "object", "properties": {}}, "good")
    linked = {"$ref": "#/$defs/d0", "$defs": chain}
    kept, refused = usable((spec(deep, "deep"), spec(linked, "linked"), good))
    assert kept == (good,)
    assert [(each.name, each.why) for each in refused] == [
        ("deep", "its schema is nested deeper than 60 levels"),
        ("linked", "its schema is nested deeper than 60 levels"),
    ]


@pytest.mark.parametrize(("rungs", "why"), [(15, "has more than 5000 parts"), (30, "is nested deeper than 60 levels")])
def test_b084_a_ladder_of_references_is_refused_at_once(rungs: int, why: str) -> None:
    """openai/openai-agents-python#3838"""
    ladder: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{i + 1}"} for k in "ab"}}
        for i in range(rungs)
    }
    ladder[f"d{rungs}"] = {"type": "string"}
    started = time.monotonic()
    kept, refused = usable((spec({"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": ladder}),))
    assert (kept, refused[0].why) == ((), f"its schema {why}")
    assert time.monotonic() - started < 1


def test_a_reference_to_itself_ends_in_an_open_value() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/t"}}}
    given = {"type": "object", "properties": {"root": {"$ref": "#/$defs/t"}}, "$defs": {"t": tree}}
    root = fitted(spec(given), "chat").parameters["properties"]["root"]
    assert root == {"type": "object", "properties": {"left": {"type": "object"}}}


@pytest.mark.parametrize("letter", ["x", "é", "日", "👍"])
def test_b092_long_words_are_cut_with_a_mark(letter: str) -> None:
    """FoundationAgents/OpenManus#787"""
    tool = spec({"type": "object", "properties": {}}, description=letter * 1100)
    assert fitted(tool, "chat").description == letter * (1024 - len(CUT)) + CUT
    assert fitted(tool, "messages").description == tool.description


@pytest.mark.parametrize("family", ["chat", "responses", "messages", "gemini", "converse"])
def test_b093_a_union_at_the_top_becomes_words(family: Any) -> None:
    """browser-use/browser-use#4212"""
    properties = {name: {"type": "integer"} for name in ("index", "x", "y")}
    union = [{"required": ["index"]}, {"required": ["x", "y"]}]
    tool = fitted(spec({"type": "object", "properties": properties, "oneOf": union}), family)
    assert tool.parameters == {"type": "object", "properties": properties}
    assert tool.description == "Does it.\nGive exactly one of these groups of arguments: index; x, y."


def test_nothing_is_changed_without_need_and_the_work_is_done_once() -> None:
    tool = spec({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    assert fitted(tool, "chat") is tool
    other = spec({"$schema": "x", "type": "object", "properties": {}})
    assert fitted(other, "gemini") is fitted(other, "gemini")


def test_gemini_is_told_in_the_words_it_knows() -> None:
    given = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string", "format": "uri"}, {"type": "null"}]},
            "b": {"const": "x"},
            "c": {"type": "array"},
            "d": True,
            "e": False,
        },
        "additionalProperties": False,
    }
    assert fitted(spec(given), "gemini").parameters["properties"] == {
        "a": {"type": "string"},
        "b": {"enum": ["x"]},
        "c": {"type": "array", "items": {"type": "string"}},
        "d": {},
    }
