"""Tool calls from plain text: every notation models use, what never counts as a call, and hostile text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.llm.text_formats import calls_in_text
from app.llm.textcalls import strip_thinking
from app.schema.request import ToolSpec

BASH = '{"name": "bash", "arguments": {"command": "ls"}}'
END = '{"name": "terminate", "arguments": {"status": "success"}}'
TOOLS = (
    ToolSpec(
        "bash",
        "Run a command.",
        {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout_s": {"type": "number"}},
            "required": ["command"],
        },
    ),
    ToolSpec(
        "python_execute",
        "Run code.",
        {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    ),
    ToolSpec(
        "terminate", "End the task.", {"type": "object", "properties": {"status": {"enum": ["success", "failure"]}}}
    ),
    ToolSpec(
        "planning",
        "Plan.",
        {
            "type": "object",
            "properties": {"title": {"type": "string"}, "steps": {"type": "array"}, "step": {"type": "integer"}},
            "required": ["title", "steps"],
        },
    ),
)


def pairs(text: str) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls_in_text(text, TOOLS)]


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


LS = [("bash", {"command": "ls"})]
PLAN = [("planning", {"title": "Ship it", "steps": ["a", "b"], "step": 2})]
CODE = "if x < 3:\n    print('</p>')\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Hermes, Qwen 2.5 and 3, Granite, Phi
        (f"<tool_calls><tool_call>{BASH}</tool_call></tool_calls><|im_end|>", LS),
        (f"<|tool_call|>[{BASH}]<|/tool_call|>", LS),
        ('<tool_call>{"name": "functions.bash", "arguments": {"command": "ls"}}</tool_call>', LS),
        # Llama
        ('<|python_tag|>{"name": "bash", "parameters": {"command": "ls"}}<|eom_id|>', LS),
        (
            '{"name": "bash", "parameters": {"command": "ls"}}; {"name": "bash", "parameters": {"command": "ls"}}',
            LS * 2,
        ),
        ('<function=bash>{"command": "ls"}</function>', LS),
        ('<function=bash>{"command": "ls"}</function><|eom_id|>', LS),
        ('[bash(command="ls")]', LS),
        ('<|python_tag|>bash.call(command="ls")', LS),
        ("[bash(command='ls'), planning(title='Ship it', steps=['a', 'b'], step=2)]<|eot_id|>", LS + PLAN),
        # Mistral
        (f"[TOOL_CALLS] [{BASH}]</s>", LS),
        ('[TOOL_CALLS]bash[ARGS]{"command": "ls"}', LS),
        ('[TOOL_CALLS]bash{"command": "ls"}[TOOL_CALLS]bash[CALL_ID]abc[ARGS]{"command": "ls"}', LS * 2),
        # DeepSeek
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n"
            '{"command": "ls"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            LS,
        ),
        (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>'
            '<｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            LS * 2,
        ),
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="planning">\n'
            '<｜DSML｜parameter name="title" string="true">Ship it</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="steps" string="false">["a", "b"]</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="step" string="false">2</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            PLAN,
        ),
        # Qwen3-Coder
        (
            "<tool_call>\n<function=planning>\n<parameter=title>\nShip it\n</parameter>\n<parameter=steps>\n"
            '["a", "b"]\n</parameter>\n<parameter=step>\n2\n</parameter>\n</function>\n</tool_call>',
            PLAN,
        ),
        ("<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", LS),
        (
            f"<function=python_execute>\n<parameter=code>\n{CODE}\n</parameter>\n</function>",
            [("python_execute", {"code": CODE})],
        ),
        (
            "<function=python_execute><parameter=code>\ns = '</parameter>'\n</parameter></function>",
            [("python_execute", {"code": "s = '</parameter>'"})],
        ),
        ("<function=terminate>\n</function>", [("terminate", {})]),
        # MiniMax, GLM, Kimi, gpt-oss
        (
            '<minimax:tool_call><invoke name="bash"><parameter name="command">ls</parameter></invoke>'
            "</minimax:tool_call>",
            LS,
        ),
        ("<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>", LS),
        (
            "<tool_call>planning<arg_key>title</arg_key><arg_value>Ship it</arg_value><arg_key>steps</arg_key>"
            '<arg_value>["a", "b"]</arg_value><arg_key>step</arg_key><arg_value>2</arg_value></tool_call>',
            PLAN,
        ),
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
            '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>',
            LS,
        ),
        ('<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command": "ls"}<|call|>', LS),
        # other key names, and JSON as small models write it
        ('{"tool": "bash", "args": {"command": "ls"}}', LS),
        ('{"name": "bash", "description": "Run ls.", "parameters": {"command": "ls"}}', LS),
        ('{"action": "bash", "action_input": {"command": "ls"}}', LS),
        ('{"tool_name": "bash", "tool_input": {"command": "ls"}}', LS),
        ("{'name': 'bash', 'arguments': {'command': 'ls'}}", LS),
        ('{"name": "python_execute", "arguments": {"code": "a\nb"}}', [("python_execute", {"code": "a\nb"})]),
        # ReAct without a word beside the action
        ('Action: bash\nAction Input: {"command": "ls"}', LS),
        ('Action: bash\nAction Input:\n```json\n{"command": "ls"}\n```', LS),
        # thinking before it
        ("<think>hm</think>\n<function=bash><parameter=command>ls</parameter></function>", LS),
        ('hm</think>[TOOL_CALLS]bash[ARGS]{"command": "ls"}', LS),
    ],
)
def test_every_notation_of_a_call_is_read(text: str, expected: list[tuple[str, object]]) -> None:
    for asked_in_text in (False, True):
        calls = calls_in_text(text, TOOLS, asked_in_text=asked_in_text)
        assert [(call.name, json.loads(call.arguments)) for call in calls] == expected


@pytest.mark.parametrize(
    "text",
    [
        "Llama writes <function=bash>{}</function> then.",
        '<function=bash>{"command": "ls"}</function> lists the files.',
        "<function=unknown><parameter=command>ls</parameter></function>",
        "<function=bash><parameter=command>ls</parameter></function><function=rm><parameter=x>1</parameter></function>",
        "<function=bash><parameter=command>ls",
        "<tool_call>bash<arg_key>command</arg_key><arg_value>ls",
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS]bash[ARGS]",
        '[TOOL_CALLS]bash[ARGS]{"command": "l',
        '[TOOL_CALLS]bash[ARGS]["ls"]',
        "[bash('ls')]",
        "[bash(**{'command': 'ls'})]",
        "[bash(command=open('x'))]",
        "[bash(command='ls') for _ in x]",
        "[bash(command='ls')",
        "bash(command='ls')",
        "[x](y)",
        "<｜tool▁call▁begin｜>bash<｜tool▁sep｜>",
        "<think>Action: bash\nAction Input: {}",
        "Action: bash",
        "Action: unknown\nAction Input: {}",
        '{"name": "bash", "description": "Run a command.", "parameters": {}}',
        '{"name": "bash", "description": "x", "parameters": {"type": "object", "properties": {"command": {}}}}',
        "<tool_call>",
        "<tool_call>bash</tool_call",
        "</s>",
    ],
)
def test_half_a_call_and_a_call_beside_words_are_an_answer(text: str) -> None:
    assert calls_in_text(text, TOOLS) == ()
    assert calls_in_text(text, TOOLS, asked_in_text=True) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```bash\nls -l\ncd x\n```", [("bash", {"command": "ls -l\ncd x"})]),
        ("```sh\nls\n```\n\n```python\nprint(1)\n```", [*LS, ("python_execute", {"code": "print(1)"})]),
        ("  ```py\n  if x:\n      y\n  ```", [("python_execute", {"code": "if x:\n    y"})]),
        ('```python\n"""\n``` not an end\n"""\n```', [("python_execute", {"code": '"""\n``` not an end\n"""'})]),
        ("<think>hm</think>\n```bash\nls\n```", LS),
        ('```planning\ntitle=Ship it\nsteps=["a", "b"]\nstep=2\n```', PLAN),
        ('```planning\n{"title": "Ship it", "steps": ["a", "b"], "step": 2}\n```', PLAN),
        ("```terminate\nstatus=success\n```", [("terminate", {"status": "success"})]),
        ("Thought: I should look.\nAction: bash\nAction Input: ls", LS),
        ('Thought: I should look.\nAction: bash\nAction Input: {"command": "ls"}\nObservation: a.txt\nThought: ok', LS),
        ("Action: bash\nAction Input: ```ls```", LS),
        (
            "Thought: a\nThought: b\nAction: planning\n"
            'Action Input: {"title": "Ship it", "steps": ["a", "b"], "step": 2}',
            PLAN,
        ),
    ],
)
def test_blocks_and_thoughts_are_calls_only_where_tools_were_offered_in_words(
    text: str, expected: list[tuple[str, object]]
) -> None:
    calls = calls_in_text(text, TOOLS, asked_in_text=True)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
    assert calls_in_text(text, TOOLS) == ()


