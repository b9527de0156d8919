"""The tools of a very small model: same names, fewer arguments, whole files, and no giving up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.sandbox.local import LocalSandbox
from app.schema.message import ToolCallBlock
from app.schema.run import RunContext
from app.tools.small import SmallEditor, SmallPython, SmallTerminate
from app.tools.toolbox import Toolbox, ToolOutcome


@pytest.fixture
def toolbox(tmp_path: Path) -> Toolbox:
    tools = (SmallPython(LocalSandbox(tmp_path)), SmallEditor(tmp_path), SmallTerminate())
    return Toolbox(*tools, approve="auto", workspace=tmp_path)


async def call(toolbox: Toolbox, name: str, **arguments: object) -> ToolOutcome:
    return await toolbox.call(ToolCallBlock("c", name, json.dumps(arguments)), RunContext())


async def test_files_are_written_whole_and_over(toolbox: Toolbox, tmp_path: Path) -> None:
    first = await call(toolbox, "str_replace_editor", command="create", path="a/b.txt", file_text="1\n2\n")
    again = await call(toolbox, "str_replace_editor", command="create", path="a/b.txt", file_text="3\n")
    shown = await call(toolbox, "str_replace_editor", command="view", path="a/b.txt")
    assert [first.block.text, again.block.text] == ["wrote a/b.txt (2 lines)", "wrote a/b.txt (1 lines)"]
    assert (tmp_path / "a/b.txt").read_text() == "3\n"
    assert shown.block.text.split() == ["1", "3"]


async def test_files_stay_inside_the_workspace(toolbox: Toolbox, tmp_path: Path) -> None:
    outcome = await call(toolbox, "str_replace_editor", command="create", path="../out.txt", file_text="x")
    assert not outcome.ok
    assert "outside the workspace" in outcome.block.text
    assert not (tmp_path.parent / "out.txt").exists()
    folder = await call(toolbox, "str_replace_editor", command="create", path=".", file_text="x")
    assert folder.block.text == "error: . is a folder"


async def test_python_runs_and_asks_like_the_full_tool(toolbox: Toolbox) -> None:
    outcome = await call(toolbox, "python_execute", code="print(6 * 7)")
    assert (outcome.ok, outcome.block.text) == (True, "42")
    crossing = await call(toolbox, "python_execute", code="import os; os.remove('/etc/passwd')")
    assert crossing.code == "TOOL_DENIED"


async def test_terminate_ends_with_the_answer(toolbox: Toolbox) -> None:
    outcome = await call(toolbox, "terminate", answer="42", status="failure")
    assert outcome.ends_run is not None
    assert (outcome.ends_run.status, outcome.ends_run.answer) == ("success", "42")


def test_the_schemas_are_short(toolbox: Toolbox) -> None:
    assert {spec.name: sorted(spec.parameters["properties"]) for spec in toolbox.specs} == {
        "python_execute": ["code"],
        "str_replace_editor": ["command", "file_text", "path"],
        "terminate": ["answer"],
    }
