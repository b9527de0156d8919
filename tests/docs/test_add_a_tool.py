"""The worked example of `docs/add-a-tool.md` runs as it is printed."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.schema.message import ToolCallBlock
from app.schema.run import RunContext
from app.tools.approval import ApprovalRequest, Decision

PAGE = Path(__file__).parents[2] / "docs" / "add-a-tool.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = types.ModuleType("docs_add_a_tool")
    # Annotations are looked up through the module table.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), module.__dict__)
    yield module


class Yes:
    async def approve(self, request: ApprovalRequest, ctx: RunContext) -> Decision:
        return Decision(request.preview == "buy milk")


async def test_both_forms_of_the_example_run(example: types.ModuleType, tmp_path: Path, ctx: RunContext) -> None:
    notes = tmp_path / "notes.txt"
    box = example.my_tools(notes, approver=Yes())
    assert [(spec.name, spec.description) for spec in box.specs] == [
        ("count_words", "Count the words of a text."),
        ("keep_note", "Add a line to the user's notes."),
    ]
    assert box.specs[1].parameters == {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 1, "description": "one line"}},
        "required": ["text"],
    }
    assert (box.is_read("count_words"), box.is_read("keep_note")) == (True, False)
    counted = await box.call(ToolCallBlock("a", "count_words", '{"text": "one two three"}'), ctx)
    assert (counted.block.text, counted.ok) == ("3", True)
    noted = await box.call(ToolCallBlock("b", "keep_note", '{"text": "buy milk"}'), ctx)
    assert noted.block.text == "noted"
    denied = await box.call(ToolCallBlock("c", "keep_note", '{"text": "other"}'), ctx)
    assert denied.code == "TOOL_DENIED"
    assert notes.read_text(encoding="utf-8") == "buy milk\n"


async def test_its_approval_crosses_the_border(example: types.ModuleType, tmp_path: Path, ctx: RunContext) -> None:
    box = example.my_tools(tmp_path / "notes.txt", approve="auto")
    refused = await box.call(ToolCallBlock("b", "keep_note", '{"text": "buy milk"}'), ctx)
    assert "may reach outside the workspace" in refused.block.text


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 90
