"""Public bug reports about characters: escapes, code pages, line ends, bytes that are no text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from app.llm.adapters.wire import dumps
from app.llm.text_formats import calls_in_text
from app.prompts import Prompts
from app.sandbox.local import LocalSandbox
from app.schema.message import ToolCallBlock, message_to_json, user_message
from app.schema.request import ToolSpec
from app.schema.run import RunContext
from app.tools.arguments import read_arguments
from app.tools.str_replace_editor import StrReplaceEditor
from app.tools.toolbox import Toolbox
from tests.agents.rig import Yes
from tests.fault_server import call, reply
from tests.llm.asking import BASH
from tests.llm.conftest import MakeLLM

COCKTAIL = "\U0001f378"
PAIR = '{"s":"\\ud83c\\udf78"}'
ANY = {"type": "object", "properties": {"s": {"type": "string"}}}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("raw", [PAIR, f"```json\n{PAIR}\n```", f"{PAIR[:-1]},}}", json.dumps(PAIR)])
def test_b246_an_escaped_pair_is_one_character(raw: str) -> None:
    """agent0ai/agent-zero#1773"""
    assert read_arguments(raw, ANY)[0] == {"s": COCKTAIL}


async def test_b246_also_from_the_wire_and_in_text(make_llm: MakeLLM) -> None:
    llm, _ = await make_llm([reply("", tool_calls=[call("bash", '{"command":"\\ud83c\\udf78"}')])])
    (made,) = (await llm.ask_tool("hi", tools=(BASH,))).message.tool_calls
    assert json.loads(made.arguments) == {"command": COCKTAIL}
    (read,) = calls_in_text('{"name": "bash", "arguments": {"command": "\\ud83c\\udf78"}}', [BASH])
    assert json.loads(read.arguments) == {"command": COCKTAIL}


async def test_b248_bytes_of_another_code_page_lose_no_output(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """microsoft/autogen#1745"""
    monkeypatch.setenv("LC_ALL", "zh_CN.GBK")
    sandbox = LocalSandbox(workspace)
    code = "import sys; sys.stdout.buffer.write(b'one \\xb3\\xc9 two \\x81 three\\n')"
    for _ in range(2):
        got = await sandbox.run([sys.executable, "-c", code], timeout_s=10)
        assert got.stdout.replace("\ufffd", "") == "one  two  three\n"
    await sandbox.close()


def test_b249_what_is_stored_can_be_read() -> None:
    """browser-use/browser-use#3878"""
    stored = dumps(message_to_json(user_message("你好 👍"))).decode()
    assert "你好 👍" in stored
    assert "\\u" not in stored


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_b251_line_ends_of_a_models_block_are_no_part_of_its_code(end: str) -> None:
    """gptme/gptme#3499"""
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    python = ToolSpec("python_execute", "Run.", schema)
    text = end.join(("```python", "x = 1", "print(x)", "```"))
    (made,) = calls_in_text(text, [python], asked_in_text=True)
    assert json.loads(made.arguments) == {"code": "x = 1\nprint(x)"}


async def test_b251_a_file_keeps_its_own_line_ends(workspace: Path, ctx: RunContext) -> None:
    box = Toolbox(StrReplaceEditor(workspace), approver=Yes(), workspace=workspace)
    (workspace / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    edit = {"command": "str_replace", "path": "dos.txt", "old_str": "two", "new_str": "2"}
    assert (await box.call(ToolCallBlock("c", "str_replace_editor", json.dumps(edit)), ctx)).ok
    assert (workspace / "dos.txt").read_bytes() == b"one\r\n2\r\n"


async def test_b252_a_byte_kept_as_a_surrogate_breaks_no_request(make_llm: MakeLLM) -> None:
    """Nayjest/ai-microcore#74"""
    stray = b"caf\x97".decode("utf-8", "surrogateescape")
    assert stray == "caf\udc97"
    llm, server = await make_llm([reply("ok"), reply("ok")])
    await llm.ask(stray)
    await llm.ask("hi", system=Prompts().render("manus/system", workspace=stray))
    asked = [request.json["messages"] for request in server.chats]
    assert asked[0][-1]["content"] == "caf\ufffd"
    assert "caf\ufffd" in asked[1][0]["content"]
