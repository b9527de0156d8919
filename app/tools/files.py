"""Reading and writing files inside the workspace: paths that cannot be led outside, texts that keep their bytes."""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.paths import resolve_in_workspace
from app.schema.errors import SandboxError, ToolError

_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


class WorkspaceFiles:
    """Files of one workspace. Every open walks the resolved path folder by folder and refuses to follow links.

    So a folder that is swapped for a link between the check and the open leads to an error, not outside.
    """

    def __init__(self, workspace: Path) -> None:
        self.root = workspace.resolve()

    def resolve(self, path: str) -> Path:
        """The real path inside the workspace; `SandboxError` for anything that leads outside or is no POSIX path."""
        if os.name != "nt" and ("\\" in path or re.match(r"[A-Za-z]:/", path)):
            raise SandboxError(
                f"{path} looks like a Windows path", hint="use forward slashes, relative to the workspace: src/main.py"
            )
        return resolve_in_workspace(self.root, path.strip())

    def read(self, path: Path) -> bytes:
        folder = self._open_folder(path.parent)
        try:
            with os.fdopen(self._open(path.name, os.O_RDONLY, folder), "rb") as file:
                return file.read()
        finally:
            os.close(folder)

    def write(self, path: Path, data: bytes) -> None:
        """Replace the file in one move, keeping its mode; missing folders are made."""
        folder = self._open_folder(path.parent, make=True)
        temporary = f".{path.name[:80]}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            mode = self._mode(path.name, folder)
            fd = self._open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder, mode if mode is not None else 0o666
            )
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            os.close(folder)

    def remove(self, path: Path) -> None:
        folder = self._open_folder(path.parent)
        try:
            os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)

    def _mode(self, name: str, folder: int) -> int | None:
        try:
            return stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return None

    def _open_folder(self, folder: Path, *, make: bool = False) -> int:
        if folder != self.root and self.root not in folder.parents:
            raise SandboxError("the workspace itself is a folder, not a file in it")
        fd = os.open(self.root, os.O_RDONLY | _DIRECTORY)
        for part in folder.relative_to(self.root).parts:
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                below = self._open(part, os.O_RDONLY | _DIRECTORY, fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    def _open(self, name: str, flags: int, folder: int, mode: int = 0o666) -> int:
        try:
            # O_NONBLOCK: a named pipe must not hang the open.
            return os.open(name, flags | _NO_FOLLOW | _BINARY | os.O_NONBLOCK, mode, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise SandboxError(f"{name} became a link while it was opened") from error
            raise


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text as it stands in a file: with its encoding, byte-order mark and the line ending that most lines have."""

    text: str
    encoding: str = "utf-8"
    bom: bytes = b""

    @property
    def newline(self) -> str:
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def encode(self, text: str) -> bytes:
        """The bytes of a changed text. Raises `ToolError` when the encoding has no sign for a character."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            sign = text[error.start : error.start + 1]
            raise ToolError(f"the file is {self.encoding}, which cannot hold {sign!r}") from error


_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# A byte below 32 that no text file holds: neither tab, line feed, form feed, carriage return nor escape.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_PLAUSIBLE_WIDE = re.compile(r"[\t\n\r -~\u2e80-\uffee]")


def decode_text(data: bytes) -> TextFile | None:
    """The text in `data`, or None for binary data. Encoding it back always gives the same bytes.

    A byte-order mark decides; without one UTF-8, then GB 18030, then Latin-1 are tried, the last two only on data
    without control bytes.
    """
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            text = _decoded(data[len(bom) :], encoding)
            wide = encoding != "utf-8"
            if text is None or (wide and text and not _PLAUSIBLE_WIDE.search(text)):
                return None
            return TextFile(text, encoding, bom)
    if b"\0" in data:
        return None
    if (text := _decoded(data, "utf-8")) is not None:
        return TextFile(text)
    if _CONTROL.search(data):
        return None
    for encoding in ("gb18030", "latin-1"):
        if (text := _decoded(data, encoding)) is not None:
            return TextFile(text, encoding)
    return None


def _decoded(data: bytes, encoding: str) -> str | None:
    try:
        text = data.decode(encoding)
        return text if text.encode(encoding) == data else None
    except UnicodeError:
        return None
