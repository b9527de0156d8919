"""Starting the real program: with pipes, at a pseudo-terminal, or in this process where that is enough."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 15
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]|\r(?!\n)")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def hear_interrupts() -> None:
    """A shell's background jobs, which a test run may be, hand an ignored SIGINT down to their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Program:
    """`main.py` and `run_flow.py` in an environment without a developer's configuration, keys and servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.config = folder / "config.toml"
        self.config.write_text("", encoding="utf-8")
        self.env = {"DRAGOMAN_CONFIG": str(self.config), "DRAGOMAN_WORKSPACE": str(self.workspace), "TERM": "xterm"}

    def configure(self, text: str) -> None:
        self.config.write_text(text, encoding="utf-8")

    def script(self, *turns: dict[str, Any]) -> None:
        """Configure a scripted model."""
        path = self.folder / "script.json"
        path.write_text(json.dumps(turns), encoding="utf-8")
        self.configure(f'[llm]\napi_type = "test"\nmodel = "scripted"\nscript = {json.dumps(str(path))}\n')

    def start(self, *arguments: str, main: str = "main.py", env: dict[str, str] | None = None, **more: Any):
        streams = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": hear_interrupts,
        } | more
        return subprocess.Popen(
            [sys.executable, str(ROOT / main), *arguments],
            cwd=self.folder,
            env={**os.environ, **self.env, **(env or {})},
            **streams,
        )

    def __call__(self, *arguments: str, stdin: bytes = b"", **more: Any) -> Outcome:
        with self.start(*arguments, **more) as process:
            try:
                out, err = process.communicate(stdin, timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Outcome(process.returncode, out.decode("utf-8"), err.decode("utf-8"))


class Terminal:
    """A program at a pseudo-terminal of its own, with a person who reads and types."""

    def __init__(self, program: Program, *arguments: str, columns: int = 80, stdout: Any = None, **more: Any) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

        def own_the_terminal() -> None:
            hear_interrupts()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = program.start(
            *arguments,
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
            preexec_fn=own_the_terminal,
            **more,
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    @property
    def text(self) -> str:
        """Everything shown so far, without what commands the terminal."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, pattern: str) -> str:
        """Read on until the pattern is shown behind what earlier calls have found; returns what was shown up to it."""
        end = time.monotonic() + PATIENCE_S
        while not (found := re.compile(pattern).search(self.text, self._seen)):
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"never shown: {pattern!r}; shown: {self.text[self._seen :]!r}")
        shown = self.text[self._seen : found.end()]
        self._seen = found.end()
        return shown

    def wait(self) -> int:
        """Read to the end; returns the exit code."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self._read():
            pass
        return self.process.wait(5)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], PATIENCE_S)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.raw += data.decode("utf-8", "replace")
        if b"\x1b[6n" in data:  # the question for the cursor's place wants an answer
            self.type("\x1b[1;1R")
        return bool(data)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(5)
        os.close(self._master)


@pytest.fixture
def program(tmp_path: Path, home: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def terminal(program: Program) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **more: Any) -> Terminal:
        opened.append(Terminal(program, *arguments, **more))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def here(program: Program, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """The command line inside this process: quick, for what needs no process of its own."""
    from app.frontends.cli import main

    for name, value in program.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(program.folder)

    def run(*arguments: str, flow: bool = False) -> Outcome:
        code = main(arguments, flow=flow)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run