@pytest.mark.parametrize(
    "text",
    [
        "Run this:\n```bash\nls\n```",
        "```bash\nls\n```\nThat lists the files.",
        "```bash\nls\n```\nor\n```bash\ndir\n```",
        "```bash\nls",
        "```bash\n```",
        "```\nls\n```",
        "```rust\nfn main() {}\n```",
        "```bash:run.sh\nls\n```",
        "```python\n{}\n```",
        f"```python\n{BASH}\n```",
        '```planning\n{"name": "planning"}\n```',
        "```planning\njust words\n```",
        "Thought: Action and Action Input are how it works.",
        "Here is ReAct:\nAction: bash\nAction Input: ls",
        "Thought: done\nFinal Answer: 42",
        "Thought: x\nAction: planning\nAction Input: words",
    ],
)
def test_an_explanation_with_code_is_never_run(text: str) -> None:
    assert calls_in_text(text, TOOLS, asked_in_text=True) == ()


def test_every_call_has_an_id_of_its_own() -> None:
    ids = [call.id for call in calls_in_text(BASH * 3, TOOLS)]
    assert len(set(ids)) == 3
    assert all(id_.startswith("call-") and len(id_) == 13 for id_ in ids)


def test_arguments_that_speak_of_tags_and_fences_are_not_touched() -> None:
    command = "<think>a</think> </tool_call> ```json <tool_call>"
    raw = json.dumps({"name": "bash", "arguments": {"command": command}})
    for text in (raw, f"```json\n{raw}\n```", f"<tool_call>{raw}</tool_call>", f"<think>x</think>{raw}"):
        (call,) = calls_in_text(text, TOOLS)
        assert json.loads(call.arguments) == {"command": command}


