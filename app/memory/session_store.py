"""`SessionStore`: the one SQLite file that holds every session. Rows in, rows out; what they mean is not known here."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.memory.packing import Redact, Row, hashes_in, parse, search_terms, squeezed, unsqueezed, words_of
from app.schema.errors import SessionError
from app.schema.message import JSON

FILE_NAME = "sessions.db"
APPLICATION_ID = 0x44726167
"""Stands in the file's header, so that no other program's database is taken for ours."""

MIGRATIONS = (
    """
    CREATE TABLE session(
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, created REAL NOT NULL, updated REAL NOT NULL,
        last INTEGER NOT NULL DEFAULT 0, kind TEXT NOT NULL, agent TEXT NOT NULL, workspace TEXT NOT NULL,
        task TEXT NOT NULL DEFAULT '', state TEXT NOT NULL DEFAULT '', parent INTEGER, parent_seq INTEGER,
        deleted INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE event(
        id INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL, seq INTEGER NOT NULL, time REAL NOT NULL,
        kind TEXT NOT NULL, thread TEXT NOT NULL, data TEXT NOT NULL, damaged INTEGER NOT NULL DEFAULT 0,
        UNIQUE(session, seq));
    CREATE TABLE body(id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, data BLOB NOT NULL);
    CREATE TABLE reference(body INTEGER NOT NULL, event INTEGER NOT NULL, PRIMARY KEY(body, event)) WITHOUT ROWID;
    """,
    "CREATE VIRTUAL TABLE search USING fts5(words, content='', detail=none, tokenize='unicode61 remove_diacritics 2');",
)
"""What brings a file from each version to the next; its version is the number of those it has seen."""

TABLES = {
    "session": (
        "number",
        "number, id, created, updated, last, kind, agent, workspace, task, state, parent, parent_seq, deleted",
    ),
    "body": ("id", "id, hash, data"),
    "event": ("id", "id, session, seq, time, kind, thread, data, damaged"),
    "reference": ("body", "body, event"),
}
"""What a file holds beside its index: the key and the columns of each table."""

BUSY_S = 5.0
"""Longest wait for another process that is writing; a write takes milliseconds."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as it stands in the file. `last` is the number of its newest event: the order of use."""

    number: int
    id: str
    created: float
    updated: float
    last: int
    kind: str
    agent: str
    workspace: str
    task: str
    state: str
    parent: int | None
    parent_seq: int | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event with its bodies by hash; a body that is missing or damaged is left out."""

    id: int
    seq: int
    time: float
    kind: str
    thread: str
    data: JSON
    bodies: Mapping[str, JSON]


_COLUMNS = "number, id, created, updated, last, kind, agent, workspace, task, state, parent, parent_seq"


class SessionStore:
    """Opens, or creates, the file in `folder`. Safe for use by several threads, and by several processes at once.

    `warnings` says what was found damaged and set aside. Raises `SessionError`: `SESSION_NEWER` for a file of a newer
    version (which is left untouched), else `SESSION` with the path and the cause.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self.warnings: list[str] = []
        self._guard = threading.RLock()
        with self._words():
            self._prepare_file()
            try:
                self._db = self._connect()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if _primary(error) not in _DAMAGE:
                    raise
                self._set_aside("is damaged")
                self._db = self._connect()

    def close(self) -> None:
        with self._guard, suppress(sqlite3.Error):
            self._db.close()

    # writing

    def append(
        self,
        number: int | None,
        rows: Sequence[Row],
        *,
        columns: Mapping[str, JSON] | None = None,
        task: str = "",
        state: str = "",
    ) -> int:
        """Write rows behind those of a session, all or none; returns the session's number.

        Without a number it is a new session made of `columns`. A `task` names a session that has no name yet; a
        `state` replaces its state.
        """
        with self._transaction(durable=any(row.durable for row in rows)):
            if number is None:
                number = self._create(columns or {})
            event = 0
            for seq, row in enumerate(rows, self._last_seq(number) + 1):
                event = self._insert(number, seq, row)
            self._db.execute(
                "UPDATE session SET updated = ?, last = max(last, ?), state = iif(? = '', state, ?),"
                " task = iif(task = '', ?, task) WHERE number = ?",
                (rows[-1].time, event, state, state, task, number),
            )
            return number

    def mark_damaged(self, events: Iterable[int]) -> None:
        """Set rows aside: they stay in the file and are no longer read."""
        with self._transaction():
            self._db.executemany("UPDATE event SET damaged = 1 WHERE id = ?", [(event,) for event in events])

    def adopt(self, table: str, columns: str, rows: Iterable[tuple[Any, ...]], redact: Redact) -> None:
        """Take rows of another file as they are, without the secrets that are known by now."""
        marks = ", ".join("?" * len(columns.split(",")))
        with self._transaction():
            self._db.executemany(
                f"INSERT OR IGNORE INTO {table}({columns}) VALUES({marks})",
                (tuple(_masked(value, redact) for value in row) for row in rows),
            )

    def index_anew(self) -> None:
        """Fill the search index from the messages there are."""
        with self._transaction():
            self._db.execute("INSERT INTO search(search) VALUES('delete-all')")
            self._db.executemany("INSERT INTO search(rowid, words) VALUES(?, ?)", self._indexed("id > ?", 0))

    def delete(self, numbers: Sequence[int]) -> None:
        """Forget sessions. What a fork shares with one of them goes when the last such fork goes."""
        with self._transaction():
            self._db.executemany("UPDATE session SET deleted = 1 WHERE number = ?", [(number,) for number in numbers])
            while gone := self._db.execute(
                "SELECT number FROM session AS s WHERE deleted = 1"
                " AND NOT EXISTS (SELECT 1 FROM session AS child WHERE child.parent = s.number) LIMIT 1"
            ).fetchone():
                self._erase(gone[0])
            # Deleted words would otherwise stand in the index until it happens to be merged.
            self._db.execute("INSERT INTO search(search) VALUES('optimize')")

    # reading

    def sessions(self, where: str = "", values: Sequence[Any] = ()) -> list[SessionRow]:
        """Sessions, the one used last in front. `where` is an SQL condition of this room."""
        condition = f"AND ({where})" if where else ""
        query = f"SELECT {_COLUMNS} FROM session WHERE deleted = 0 {condition} ORDER BY last DESC, number DESC"
        with self._reading():
            return [_session_row(row) for row in self._db.execute(query, tuple(values))]

    def last_seq(self, number: int) -> int:
        with self._reading():
            return self._last_seq(number)

    def events(self, number: int) -> tuple[list[EventRow], list[int]]:
        """All events of a session in order, those shared with the session it was forked from in front.

        Returns them with the ids of rows that cannot be read.
        """
        with self._reading():
            raw: list[tuple[Any, ...]] = []
            for owner, upto in self._lineage(number):
                raw += self._db.execute(
                    "SELECT id, seq, time, kind, thread, data FROM event"
                    " WHERE session = ? AND seq <= ? AND damaged = 0 ORDER BY seq",
                    (owner, upto),
                ).fetchall()
            return self._parsed(raw)

    def search(self, words: str, limit: int) -> list[tuple[SessionRow, EventRow]]:
        """Events whose text holds all the words, newest first, each with the session that holds it."""
        columns = ", ".join(f"s.{name.strip()}" for name in _COLUMNS.split(","))
        query = (
            f"SELECT {columns}, e.id, e.seq, e.time, e.kind, e.thread, e.data FROM search"
            " JOIN event AS e ON e.id = search.rowid JOIN session AS s ON s.number = e.session"
            " WHERE search MATCH ? AND s.deleted = 0 AND e.damaged = 0 ORDER BY e.id DESC LIMIT ?"
        )
        terms = " ".join(search_terms(words))
        if not terms:
            return []
        with self._reading():
            found = self._db.execute(query, (terms, limit)).fetchall()
            width = len(SessionRow.__dataclass_fields__)
            hits: list[tuple[SessionRow, EventRow]] = []
            for row in found:
                events, _ = self._parsed([row[width:]])
                hits += [(_session_row(row), event) for event in events]
            return hits

    # inside

    def _create(self, columns: Mapping[str, JSON]) -> int:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        cursor = self._db.execute(f"INSERT INTO session({names}) VALUES({marks})", tuple(columns.values()))
        return int(cursor.lastrowid or 0)

    def _insert(self, number: int, seq: int, row: Row) -> int:
        cursor = self._db.execute(
            "INSERT INTO event(session, seq, time, kind, thread, data) VALUES(?, ?, ?, ?, ?, ?)",
            (number, seq, row.time, row.kind, row.thread, row.data),
        )
        event = int(cursor.lastrowid or 0)
        for name, data in row.bodies:
            self._db.execute("INSERT OR IGNORE INTO body(hash, data) VALUES(?, ?)", (name, squeezed(data)))
            self._db.execute(
                "INSERT OR IGNORE INTO reference(body, event) SELECT id, ? FROM body WHERE hash = ?", (event, name)
            )
        if row.kind == "message":
            words = words_of(parse(row.data), {name: parse(data) for name, data in row.bodies})
            self._db.execute("INSERT INTO search(rowid, words) VALUES(?, ?)", (event, words))
        return event

    def _last_seq(self, number: int) -> int:
        own = self._db.execute("SELECT max(seq) FROM event WHERE session = ?", (number,)).fetchone()[0]
        if own is not None:
            return int(own)
        shared = self._db.execute("SELECT parent_seq FROM session WHERE number = ?", (number,)).fetchone()
        return int(shared[0] or 0) if shared else 0

    def _lineage(self, number: int) -> list[tuple[int, int]]:
        """The sessions that hold the history of this one, oldest first, each with its last shared event."""
        chain: list[tuple[int, int]] = []
        upto: int = 2**62
        current: int | None = number
        while current is not None and all(current != known for known, _ in chain):
            chain.append((current, upto))
            row = self._db.execute("SELECT parent, parent_seq FROM session WHERE number = ?", (current,)).fetchone()
            current, upto = (row[0], min(upto, row[1] or 0)) if row else (None, 0)
        return chain[::-1]

    def _parsed(self, raw: Sequence[tuple[Any, ...]]) -> tuple[list[EventRow], list[int]]:
        whole: list[tuple[tuple[int, int, float, str, str], JSON, list[str]]] = []
        damaged: list[int] = []
        for row in raw:
            try:
                data = parse(row[5])
                names = hashes_in(data.get("content")) if row[3] == "message" else []
                whole.append(((row[0], int(row[1]), float(row[2]), str(row[3]), str(row[4])), data, names))
            except (ValueError, TypeError, AttributeError, RecursionError):
                damaged.append(row[0])
        bodies = self._bodies({name for _, _, names in whole for name in names})
        events: list[EventRow] = []
        for row, data, names in whole:
            if all(name in bodies for name in names):
                events.append(EventRow(*row, data, {name: bodies[name] for name in names}))
            else:
                damaged.append(row[0])
        return events, damaged

    def _bodies(self, names: set[str]) -> dict[str, JSON]:
        found: dict[str, JSON] = {}
        wanted = sorted(names)
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            marks = ", ".join("?" * len(part))
            for name, data in self._db.execute(f"SELECT hash, data FROM body WHERE hash IN ({marks})", part):
                with suppress(ValueError, TypeError):
                    found[name] = parse(unsqueezed(data))
        return found

    def _erase(self, number: int) -> None:
        for event, words in self._indexed("session = ?", number):
            self._db.execute("INSERT INTO search(search, rowid, words) VALUES('delete', ?, ?)", (event, words))
        mine = "SELECT id FROM event WHERE session = ?"
        bodies = self._db.execute(f"SELECT DISTINCT body FROM reference WHERE event IN ({mine})", (number,)).fetchall()
        self._db.execute(f"DELETE FROM reference WHERE event IN ({mine})", (number,))
        self._db.executemany(
            "DELETE FROM body WHERE id = ? AND NOT EXISTS (SELECT 1 FROM reference WHERE body = body.id)", bodies
        )
        self._db.execute("DELETE FROM event WHERE session = ?", (number,))
        self._db.execute("DELETE FROM session WHERE number = ?", (number,))

    def _indexed(self, where: str, *values: Any) -> Iterator[tuple[int, str]]:
        """The messages of a condition with the words that the index has, or should have, of each."""
        last = 0
        while raw := self._db.execute(
            "SELECT id, seq, time, kind, thread, data FROM event"
            f" WHERE kind = 'message' AND {where} AND id > ? ORDER BY id LIMIT 500",
            (*values, last),
        ).fetchall():
            last = raw[-1][0]
            yield from ((event.id, words_of(event.data, event.bodies)) for event in self._parsed(raw)[0])

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Generator[None]:
        """All or nothing, and on disk afterwards when it is `durable` (else when the next durable one is)."""
        with self._guard, self._words():
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                yield

    @contextmanager
    def _reading(self) -> Generator[None]:
        with self._guard, self._words():
            yield

    @contextmanager
    def _words(self) -> Generator[None]:
        """Faults of the database and the disk as sentences."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise failure(error, self.path) from error
        except OSError as error:
            raise SessionError(
                f"the sessions in {self.path} cannot be used: {error.strerror or error}",
                hint="set DRAGOMAN_HOME to a writable folder",
            ) from error

    def _connect(self) -> sqlite3.Connection:
        with ExitStack() as undo:
            db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            undo.callback(db.close)
            # A damaged row must not hide the sound ones around it.
            db.text_factory = decoded
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA secure_delete = ON")
            self._migrate(db)
            undo.pop_all()
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        if _version(db) == len(MIGRATIONS):
            return
        db.execute("BEGIN IMMEDIATE")
        with db:
            version = _version(db)  # another process may have been faster
            _refuse_newer(version, self.path)
            for script in MIGRATIONS[version:]:
                for statement in script.split(";"):
                    db.execute(statement)
            if version == 1:  # it has messages, and the index is new
                self._db = db
                db.executemany("INSERT INTO search(rowid, words) VALUES(?, ?)", self._indexed("id > ?", 0))
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        # The version then stands in the file itself, where it can be read without opening the database.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _prepare_file(self) -> None:
        """Look at the file before SQLite does: what is not ours stays untouched, what is no database is set aside."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = refuse_foreign(self.path)
        if _is_database(head):
            return
        if head:
            self._set_aside("was empty" if not head.strip(b"\0\r\n\t ") else "is no session file")
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))

    def _set_aside(self, why: str) -> None:
        if (kept := set_aside(self.folder)) is not None:
            self.warnings.append(f"{self.path} {why}; it was kept as {kept.name} and a new file begun")


