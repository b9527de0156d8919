"""The lock that keeps a session to one process. It dies with its process, whatever kills it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from app.schema.errors import SessionError


class SessionLock:
    """An operating system's lock on a file of its own, which names the holder for people.

    Network file systems, where such locks may not hold between machines, are not supported.
    """

    def __init__(self, folder: Path, session: str) -> None:
        self._path = folder / f"{session}.lock"
        self._session = session
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise `SessionError` (`SESSION_BUSY`) with the holder's name. Never waits."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while self._file is None:
                self._file = self._try()
            _write_holder(self._file)
        except OSError as error:
            self.release()
            raise SessionError(
                f"the session {self._session} cannot be locked: {error.strerror or error} ({self._path})",
                hint="set DRAGOMAN_HOME to a writable folder on a local disk",
            ) from error

    def release(self) -> None:
        if self._file is not None:
            # Removed while it is still held, so that nobody can hold a file that has gone.
            with suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            self._file = None

    @property
    def held_elsewhere(self) -> bool:
        """Whether another holder lives."""
        try:
            file = os.open(self._path, os.O_RDWR)
        except OSError:
            return False
        try:
            return not _lock(file)
        finally:
            os.close(file)

    def _try(self) -> int | None:
        """The locked file; None when its holder removed it in between."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(file):
            holder = _holder(file)
            os.close(file)
            raise SessionError(
                f"the session {self._session} is in use by {holder}",
                code="SESSION_BUSY",
                hint=f"end that run first, or work on a copy: python main.py sessions fork {self._session}",
            )
        try:
            if os.path.samestat(self._path.stat(), os.fstat(file)):
                return file
        except FileNotFoundError:
            pass
        os.close(file)
        return None


def _lock(file: int) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(file, 1 << 20, os.SEEK_SET)  # behind the text, which stays readable
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(file: int) -> None:
    words = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, json.dumps(words).encode())


def _holder(file: int) -> str:
    try:
        os.lseek(file, 0, os.SEEK_SET)
        words = json.loads(os.read(file, 4096))
        return f"process {words['pid']} on {words['host']} since {words['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
