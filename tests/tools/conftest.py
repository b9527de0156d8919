"""A workspace, a real local sandbox, and a way to call tools as a model does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.sandbox.local import LocalSandbox
from app.schema.message import ToolCallBlock
from app.schema.run import RunContext
from app.tools.ask_human import AskHuman
from app.tools.bash import Bash
from app.tools.planning import Planning
from app.tools.python_execute import PythonExecute
from app.tools.str_replace_editor import StrReplaceEditor
from app.tools.terminate import Terminate
from app.tools.toolbox import Toolbox, ToolOutcome

Call = Callable[..., Awaitable[ToolOutcome]]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
async def sandbox(workspace: Path) -> AsyncIterator[LocalSandbox]:
    box = LocalSandbox(workspace)
    yield box
    await box.close()


class Yes:
    """An approver that says yes and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def approve(self, request: Any, ctx: RunContext) -> Any:
        from app.tools.approval import Decision

        self.asked.append(request)
        return Decision(True)


@pytest.fixture
def approver() -> Yes:
    return Yes()


@pytest.fixture
async def toolbox(workspace: Path, sandbox: LocalSandbox, approver: Yes) -> AsyncIterator[Toolbox]:
    box = Toolbox(
        Bash(sandbox),
        PythonExecute(sandbox),
        StrReplaceEditor(workspace),
        AskHuman(),
        Planning(),
        Terminate(),
        approver=approver,
        workspace=workspace,
    )
    yield box
    await box.close()


@pytest.fixture
def call(toolbox: Toolbox, ctx: RunContext) -> Call:
    async def make(name: str, **arguments: Any) -> ToolOutcome:
        return await toolbox.call(ToolCallBlock("c1", name, json.dumps(arguments)), ctx)

    return make