def refuse_foreign(path: Path) -> bytes:
    """The first 100 bytes of a file, if any. Raises `SessionError` for a newer version's file and another program's."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return b""
    if _is_database(head):
        if int.from_bytes(head[68:72]) not in (APPLICATION_ID, 0):
            raise SessionError(
                f"{path} belongs to another program", hint="move it away, or set DRAGOMAN_HOME elsewhere"
            )
        _refuse_newer(int.from_bytes(head[60:64]), path)
    return head


def _is_database(head: bytes) -> bool:
    return head.startswith(b"SQLite format 3\0") and len(head) == 100


def set_aside(folder: Path) -> Path | None:
    """Give the file of a folder another name and return that; None when there is no file."""
    path = folder / FILE_NAME
    kept = path.with_name(f"{FILE_NAME}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}")
    if not path.exists():
        return None
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{kept}{suffix}")
    return kept


def failure(error: Exception, path: Path) -> SessionError:
    """What SQLite met, as a sentence with the path and the cause."""
    words, hint, code = FAULTS.get(_primary(error), (str(error), "look at the file and its folder", "SESSION"))
    return SessionError(f"the sessions in {path} cannot be used: {words}", hint=hint, code=code)


_WRITABLE = "set DRAGOMAN_HOME to a writable folder"
FAULTS: dict[int, tuple[str, str, str]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space there and go on with --resume last", "SESSION"),
    sqlite3.SQLITE_IOERR: ("the disk reports an error", "check the disk, then go on with --resume last", "SESSION"),
    sqlite3.SQLITE_READONLY: ("it is read-only", _WRITABLE, "SESSION"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", _WRITABLE, "SESSION"),
    sqlite3.SQLITE_PERM: ("access is denied", _WRITABLE, "SESSION"),
    sqlite3.SQLITE_BUSY: ("another program keeps it locked", "close that program and try again", "SESSION"),
    sqlite3.SQLITE_LOCKED: ("another program keeps it locked", "close that program and try again", "SESSION"),
    sqlite3.SQLITE_CORRUPT: (
        "it is damaged",
        "python main.py sessions repair saves what can be read",
        "SESSION_DAMAGED",
    ),
    sqlite3.SQLITE_NOTADB: ("it is no database", "move it away", "SESSION_DAMAGED"),
}
"""SQLite's primary result codes: words, what to do next, our code."""


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _primary(error: Exception) -> int:
    """SQLite's result code. What it says of a damaged file may itself be no text, which Python then complains about."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _refuse_newer(version: int, path: Path) -> None:
    if version > len(MIGRATIONS):
        raise SessionError(
            f"{path} has format {version}; this version knows {len(MIGRATIONS)}",
            code="SESSION_NEWER",
            hint="use the newer version of Dragoman, or another DRAGOMAN_HOME; the file was not touched",
        )


def _masked(value: Any, redact: Redact) -> Any:
    """A column without secrets; a packed body that cannot be read stays as it is."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bytes):
        with suppress(ValueError):
            text = unsqueezed(value)
            return value if (masked := redact(text)) == text else squeezed(masked)
    return value


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _session_row(row: Sequence[Any]) -> SessionRow:
    """The columns, with those that hold something else than they should emptied."""

    def of(kind: Callable[[Any], Any], value: Any, default: Any) -> Any:
        try:
            return kind(value)
        except (TypeError, ValueError):
            return default

    number, name, created, updated, last, kind, agent, workspace, task, state, parent, parent_seq = row[:12]
    return SessionRow(
        number,
        of(str, name, ""),
        of(float, created, 0.0),
        of(float, updated, 0.0),
        of(int, last, 0),
        of(str, kind, ""),
        of(str, agent, ""),
        of(str, workspace, ""),
        of(str, task, ""),
        of(str, state, ""),
        parent,
        parent_seq,
    )
