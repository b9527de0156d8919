"""`python_execute`: Python code as a script of its own interpreter, in the workspace."""

from __future__ import annotations

import sys
from typing import Annotated

from pydantic import Field

from app.sandbox.base import Sandbox
from app.sandbox.scratch import SCRIPTS, new_scratch_file, shown_path
from app.schema.run import RunContext
from app.tools.base import Approval, Args, Tool, ToolOutput
from app.tools.bash import MAX_TIMEOUT_S, command_output
from app.tools.python_mend import mended_code
from app.tools.python_policy import leaves_workspace

_ENVIRONMENT = {
    # With -P the script's own folder stays off the import path; the workspace takes its place.
    "PYTHONPATH": ".",
    "PYTHONIOENCODING": "utf-8",
    "MPLBACKEND": "Agg",
}


class PythonExecuteArgs(Args):
    code: Annotated[str, Field(min_length=1)]
    timeout_s: Annotated[float, Field(gt=0, description="at most 1800")] = 60.0


class PythonExecute(Tool[PythonExecuteArgs]):
    """`python` is the interpreter inside the sandbox; by default the one that runs this program."""

    name = "python_execute"
    description = (
        "Run a Python script in the workspace. Only what it prints is returned; nothing is kept between calls."
    )
    Arguments = PythonExecuteArgs

    def __init__(self, sandbox: Sandbox, *, python: str = sys.executable) -> None:
        self._sandbox = sandbox
        self._python = python

    def approval(self, args: PythonExecuteArgs) -> Approval | None:
        if self._sandbox.confined:
            return None
        code = mended_code(args.code)
        return Approval(
            "it runs Python code that no sandbox confines",
            code,
            crosses_border=leaves_workspace(code, self._sandbox.workspace),
        )

    async def run(self, args: PythonExecuteArgs, ctx: RunContext) -> ToolOutput:
        workspace = self._sandbox.workspace
        script, file = new_scratch_file(workspace, SCRIPTS, "script", ".py")
        with file:
            file.write(mended_code(args.code).encode("utf-8", "replace"))
        timeout_s = min(args.timeout_s, MAX_TIMEOUT_S)
        try:
            argv = (self._python, "-u", "-B", "-P", shown_path(workspace, script))
            return command_output(await self._sandbox.run(argv, timeout_s=timeout_s, env=_ENVIRONMENT), timeout_s)
        finally:
            script.unlink(missing_ok=True)
