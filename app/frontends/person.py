"""The person at the terminal: approvals, questions of a model, consent to a download. Drawing is `terminal.py`'s."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from app.frontends.redact import repaired, visible

if TYPE_CHECKING:
    from app.frontends.terminal import TerminalView
    from app.schema.run import RunContext
    from app.tools.approval import ApprovalRequest, Decision

LONGEST_PREVIEW = 400
"""Lines of a preview that are shown; a longer one says how many are missing."""

_YES, _NO, _ALWAYS = frozenset({"y", "yes", "是"}), frozenset({"", "n", "no", "否"}), frozenset({"a", "always"})


class PersonAtTerminal:
    """Approver, human and consent in one: they share the terminal, so one question is asked at a time.

    A word of approval covers one call; `a` covers the tool for the rest of the run.
    """

    def __init__(self, view: TerminalView) -> None:
        self._view = view
        self._turn = asyncio.Lock()
        self._always: set[tuple[str, str]] = set()

    async def approve(self, request: ApprovalRequest, ctx: RunContext) -> Decision:
        from app.tools.approval import Decision

        if not request.in_doubt and (ctx.run, request.name) in self._always:
            return Decision(True)
        lines = visible(request.preview or str(request.arguments)).splitlines()
        missing = len(lines) - LONGEST_PREVIEW
        shown = [*lines[:LONGEST_PREVIEW], *([f"… {missing} more lines"] if missing > 0 else [])]
        async with self._turn:
            with self._view.asking():
                _forget_typed()
                self._view.question(f"{request.name} asks for your approval: {visible(request.reason)}", shown)
                answer = await self._choose(f"Run it? [y]es, [N]o, [a]lways {request.name} in this run: ")
        if answer in _ALWAYS:
            self._always.add((ctx.run, request.name))
        return Decision(answer not in _NO)

    async def ask(self, question: str) -> str | None:
        async with self._turn:
            with self._view.asking():
                self._view.question(question, [])
                return await self._line("your answer: ")

    async def consent(self, question: str) -> bool:
        async with self._turn:
            with self._view.asking():
                _forget_typed()
                self._view.question(question, [])
                return await self._choose("[y]es or [N]o: ") in _YES

    async def _choose(self, prompt: str) -> str:
        """One of the known words; the end of input and a third unknown word are a no."""
        for _ in range(3):
            answer = await self._line(prompt)
            word = "" if answer is None else answer.strip().lower()
            if word in _YES | _NO | _ALWAYS:
                return word
        return ""

    async def _line(self, prompt: str) -> str | None:
        self._view.prompt(prompt)
        line = await read_line()
        if line is None:
            self._view.prompt("\n")
        return line


async def read_line() -> str | None:
    """A line of standard input without its end, or None at the end of input. Can be cancelled while it waits."""
    if sys.platform == "win32":  # no readiness events for a console there
        return await asyncio.to_thread(_blocking_line)
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    while not text.endswith("\n"):
        ready = loop.create_future()
        loop.add_reader(fd, _set, ready)
        try:
            await ready
        finally:
            loop.remove_reader(fd)
        try:
            data = os.read(fd, 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            return text or None
        text += decoder.decode(data)
    return text.rstrip("\r\n")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _blocking_line() -> str | None:
    line = sys.stdin.readline()
    return repaired(line).rstrip("\r\n") if line else None


def _forget_typed() -> None:
    """What was typed before a question was asked is no answer to it."""
    if sys.platform != "win32":
        import termios

        with contextlib.suppress(termios.error, OSError, ValueError):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
