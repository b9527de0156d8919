"""A stream that may be a terminal: styled lines, text that arrives in pieces, and one status line that ticks below."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TICK_S = 0.1
PLAIN_WIDTH = 160
"""Where a single line is cut when the stream is no terminal."""

Part = tuple[str, str] | str
"""Text, or text with a style."""


class _Patient:
    """The stream without its errors: a reader who left is no reason to stop working."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


class Screen:
    """Nothing it is given is read as markup. The status line exists only on a terminal that can erase a line."""

    def __init__(self, stream: TextIO) -> None:
        self._out = _Patient(stream)
        self._console = Console(file=self._out, highlight=False, markup=False, emoji=False)  # pyright: ignore[reportArgumentType]
        self.live = stream.isatty() and not self._console.is_dumb_terminal
        self._status: str | None = None
        self._since = 0.0
        self._drawn = False
        self._frame = 0
        self._paused = False
        self.mid_line = False

    @property
    def width(self) -> int:
        return self._console.width if self.live else PLAIN_WIDTH

    def line(self, *parts: Part, indent: int = 0) -> None:
        """One line; a longer one is wrapped between words on a terminal."""
        self._print(Text.assemble("  " * indent, *parts), soft_wrap=not self.live)

    def exact_line(self, *parts: Part) -> None:
        """One line, with every blank where it is."""
        self._print(Text.assemble(*parts), soft_wrap=True)

    def short_line(self, *parts: Part, tail: Part = "", indent: int = 0) -> None:
        """One line that is cut at the screen's edge; `tail` is never cut away."""
        end = tail if isinstance(tail, str) else tail[0]
        room = self.width - 1 - cell_len(end)
        text = Text.assemble("  " * indent, *parts)
        if room > 0:
            text.truncate(room, overflow="ellipsis")
        self._print(text.append_text(Text.assemble(tail)), soft_wrap=True)

    def _print(self, text: Text, *, soft_wrap: bool) -> None:
        self._clear()
        self.end_line()
        self._console.print(text, soft_wrap=soft_wrap, overflow=None if soft_wrap else "fold")

    def write(self, text: str, style: str = "") -> None:
        """Text that goes on where the last piece ended."""
        if not text:
            return
        self._clear()
        self._console.print(Text(text, style), soft_wrap=True, end="")
        self.mid_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self.mid_line:
            self.mid_line = False
            self._out.write("\n")
            self._out.flush()

    def prompt(self, text: str) -> None:
        self._clear()
        self._out.write(text)
        self._out.flush()

    def status(self, words: str | None) -> None:
        """What is going on now, with the seconds since it began; None takes the line away."""
        if words is None:
            self._clear()
        elif self._status is None or words != self._status:
            self._since = time.monotonic()
        self._status = words

    def update_status(self, words: str) -> None:
        """Other words for what is going on still; drawn at once."""
        self._status = words
        self.draw()

    @contextmanager
    def paused(self) -> Generator[None]:
        """No status line inside."""
        self._clear()
        self.end_line()
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    @asynccontextmanager
    async def ticking(self) -> AsyncGenerator[None]:
        """The status line moves inside."""
        ticker = asyncio.create_task(self._tick()) if self.live else None
        try:
            yield
        finally:
            if ticker is not None:
                ticker.cancel()
                with suppress(asyncio.CancelledError):
                    await ticker
            self.status(None)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.draw()

    def draw(self) -> None:
        """Draw the status line now, where there is one."""
        if not self.live or self._status is None or self._paused or self.mid_line:
            return
        self._frame = (self._frame + 1) % len(FRAMES)
        seconds = int(time.monotonic() - self._since)
        tail = f" {seconds} s" if seconds else ""
        room = self.width - 3 - len(tail)
        words = self._status
        words = set_cell_size(words, room - 1) + "…" if cell_len(words) > room > 1 else words
        self._out.write("\r\x1b[2K")
        self._console.print(Text(f"{FRAMES[self._frame]} {words}{tail}", "dim"), end="", soft_wrap=True)
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            self._out.write("\r\x1b[2K")
            self._out.flush()