def test_a_lone_surrogate_stays_sendable() -> None:
    (call,) = calls_in_text('{"name": "bash", "arguments": {"command": "\\ud800"}}', TOOLS)
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
        "<function=bash>" + "<parameter=command>x" * 50_000,
        "<function=bash><parameter=command>" + "</parameter> x" * 50_000,
        "<function=bash><parameter=command>" + "</parameter>" + " " * 300_000 + "x",
        "<tool_call>bash<arg_key>a</arg_key><arg_value>" + "</arg_value>x" * 50_000,
        "[TOOL_CALLS]" + "a" * 300_000,
        "<|tool_call_begin|>" + "a." * 100_000,
        "[a(" * 50_000,
        "[" * 9_000 + "a(",
        "[bash(command=" + "(" * 5_000,
        "{'" * 5_000,
        "```bash\n" * 50_000,
        "Thought: " * 50_000,
        "Action: bash\n" * 50_000,
        "Action: bash\nAction Input:\n" * 30_000 + "x",
        "Observation:\n" * 50_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_text_neither_crashes_nor_takes_long(text: str) -> None:
    began = time.perf_counter()
    assert calls_in_text(text, TOOLS) == ()
    calls_in_text(text, TOOLS, asked_in_text=True)
    strip_thinking(text)
    assert time.perf_counter() - began < 1.0


WORDS = st.text(alphabet="abc XYZ.,:!?éß中{}[]\"'`<>/\n", min_size=1).filter(lambda s: any(c.isalpha() for c in s))


@settings(deadline=None)
@given(
    before=WORDS, after=WORDS, shape=st.sampled_from([BASH, f"```json\n{BASH}\n```", f"<tool_call>{BASH}</tool_call>"])
)
def test_a_call_beside_prose_is_never_run(before: str, after: str, shape: str) -> None:
    assert calls_in_text(f"{before} {shape}", TOOLS) == ()
    assert calls_in_text(f"{shape} {after}", TOOLS) == ()
    assert calls_in_text(f"{before} {shape} {after}", TOOLS) == ()


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=bash>", "</function>", "<parameter=command>", "</parameter>"),
        *("[TOOL_CALLS]", "[ARGS]", "bash", "ls", "{", "}", '{"command":"ls"}', "[bash(", "command='ls'", ")]", "\\"),
        *(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "```json",
            "```bash",
            "```",
            "<|python_tag|>",
            "<think>",
            "</think>",
        ),
        *("<arg_key>", "</arg_key>", "<arg_value>", "Action:", "Action Input:", "Thought:", "Observation:"),
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES | st.sampled_from(["\n", " "]), max_size=30))
def test_any_mixture_of_notations_gives_calls_to_offered_tools_or_none(pieces: list[str]) -> None:
    for asked_in_text in (False, True):
        calls = calls_in_text("".join(pieces), TOOLS, asked_in_text=asked_in_text)
        assert {call.name for call in calls} <= {"bash"}
        assert len({call.id for call in calls}) == len(calls)


@settings(deadline=None)
@given(st.text())
def test_arbitrary_text_is_never_a_call_and_never_raises(text: str) -> None:
    assert calls_in_text(text, TOOLS) == ()
    strip_thinking(text)


ARGUMENTS = st.dictionaries(
    st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=3), max_size=5
)


@settings(deadline=None)
@given(ARGUMENTS, st.booleans())
def test_arguments_survive_unchanged(arguments: dict[str, object], ascii_only: bool) -> None:
    raw = json.dumps({"name": "bash", "arguments": arguments}, ensure_ascii=ascii_only)
    (call,) = calls_in_text(f"<tool_call>\n{raw}\n</tool_call>", TOOLS)
    assert json.loads(call.arguments) == arguments
    call.arguments.encode()
