"""The default tools as a very small model gets them: the same names and deeds with fewer arguments to get wrong.

Each is a thin front of the full tool. Giving up is left to the limits of the run: a model this small gives up at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from app.sandbox.base import Sandbox
from app.schema.run import RunContext
from app.tools.base import Approval, Args, Effect, RunEnd, Tool, ToolOutput
from app.tools.python_execute import PythonExecute, PythonExecuteArgs
from app.tools.str_replace_editor import EditorArgs, StrReplaceEditor


class SmallEditorArgs(Args):
    command: Literal["create", "view"]
    path: Annotated[str, Field(min_length=1)]
    file_text: Annotated[str, Field(description="the whole text, for create")] = ""


class SmallEditor(Tool[SmallEditorArgs]):
    """Creates whole files, also over existing ones, and shows them."""

    name = "str_replace_editor"
    description = "Write a text to a file (create), or show a file (view)."
    Arguments = SmallEditorArgs

    def __init__(self, workspace: Path) -> None:
        self._editor = StrReplaceEditor(workspace)

    def effect_of(self, args: SmallEditorArgs) -> Effect:
        return "read" if args.command == "view" else "idempotent"

    def approval(self, args: SmallEditorArgs) -> Approval | None:
        return self._editor.approval(EditorArgs(command=args.command, path=args.path))

    def run(self, args: SmallEditorArgs, ctx: RunContext) -> ToolOutput:
        if args.command == "create":
            return self._editor.write(args.path, args.file_text)
        return self._editor.run(EditorArgs(command="view", path=args.path), ctx)


class SmallPythonArgs(Args):
    code: Annotated[str, Field(min_length=1)]


class SmallPython(Tool[SmallPythonArgs]):
    name = "python_execute"
    description = "Run a Python program; what it prints is returned."
    Arguments = SmallPythonArgs

    def __init__(self, sandbox: Sandbox) -> None:
        self._python = PythonExecute(sandbox)

    def approval(self, args: SmallPythonArgs) -> Approval | None:
        return self._python.approval(PythonExecuteArgs(code=args.code))

    async def run(self, args: SmallPythonArgs, ctx: RunContext) -> ToolOutput:
        return await self._python.run(PythonExecuteArgs(code=args.code), ctx)


class SmallTerminateArgs(Args):
    answer: Annotated[str, Field(description="the result for the user")] = ""


class SmallTerminate(Tool[SmallTerminateArgs]):
    name = "terminate"
    description = "End the task when everything is done."
    Arguments = SmallTerminateArgs
    effect = "idempotent"

    async def run(self, args: SmallTerminateArgs, ctx: RunContext) -> ToolOutput:
        return ToolOutput("the task ends: success", ends_run=RunEnd("success", args.answer))
