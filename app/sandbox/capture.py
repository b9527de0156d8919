"""What a command printed: head and tail in memory, everything in a file once it is too much. No processes here."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from app.sandbox.scratch import OUTPUTS, new_scratch_file, shown_path
from app.schema.errors import SandboxError

SPILL_LIMIT = 64 * 1024 * 1024
"""The most bytes one command may write into its output file; a flood must not fill the disk."""


class _Stream:
    """The first and the last half `limit` bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self.half = limit // 2
        self.head = bytearray()
        self.tail: deque[bytes] = deque()
        self.tail_size = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if not data:
            return
        self.tail.append(data)
        self.tail_size += len(data)
        while self.tail_size - len(self.tail[0]) >= self.half:
            self.tail_size -= len(self.tail.popleft())

    @property
    def omitted(self) -> int:
        return max(0, self.total - 2 * self.half)

    def text(self, marker: str) -> str:
        tail = b"".join(self.tail)
        if not self.omitted:
            return (bytes(self.head) + tail).decode("utf-8", "replace")
        # A character split by the cut is dropped on both sides; invalid bytes elsewhere become U+FFFD.
        head = bytes(self.head).decode("utf-8", "replace").rstrip("\ufffd")
        rest = tail[-self.half :].lstrip(bytes(range(0x80, 0xC0))).decode("utf-8", "replace")
        return f"{head}\n{marker.format(omitted=self.omitted)}\n{rest}"


class Capture:
    """Both output streams of one command, fed with bytes as they arrive, in bounded memory.

    The first stream that outgrows `limit` bytes opens a file in the workspace's `.dragoman/outputs/`, which then
    holds both streams in order of arrival, up to `SPILL_LIMIT`. After `finish` further bytes are dropped.
    """

    def __init__(self, workspace: Path, *, limit: int) -> None:
        self._workspace = workspace
        self._limit = limit
        self._streams = {1: _Stream(limit), 2: _Stream(limit)}
        self._early: list[bytes] = []
        self._file: BinaryIO | None = None
        self._written = 0
        self._tried = False
        self._open = True
        self.spill: Path | None = None
        self.last = time.monotonic()
        """When bytes came last, on the monotonic clock."""

    def feed(self, fd: int, data: bytes) -> None:
        if not self._open:
            return
        self.last = time.monotonic()
        stream = self._streams[fd]
        stream.add(data)
        if self._file is not None:
            self._write(data)
        elif not self._tried:
            self._early.append(data)
            if stream.omitted:
                self._start_spill()

    def finish(self) -> None:
        self._open = False
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    @property
    def omitted(self) -> int:
        return sum(stream.omitted for stream in self._streams.values())

    @property
    def stdout(self) -> str:
        return self._streams[1].text(self._marker())

    @property
    def stderr(self) -> str:
        return self._streams[2].text(self._marker())

    def _marker(self) -> str:
        where = f"; full output in {shown_path(self._workspace, self.spill)}" if self.spill else ""
        return "[... {omitted} bytes left out" + where.replace("{", "{{").replace("}", "}}") + " ...]"

    def _start_spill(self) -> None:
        early, self._early, self._tried = self._early, [], True
        # A command's result must not be lost because its whole output cannot be kept.
        with suppress(OSError, SandboxError):
            self.spill, self._file = new_scratch_file(self._workspace, OUTPUTS, "command", ".txt")
        for data in early:
            self._write(data)

    def _write(self, data: bytes) -> None:
        piece = data[: SPILL_LIMIT - self._written]
        if not piece or self._file is None:
            return
        try:
            self._file.write(piece)
        except OSError:
            # The disk is full; what stands in the file stays there.
            self._written = SPILL_LIMIT
        else:
            self._written += len(piece)
