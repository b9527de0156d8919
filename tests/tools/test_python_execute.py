"""`python_execute` with a real interpreter."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from app.sandbox.local import LocalSandbox
from app.tools.python_execute import PythonExecute, PythonExecuteArgs
from tests.tools.conftest import Call


async def test_T13_main_guard_and_the_workspace_on_the_path(call: Call, workspace: Path) -> None:
    (workspace / "helper.py").write_text("WORD = 'found'\n")
    code = "import sys, helper\nif __name__ == '__main__':\n    print(helper.WORD, sys.path[0])\n"
    assert (await call("python_execute", code=code)).block.text == f"found {workspace}"


async def test_T13_defect_74_output_and_traceback_with_line(call: Call) -> None:
    outcome = await call("python_execute", code="print('before')\nx = 1\nx / 0\n")
    lines = outcome.block.text.splitlines()
    assert lines[:2] == ["before", "stderr:"]
    assert lines[-2:] == ["ZeroDivisionError: division by zero", "exit code: 1"]
    assert "line 3, in <module>" in outcome.block.text
    assert not outcome.ok


async def test_T13_exit_code(call: Call) -> None:
    outcome = await call("python_execute", code="import sys; sys.exit(2)")
    assert (outcome.block.text, outcome.ok) == ("exit code: 2", False)


async def test_T13_defect_77_files_land_in_the_workspace(call: Call, workspace: Path) -> None:
    outcome = await call("python_execute", code="open('out.txt', 'w').write('日')")
    assert outcome.ok
    assert (workspace / "out.txt").read_text(encoding="utf-8") == "日"
    assert sorted(entry.name for entry in workspace.iterdir()) == [".dragoman", "out.txt"]
    assert list((workspace / ".dragoman/scripts").iterdir()) == []


async def test_defect_75_the_default_limit_is_a_minute_and_can_be_chosen(call: Call) -> None:
    assert PythonExecuteArgs(code="1").timeout_s == 60
    outcome = await call("python_execute", code="print('part')\nimport time\ntime.sleep(50)", timeout_s=0.3)
    assert outcome.block.text.startswith("part\ntimed out after 0.3 s")


async def test_T14_defect_76_the_loop_goes_on(call: Call) -> None:
    task = asyncio.create_task(call("python_execute", code="import time; time.sleep(0.1)"))
    beats, begun = 0, time.monotonic()
    while not task.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert beats >= (time.monotonic() - begun) / 0.01 / 3


async def test_its_standard_input_is_empty(call: Call) -> None:
    outcome = await call("python_execute", code="input()")
    assert "EOFError" in outcome.block.text


async def test_a_script_name_does_not_hide_modules(call: Call) -> None:
    outcome = await call("python_execute", code="import script")
    assert "ModuleNotFoundError: No module named 'script'" in outcome.block.text


def test_code_is_approved_unless_confined(sandbox: LocalSandbox) -> None:
    tool = PythonExecute(sandbox)
    inside = tool.approval(PythonExecuteArgs(code="print(1)"))
    outside = tool.approval(PythonExecuteArgs(code="import socket"))
    assert inside is not None
    assert outside is not None
    assert (inside.crosses_border, outside.crosses_border) == (False, True)
    sandbox.confined = True  # pyright: ignore[reportAttributeAccessIssue]
    assert tool.approval(PythonExecuteArgs(code="import socket")) is None
