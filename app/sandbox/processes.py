"""Finding and ending everything a command started: its process group and whatever left the group (POSIX)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "DRAGOMAN_COMMAND"
"""The variable that marks a command and its descendants, so that a child with a session of its own is found too."""

_PROC = Path("/proc")
HAS_PROC = _PROC.is_dir()
"""Whether processes can be found by their mark; elsewhere only their group is known."""

_POLL_S = 0.02


def members(group: int | None, mark: str) -> set[int]:
    """The living processes of the group, and those whose mark begins with `mark`; zombies do not count."""
    if not HAS_PROC:
        return _members_by_group(group)
    wanted = f"{MARK}={mark}".encode()
    found: set[int] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # A process may end between the listing and the look.
        with contextlib.suppress(OSError):
            state, its_group = _state_and_group(entry / "stat")
            if state in "ZX":
                continue
            if its_group == group or wanted in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def _state_and_group(stat: Path) -> tuple[str, int]:
    # proc(5): the command name stands in parentheses and may hold anything, so the fields start after the last one.
    fields = stat.read_bytes().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[2])


def _members_by_group(group: int | None) -> set[int]:
    return {group} if group is not None and group_alive(group) else set()


def group_alive(group: int) -> bool:
    """Whether a process of the group exists, living or not yet collected."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def send(signal_number: int, group: int | None, mark: str) -> bool:
    """Send a signal to everything that lives; False when nothing does."""
    alive = members(group, mark)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)
    if alive and group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal_number)
    return bool(alive)


async def end_tree(group: int | None, mark: str, *, grace_s: float = 2.0) -> None:
    """End everything: TERM, then KILL after `grace_s`; nothing lives when it returns.

    A cancellation on the way skips the grace: KILL at once, then the cancellation goes on.
    """
    if not send(signal.SIGTERM, group, mark):
        return
    try:
        if not await _gone(group, mark, grace_s):
            send(signal.SIGKILL, group, mark)
            await _gone(group, mark, 1.0)
    except asyncio.CancelledError:
        send(signal.SIGKILL, group, mark)
        raise


async def _gone(group: int | None, mark: str, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while members(group, mark):
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(_POLL_S)
    return True
