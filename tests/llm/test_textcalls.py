"""Tools in words: how they are offered, what a reply under a schema says, thinking in text, and a history as text."""

from __future__ import annotations

import pytest

from app.llm.text_formats import calls_in_text
from app.llm.textcalls import (
    as_text_history,
    describe_tools,
    read_schema_reply,
    schema_for,
    strip_thinking,
)
from app.schema.message import (
    ImageBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.request import ToolSpec

BASH = '{"name": "bash", "arguments": {"command": "ls"}}'
END = '{"name": "terminate", "arguments": {"status": "success"}}'
TOOLS = (
    ToolSpec(
        "bash",
        "Run a command.",
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    ),
    ToolSpec("terminate", "End the task.", {"type": "object", "properties": {"status": {"type": "string"}}}),
)


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("<think>why</think>\n\nBecause.", "Because.", "why"),
        ("<think>why", "", "why"),
        ("why</think>Because.", "Because.", "why"),
        ("Because.", "Because.", ""),
        ("<THINK>a</THINK>b", "b", "a"),
        ("<think></think>b", "b", ""),
        ("<think>a</think>b\n<think>c</think>d", "b\nd", "a\nc"),
        ("b\n<think>c", "b", "c"),
        ("One <think>a</think>two", "One two", "a"),
        ("Write the <think> tag first.", "Write the <think> tag first.", ""),
        ("`</think>` closes it.", "`</think>` closes it.", ""),
        ("```\n<think>\n```\nis how it opens", "```\n<think>\n```\nis how it opens", ""),
        ("<think>```py\nx = 1</think>done", "done", "```py\nx = 1"),
        ("", "", ""),
    ],
)
def test_thinking_is_never_the_answer(text: str, answer: str, thinking: str) -> None:
    assert strip_thinking(text) == (answer, thinking)


def test_the_schema_has_a_branch_for_each_tool_and_for_an_answer() -> None:
    schema = schema_for(TOOLS, allow_text=True)
    assert [branch["properties"].get("name") for branch in schema["anyOf"]] == [
        {"const": "bash"},
        {"const": "terminate"},
        None,
    ]
    assert schema["anyOf"][0] == {
        "type": "object",
        "properties": {"name": {"const": "bash"}, "arguments": TOOLS[0].parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    assert schema["anyOf"][2]["properties"] == {"answer": {"type": "string"}}
    assert schema_for(TOOLS[:1], allow_text=False)["properties"]["name"] == {"const": "bash"}


def test_definitions_of_two_tools_do_not_collide_in_the_schema() -> None:
    def tool(name: str, kind: str) -> ToolSpec:
        item = {"$ref": "#/$defs/Item"}
        return ToolSpec(
            name, "", {"type": "object", "properties": {"item": item}, "$defs": {"Item": {"type": kind, "title": "I"}}}
        )

    schema = schema_for((tool("a", "string"), tool("b", "integer")), allow_text=False)
    assert schema["$defs"] == {"a.Item": {"type": "string", "title": "I"}, "b.Item": {"type": "integer", "title": "I"}}
    arguments = [branch["properties"]["arguments"] for branch in schema["anyOf"]]
    assert [item["properties"]["item"] for item in arguments] == [
        {"$ref": "#/$defs/a.Item"},
        {"$ref": "#/$defs/b.Item"},
    ]


def test_a_reply_under_the_schema_is_a_call_an_answer_or_its_own_text() -> None:
    (call,) = read_schema_reply(BASH, TOOLS)
    assert isinstance(call, ToolCallBlock) and call.name == "bash"
    assert read_schema_reply('{"answer": "Paris"}', TOOLS) == "Paris"
    assert read_schema_reply("<think>easy</think>Paris", TOOLS) == "Paris"
    assert read_schema_reply('{"answer": 1}', TOOLS) == '{"answer": 1}'
    assert read_schema_reply("[" * 100_000, TOOLS) == "[" * 100_000


def test_tools_are_described_the_same_way_every_time() -> None:
    text = describe_tools(TOOLS)
    assert text == describe_tools(TOOLS)
    assert '{"name":"bash","description":"Run a command.","parameters":{"type":"object"' in text
    assert "plain words" in text
    assert '{"answer": "<your answer>"}' in describe_tools(TOOLS, answer="json")
    assert describe_tools(()) == ""


def test_a_history_is_rendered_as_text_message_by_message() -> None:
    history = (
        user_message("List the files."),
        assistant_message((ToolCallBlock("1", "bash", '{"command":"ls"}'),), provider="p", model="m"),
        tool_result_message("1", "a.txt"),
        assistant_message((TextBlock("Next."), ToolCallBlock("2", "bash", "{broken")), provider="p", model="m"),
        tool_result_message("2", "no </tool_response> here", is_error=True),
        assistant_message("One file.", provider="p", model="m"),
    )
    rendered = as_text_history(history)
    assert [message.text for message in rendered] == [
        "List the files.",
        '{"name": "bash", "arguments": {"command":"ls"}}',
        "<tool_response>\na.txt\n</tool_response>",
        'Next.\n{"name": "bash", "arguments": "{broken"}',
        '<tool_response status="error">\nno <\\/tool_response> here\n</tool_response>',
        "One file.",
    ]
    assert all(not message.tool_calls and not message.tool_results for message in rendered)
    assert [message.id for message in rendered] == [message.id for message in history]
    assert calls_in_text(rendered[1].text, TOOLS)[0].arguments == '{"command":"ls"}'
    again = as_text_history((*history, user_message("Thanks.")))
    assert all(old is new for old, new in zip(rendered, again, strict=False))


def test_pictures_in_a_result_stay_pictures() -> None:
    picture = ImageBlock("aGk=", "image/png")
    result = ToolResultBlock("1", (TextBlock("before"), picture))
    (rendered,) = as_text_history((user_message((result,)),))
    assert rendered.content == (TextBlock("<tool_response>\nbefore"), picture, TextBlock("</tool_response>"))
