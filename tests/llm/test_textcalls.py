"""Tool calls from plain text: what counts as a call, what never does, and the way back into a history."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.llm.textcalls import (
    as_text_history,
    calls_in_text,
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

NAMES = {"bash", "terminate"}
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


def pairs(text: str) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls_in_text(text, NAMES)]


ONE = [("bash", '{"command":"ls"}')]
TWO = [*ONE, ("terminate", '{"status":"success"}')]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BASH, ONE),
        (f"\n  {BASH}\n", ONE),
        (f"```json\n{BASH}\n```", ONE),
        (f"```\n{BASH}\n```", ONE),
        (f"```json\r\n{BASH}\r\n```", ONE),
        (f"```json\n{BASH}", ONE),
        (f"```json\n[{BASH}, {END}]\n```", TWO),
        (f"<tool_call>{BASH}</tool_call>", ONE),
        (f"<tool_call>\n{BASH}\n</tool_call>\n<tool_call>\n{END}", TWO),
        (f"{BASH}\n{END}", TWO),
        (f"{BASH}{END}", TWO),
        (f"[{BASH}, {END}]", TWO),
        ('{"name": "bash", "parameters": {"command": "ls"}}', ONE),
        ('{"function": {"name": "bash", "arguments": {"command": "ls"}}, "id": "x", "type": "function"}', ONE),
        ('{"function": "bash", "arguments": {"command": "ls"}}', ONE),
        ('{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}', [("bash", '{"command": "ls"}')]),
        ('{"name": "bash", "arguments": null}', [("bash", "{}")]),
        ('{"name": "bash", "arguments": {"command": "é 中"}}', [("bash", '{"command":"é 中"}')]),
        (f"<think>ls, perhaps?</think>\n{BASH}", ONE),
        (f"ls, perhaps?</think>\n{BASH}", ONE),
        (f"<think>a</think> <think>b</think>```json\n{BASH}\n```", ONE),
        (f"{BASH}\n<think>and now", ONE),
    ],
)
def test_a_text_that_is_nothing_but_calls_is_read_as_calls(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "<think>still thinking",
        f"<think>{BASH}",
        f"<think>{BASH}</think>",
        f"I will run this: {BASH}",
        f"{BASH} That lists the files.",
        f"For example:\n```json\n{BASH}\n```",
        f"```json\n{BASH}\n```\nThis is how a call looks.",
        f"```json\n{BASH}\n```\n```json\n{END}\n```\nTwo of them.",
        f"```python\n{BASH}\n```",
        f"<tool_call>{BASH}</tool_call> done",
        '{"name": "rm_everything", "arguments": {}}',
        f'[{BASH}, {{"name": "other", "arguments": {{}}}}]',
        '{"name": "bash"}',
        '{"name": "bash", "arguments": [1]}',
        '{"name": "bash", "arguments": {}, "parameters": {}}',
        '{"name": "bash", "description": "Runs a command.", "parameters": {"type": "object"}}',
        '{"name": ["bash"], "arguments": {}}',
        '{"name": "bash", "function": {"name": "terminate", "arguments": {}}}',
        '{"name": "bash", "arguments": {"n": NaN}}',
        '{"name": "bash", "arguments": {"n": 1e999}}',
        '{"name": "bash", "arguments": {"command": "l',
        '{"command": "ls"}',
        "[]",
        "{}",
        "42",
        "The set {1, 2} and the map {a: b} are left alone.",
    ],
)
def test_anything_else_is_an_answer(text: str) -> None:
    assert pairs(text) == []


def test_every_call_has_an_id_of_its_own() -> None:
    ids = [call.id for call in calls_in_text(BASH * 3, NAMES)]
    assert len(set(ids)) == 3
    assert all(id_.startswith("call-") and len(id_) == 13 for id_ in ids)


def test_arguments_that_speak_of_tags_and_fences_are_not_touched() -> None:
    command = "<think>a</think> </tool_call> ```json <tool_call>"
    raw = json.dumps({"name": "bash", "arguments": {"command": command}})
    for text in (raw, f"```json\n{raw}\n```", f"<tool_call>{raw}</tool_call>", f"<think>x</think>{raw}"):
        (call,) = calls_in_text(text, NAMES)
        assert json.loads(call.arguments) == {"command": command}


def test_a_lone_surrogate_stays_sendable() -> None:
    (call,) = calls_in_text('{"name": "bash", "arguments": {"command": "\\ud800"}}', NAMES)
    assert call.arguments.encode() == b'{"command":"\\ud800"}'


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"name": "bash", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        "<tool_call>" * 100_000,
        "<think>" * 100_000,
        "</think>" * 100_000,
        "<think>\n" * 100_000 + BASH,
        "```\n" * 100_000,
        " " * 500_000 + "x",
        '{"name": "bash", "arguments": {"a": ' + "1" * 100_000 + "}}",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_neither_crashes_nor_takes_long(text: str) -> None:
    began = time.perf_counter()
    assert calls_in_text(text, NAMES) == ()
    strip_thinking(text)
    assert time.perf_counter() - began < 1.0


WORDS = st.text(alphabet="abc XYZ.,:!?éß中{}[]\"'`<>/\n", min_size=1).filter(lambda s: any(c.isalpha() for c in s))


@settings(deadline=None)
@given(
    before=WORDS, after=WORDS, shape=st.sampled_from([BASH, f"```json\n{BASH}\n```", f"<tool_call>{BASH}</tool_call>"])
)
def test_a_call_beside_prose_is_never_run(before: str, after: str, shape: str) -> None:
    assert calls_in_text(f"{before} {shape}", NAMES) == ()
    assert calls_in_text(f"{shape} {after}", NAMES) == ()
    assert calls_in_text(f"{before} {shape} {after}", NAMES) == ()


@settings(deadline=None)
@given(st.text())
def test_arbitrary_text_is_never_a_call_and_never_raises(text: str) -> None:
    assert calls_in_text(text, NAMES) == ()
    strip_thinking(text)


ARGUMENTS = st.dictionaries(
    st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=3), max_size=5
)


@settings(deadline=None)
@given(ARGUMENTS, st.booleans())
def test_arguments_survive_unchanged(arguments: dict[str, object], ascii_only: bool) -> None:
    raw = json.dumps({"name": "bash", "arguments": arguments}, ensure_ascii=ascii_only)
    (call,) = calls_in_text(f"<tool_call>\n{raw}\n</tool_call>", NAMES)
    assert json.loads(call.arguments) == arguments
    call.arguments.encode()


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
    (call,) = read_schema_reply(BASH, NAMES)
    assert isinstance(call, ToolCallBlock) and call.name == "bash"
    assert read_schema_reply('{"answer": "Paris"}', NAMES) == "Paris"
    assert read_schema_reply("<think>easy</think>Paris", NAMES) == "Paris"
    assert read_schema_reply('{"answer": 1}', NAMES) == '{"answer": 1}'
    assert read_schema_reply("[" * 100_000, NAMES) == "[" * 100_000


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
    assert calls_in_text(rendered[1].text, NAMES)[0].arguments == '{"command":"ls"}'
    again = as_text_history((*history, user_message("Thanks.")))
    assert all(old is new for old, new in zip(rendered, again, strict=False))


def test_pictures_in_a_result_stay_pictures() -> None:
    picture = ImageBlock("aGk=", "image/png")
    result = ToolResultBlock("1", (TextBlock("before"), picture))
    (rendered,) = as_text_history((user_message((result,)),))
    assert rendered.content == (TextBlock("<tool_response>\nbefore"), picture, TextBlock("</tool_response>"))
