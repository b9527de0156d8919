"""The parent's side of a running model: starts the child, waits until it answers, and ends it. Speaks no dialect."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import sys
import time
from pathlib import Path

from app import paths
from app.llm.downloads import Progress, ShowProgress
from app.llm.embedded.catalog import EmbeddedModel, template_text
from app.schema.errors import ConfigError, LLMError

READY_S = 120.0
CLOSE_S = 5.0
LOG_LINES = 4
TICK_S = 1.0


def _ignore(progress: Progress) -> None:
    """For callers who do not watch."""


class EmbeddedServer:
    """One model in a child process, behind an OpenAI-compatible API on a free loopback port.

    After `start`, `base_url` ends in `/v1`, the model's name there is `row.name`, and every request needs `api_key`,
    which is new for each server, so other users of the machine cannot use it. `threads` defaults to the processor's
    cores less one (all of them stall each other as soon as anything else runs), `context` is shared by `slots`
    simultaneous requests, in tokens. The child dies with this process, however that ends.
    """

    def __init__(
        self,
        model_path: Path,
        row: EmbeddedModel,
        *,
        threads: int | None = None,
        context: int = 8192,
        slots: int = 1,
        progress: ShowProgress = _ignore,
    ) -> None:
        self.row = row
        self.api_key = secrets.token_urlsafe(24)
        self.base_url = ""
        self._progress = progress
        self._settings = {
            "model": str(model_path),
            "alias": row.name,
            "api_key": self.api_key,
            "port": 0,
            "context": context,
            "slots": slots,
            "threads": threads or max(1, (os.cpu_count() or 1) - 1),
            "template": template_text(row),
        }
        self._process: asyncio.subprocess.Process | None = None
        self._log = Path()
        self._starting = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> str:
        """Start the child unless it runs, and return `base_url` once the model is loaded.

        A child that died is replaced. Raises `ConfigError` when the binding is not installed, `LLMError` (`SERVER`)
        with the end of the child's log when it crashed or did not become ready in 120 s.
        """
        async with self._starting:
            if not self.alive:
                await self._launch()
            return self.base_url

    async def close(self) -> None:
        """End the child; harmless when there is none."""
        process, self._process, self.base_url = self._process, None, ""
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), CLOSE_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _launch(self) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError("the embedded model needs the package xllamacpp", hint="pip install 'dragoman[embedded]'")
        self._log = paths.runtime_dir("logs") / f"embedded-{self.row.name}-{os.getpid()}.log"
        self._process = await self._spawn()
        try:
            address = await asyncio.wait_for(self._report(self._process), READY_S)
        except BaseException as error:
            code = self._process.returncode
            await self.close()
            if not isinstance(error, TimeoutError | ValueError):
                raise
            reason = "was not ready in time" if code is None else f"ended with code {code}"
            raise LLMError(
                f"the embedded model {self.row.name} {reason}:\n{self.log_tail()}",
                "SERVER",
                hint=f"the whole log is {self._log}; is there enough free memory for the model?",
            ) from error
        self.base_url = f"{address}/v1"

    async def _spawn(self) -> asyncio.subprocess.Process:
        with await asyncio.to_thread(self._log.open, "wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "app.llm.embedded.child",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=paths.PROJECT_ROOT,
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._settings).encode() + b"\n")
        return process

    async def _report(self, process: asyncio.subprocess.Process) -> str:
        """The address that the child reports; `ValueError` when it ended without one."""
        assert process.stdout is not None
        began = time.monotonic()
        line = asyncio.ensure_future(process.stdout.readline())
        try:
            while not line.done():
                self._progress(Progress("start", int(time.monotonic() - began), int(READY_S)))
                await asyncio.wait([line], timeout=TICK_S)
            if not line.result():
                await process.wait()
            return str(json.loads(line.result())["address"])
        finally:
            line.cancel()

    def log_tail(self) -> str:
        """The last words of the child, for error messages."""
        try:
            return "\n".join(self._log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:])
        except OSError:
            return "(no log)"
