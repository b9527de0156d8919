"""A new sessions file from what can still be read of a damaged one. The damaged one is kept as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from app.memory.packing import Redact
from app.memory.session_lock import SessionLock
from app.memory.session_store import FILE_NAME, TABLES, SessionStore, decoded, refuse_foreign, set_aside
from app.schema.errors import SessionError

PIECE = 200
"""Rows that are read at once; where that fails, they are read one by one."""


def salvage(folder: Path, redact: Redact) -> tuple[SessionStore, Path, int]:
    """Rebuild the file of `folder`; returns the new store, where the old file is kept, and how many rows were lost.

    Secrets that are known by now are masked on the way. Raises `SessionError` (`SESSION_BUSY`) while a session is in
    use, when there is no file, and when it is a newer version's or another program's.
    """
    for lock in (folder / "locks").glob("*.lock"):
        if SessionLock(lock.parent, lock.stem).held_elsewhere:
            raise SessionError(f"the session {lock.stem} is in use", code="SESSION_BUSY", hint="end that run first")
    refuse_foreign(folder / FILE_NAME)
    kept = set_aside(folder)
    if kept is None:
        raise SessionError(f"there are no sessions in {folder}", code="SESSION_UNKNOWN", hint="nothing needs repair")
    store = SessionStore(folder)
    lost = 0
    # Without a log beside it the file can be read as it lies there, and reading leaves nothing behind.
    how = "mode=ro" if Path(f"{kept}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"{kept.as_uri()}?{how}", uri=True)) as db:
        db.text_factory = decoded
        for table, (key, columns) in TABLES.items():
            rows, missing = _readable(db, table, key, columns)
            lost += missing
            store.adopt(table, columns, rows, redact)
    store.index_anew()
    return store, kept, lost


def _readable(db: sqlite3.Connection, table: str, key: str, columns: str) -> tuple[list[tuple[Any, ...]], int]:
    rows: list[tuple[Any, ...]] = []
    missing = 0
    query = f"SELECT {columns} FROM {table} WHERE {key} BETWEEN ? AND ?"
    last = _last(db, table, key)
    for start in range(0, last + 1, PIECE):
        with suppress(sqlite3.Error, OverflowError):
            rows += db.execute(query, (start, min(start + PIECE - 1, last))).fetchall()
            continue
        for one in range(start, min(start + PIECE, last + 1)):
            try:
                rows += db.execute(query, (one, one)).fetchall()
            except (sqlite3.Error, OverflowError):
                missing += 1
    return rows, missing


def _last(db: sqlite3.Connection, table: str, key: str) -> int:
    """The largest key, from whichever place can still be read."""

    def candidates() -> Iterator[str]:
        yield f"SELECT max({key}) FROM {table}"
        yield f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"

    for query in candidates():
        with suppress(sqlite3.Error, TypeError, ValueError):
            return int(db.execute(query).fetchone()[0])
    return 0
