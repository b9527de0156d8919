"""`LocalSandbox`: commands as plain processes of this machine (POSIX), tidy but not confined.

Confinement belongs to subclasses, which override `wrap` to start the same command inside something.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

from app.sandbox.base import CommandResult
from app.sandbox.capture import Capture
from app.sandbox.processes import HAS_PROC, MARK, end_tree, group_alive
from app.sandbox.scratch import OUTPUTS, new_scratch_file
from app.schema.errors import SandboxError

SECRET_WORDS = ("KEY", "SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL")
CAPTURE_LIMIT = 1024 * 1024
TERM_GRACE_S = 2.0
_PIPE_QUIET_S = 0.1
_PIPE_WAIT_S = 1.0


def scrubbed_environment(passthrough: Collection[str] = ()) -> dict[str, str]:
    """Our environment without the variables whose names speak of secrets, except those named in `passthrough`."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in passthrough or not any(word in name.upper() for word in SECRET_WORDS)
    }


class _Watch(asyncio.SubprocessProtocol):
    """Tells of a process's end apart from its pipes' end: a background child may hold the pipes for long."""

    def __init__(self, capture: Capture | None) -> None:
        self._capture = capture
        self._open_pipes = {1, 2} if capture else set[int]()
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._capture:
            self._capture.feed(fd, data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()


class LocalProcess:
    """A background command; see `Process`."""

    def __init__(self, pid: int, log: Path, mark: str, watch: _Watch, transport: asyncio.SubprocessTransport) -> None:
        self.pid = pid
        self.log = log
        self._mark = mark
        self._watch = watch
        self._transport = transport

    @property
    def running(self) -> bool:
        return not self._watch.exited.is_set()

    async def stop(self) -> None:
        await end_tree(self.pid if self.running else None, self._mark, grace_s=TERM_GRACE_S)
        self._transport.close()


class LocalSandbox:
    """Runs commands in the workspace with an own session, closed standard input and an environment without secrets.

    A command is over when its process ends; children it left in the background live on until `close()`. `capture_limit`
    bounds, in bytes, what is kept of each stream.
    """

    name = "none"
    confined = False

    def __init__(
        self, workspace: Path, *, env_passthrough: Collection[str] = (), capture_limit: int = CAPTURE_LIMIT
    ) -> None:
        self.workspace = workspace
        self._passthrough = frozenset(env_passthrough)
        self._capture_limit = capture_limit
        self._background: list[LocalProcess] = []
        self._mark = uuid.uuid4().hex
        self._left_groups: set[int] = set()
        self._held_pipes: list[asyncio.SubprocessTransport] = []

    def wrap(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The command line that really starts; a confining sandbox puts its own program in front."""
        return argv

    async def run(
        self, argv: tuple[str, ...], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        begun = time.monotonic()
        capture = Capture(self.workspace, limit=self._capture_limit)
        mark = f"{self._mark}.{uuid.uuid4().hex}"
        transport, watch = await self._spawn_whole(argv, mark, env, capture)
        pid = transport.get_pid()
        try:
            timed_out = not await self._wait(watch, timeout_s)
            if timed_out:
                await self._end(pid, mark, watch)
            await self._drain(watch, capture)
        except asyncio.CancelledError:
            try:
                await self._end(pid, mark, watch)
            finally:
                capture.finish()
                transport.close()
            raise
        capture.finish()
        self._let_go(pid, watch, transport)
        return CommandResult(
            exit_code=None if timed_out else transport.get_returncode(),
            stdout=capture.stdout,
            stderr=capture.stderr,
            seconds=time.monotonic() - begun,
            timed_out=timed_out,
            spill=capture.spill,
            omitted=capture.omitted,
        )

    async def start(self, argv: tuple[str, ...]) -> LocalProcess:
        mark = f"{self._mark}.{uuid.uuid4().hex}"
        try:
            log, file = new_scratch_file(self.workspace, OUTPUTS, "background", ".log")
        except OSError as error:
            raise SandboxError(f"no log file can be made in the workspace: {error.strerror or error}") from error
        with file:
            transport, watch = await self._spawn_whole(argv, mark, None, None, log=file.fileno())
        process = LocalProcess(transport.get_pid(), log, mark, watch, transport)
        self._background.append(process)
        return process

    async def close(self) -> None:
        for process in self._background:
            await process.stop()
        self._background.clear()
        await end_tree(None, self._mark, grace_s=TERM_GRACE_S)
        for group in self._left_groups:
            await end_tree(group, self._mark, grace_s=TERM_GRACE_S)
        for transport in self._held_pipes:
            transport.close()
        self._left_groups.clear()
        self._held_pipes.clear()

    async def _spawn_whole(
        self,
        argv: tuple[str, ...],
        mark: str,
        env: Mapping[str, str] | None,
        capture: Capture | None,
        *,
        log: int | None = None,
    ) -> tuple[asyncio.SubprocessTransport, _Watch]:
        """Spawn, and let a cancellation in between end what was begun.

        asyncio's own way out of a half-made transport kills one process and waits for the end of its pipes, which a
        child may hold for long. A spawn takes milliseconds, so it is let through first.
        """
        spawn = asyncio.create_task(self._spawn(argv, mark, env, capture, log=log))
        try:
            return await asyncio.shield(spawn)
        except asyncio.CancelledError:
            # Should a second cancellation interrupt this, `close` still ends and closes what was made.
            spawn.add_done_callback(self._hold)
            await asyncio.wait({spawn})
            if spawn.exception() is None:
                transport, watch = spawn.result()
                try:
                    await self._end(transport.get_pid(), mark, watch)
                finally:
                    transport.close()
            raise

    async def _spawn(
        self,
        argv: tuple[str, ...],
        mark: str,
        env: Mapping[str, str] | None,
        capture: Capture | None,
        *,
        log: int | None = None,
    ) -> tuple[asyncio.SubprocessTransport, _Watch]:
        environment = scrubbed_environment(self._passthrough) | dict(env or {}) | {MARK: mark}
        try:
            self.workspace.mkdir(parents=True, exist_ok=True)
            return await asyncio.get_running_loop().subprocess_exec(
                lambda: _Watch(capture),
                *self.wrap(argv),
                cwd=self.workspace,
                env=environment,
                start_new_session=True,
                stdin=DEVNULL,
                stdout=PIPE if log is None else log,
                stderr=PIPE if log is None else STDOUT,
            )
        except FileNotFoundError as error:
            raise SandboxError(f"there is no program {argv[0]!r} here", hint="check its name or install it") from error
        except (OSError, ValueError) as error:
            raise SandboxError(f"{argv[0]!r} cannot be started: {error}") from error

    async def _wait(self, watch: _Watch, seconds: float) -> bool:
        """Whether the process ended within the time."""
        try:
            async with asyncio.timeout(seconds):
                await watch.exited.wait()
        except TimeoutError:
            return False
        return True

    async def _end(self, pid: int, mark: str, watch: _Watch) -> None:
        await end_tree(pid, mark, grace_s=TERM_GRACE_S)
        await self._wait(watch, 1.0)

    async def _drain(self, watch: _Watch, capture: Capture) -> None:
        """Wait for the pipes' end, but not for a background child that holds them and says nothing."""
        end = time.monotonic() + _PIPE_WAIT_S
        while not watch.drained.is_set() and time.monotonic() < end:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PIPE_QUIET_S):
                    await watch.drained.wait()
            if time.monotonic() - capture.last >= _PIPE_QUIET_S:
                return

    def _hold(self, spawn: asyncio.Task[tuple[asyncio.SubprocessTransport, _Watch]]) -> None:
        if not spawn.cancelled() and spawn.exception() is None:
            self._held_pipes.append(spawn.result()[0])

    def _let_go(self, pid: int, watch: _Watch, transport: asyncio.SubprocessTransport) -> None:
        if not HAS_PROC and group_alive(pid):
            self._left_groups.add(pid)
        if watch.drained.is_set():
            transport.close()
        else:
            # Closing a pipe that a left server holds would kill it at its next line of output.
            self._held_pipes.append(transport)
