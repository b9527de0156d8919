"""`bash`: one shell command in the workspace, through whatever sandbox is in force."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from app.sandbox.base import CommandResult, Sandbox
from app.sandbox.scratch import SCRIPTS, new_scratch_file, shown_path
from app.schema.run import RunContext
from app.tools.base import Approval, Args, Effect, Tool, ToolOutput
from app.tools.shell_policy import crosses_border, is_harmless_read

MAX_TIMEOUT_S = 1800.0
# Linux refuses a single argument of 128 KiB (MAX_ARG_STRLEN); longer commands go through a file.
_ARGUMENT_LIMIT = 100_000


class BashArgs(Args):
    command: Annotated[str, Field(min_length=1)]
    timeout_s: Annotated[float, Field(gt=0, description="at most 1800")] = 120.0
    background: Annotated[bool, Field(description="for servers: return at once, output goes to a log file")] = False


class Bash(Tool[BashArgs]):
    """Each call is a shell of its own: nothing but files carries over to the next one."""

    name = "bash"
    description = "Run a shell command in the workspace. Each call is a new shell; standard input is empty."
    Arguments = BashArgs

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def effect_of(self, args: BashArgs) -> Effect:
        return "read" if self._is_read(args) else "once"

    def approval(self, args: BashArgs) -> Approval | None:
        if self._sandbox.confined or self._is_read(args):
            return None
        return Approval(
            "it runs a shell command that no sandbox confines",
            args.command,
            crosses_border=crosses_border(args.command, self._sandbox.workspace),
        )

    async def run(self, args: BashArgs, ctx: RunContext) -> ToolOutput:
        script: Path | None = None
        command = ("-c", args.command)
        if len(args.command.encode("utf-8", "replace")) > _ARGUMENT_LIMIT:
            script, file = new_scratch_file(self._sandbox.workspace, SCRIPTS, "command", ".sh")
            with file:
                file.write(args.command.encode("utf-8", "replace"))
            command = (shown_path(self._sandbox.workspace, script),)
        try:
            if args.background:
                return await self._start(command)
            timeout_s = min(args.timeout_s, MAX_TIMEOUT_S)
            result = await self._sandbox.run((_shell(), *command), timeout_s=timeout_s)
            return command_output(result, timeout_s)
        finally:
            if script is not None and not args.background:
                script.unlink(missing_ok=True)

    async def _start(self, command: tuple[str, ...]) -> ToolOutput:
        process = await self._sandbox.start((_shell(), *command))
        log = shown_path(self._sandbox.workspace, process.log)
        return ToolOutput(
            f"started in the background: pid {process.pid}, output goes to {log}\nend it with: kill -- -{process.pid}"
        )

    def _is_read(self, args: BashArgs) -> bool:
        return not args.background and is_harmless_read(args.command, self._sandbox.workspace)


def _shell() -> str:
    import shutil

    return "bash" if shutil.which("bash") else "sh"


def command_output(result: CommandResult, timeout_s: float) -> ToolOutput:
    """A finished command in words: output, then labelled errors, then how it ended. Success is exit code 0 alone."""
    parts = [result.stdout.rstrip("\n")] if result.stdout.strip() else []
    if result.stderr.strip():
        parts.append("stderr:\n" + result.stderr.rstrip("\n"))
    if result.timed_out:
        parts.append(
            f"timed out after {timeout_s:g} s; everything it had started was ended. The output up to then is above."
        )
    elif result.exit_code:
        parts.append(f"exit code: {result.exit_code}{_signal_name(result.exit_code)}")
    elif not parts:
        # Silence alone is read as a failure by small models.
        parts.append("(it worked: exit code 0, no output)")
    return ToolOutput("\n".join(parts), ok=result.exit_code == 0, saved=result.spill, omitted=result.omitted)


def _signal_name(code: int) -> str:
    number = -code if code < 0 else code - 128
    with suppress(ValueError):
        return f" ({signal.Signals(number).name})" if number > 0 else ""
    return ""
