"""The `Sandbox` protocol: where commands really run. Tools take one and do not know which it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that ended. `exit_code` is None when the time limit ended it; texts are decoded with replacement.

    `stdout`/`stderr` hold at most the sandbox's capture limit, head and tail, with a marker in between; the whole
    output is in the file `spill` then (None when nothing was cut), and `omitted` counts the bytes left out.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    spill: Path | None = None
    omitted: int = 0


class Process(Protocol):
    """A background command: its pid, the file its output goes to, and the way to end its whole group."""

    pid: int
    log: Path

    async def stop(self) -> None: ...


class Sandbox(Protocol):
    """Runs commands with the workspace as working folder, in a process group of their own, standard input closed.

    `confined` is true when a kernel mechanism keeps commands inside the workspace; only then do approvals relax.
    """

    name: str
    workspace: Path
    confined: bool

    async def run(
        self, argv: tuple[str, ...], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run to its end; on the time limit or cancellation the whole process group ends (TERM, then KILL).

        `env` is laid over the sandbox's own environment. Raises `SandboxError` when the command cannot be started.
        """
        ...

    async def start(self, argv: tuple[str, ...]) -> Process:
        """Start in the background; `close()` ends whatever still runs."""
        ...

    async def close(self) -> None: ...
