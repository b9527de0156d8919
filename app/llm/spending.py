"""The ledgers above a run: one for all runs of a process, one for all processes of a day, which lives in a small file.

What ledgers do is `schema/usage.py`'s matter; what a call may cost is worked out in `budget.py`.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TypeVar

from app.config.settings import BudgetSettings, LimitSettings
from app.paths import runtime_home
from app.schema.usage import Amount, Hold, Ledger, Limits, Usage, Worst

T = TypeVar("T")

FILE_NAME = "spending.db"
HELD_S = 900.0
"""The hold of a process that cannot be asked (another machine, another container) counts for so long."""
BUSY_S = 1.0
"""Longest wait for another process that is writing; a write takes less than a millisecond."""

_TABLES = """
CREATE TABLE IF NOT EXISTS spent(
    day TEXT PRIMARY KEY, tokens INTEGER NOT NULL DEFAULT 0, cost REAL NOT NULL DEFAULT 0,
    requests INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS held(
    owner TEXT NOT NULL, number INTEGER NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, since REAL NOT NULL,
    tokens INTEGER NOT NULL, cost REAL NOT NULL, PRIMARY KEY(owner, number));
"""
_ADD = """
INSERT INTO spent(day, tokens, cost, requests) VALUES(?, ?, ?, ?) ON CONFLICT(day) DO UPDATE SET
    tokens = tokens + excluded.tokens, cost = cost + excluded.cost, requests = requests + excluded.requests
"""


def process_ledger(budget: BudgetSettings, home: Path | None = None) -> Ledger:
    """The ledger of a process, under that of the day when a limit of `[budget.day]` is set.

    A day is counted from the moment that it has a limit: without one no file is written.
    """
    day = None
    if budget.day != LimitSettings():
        day = DayLedger((home or runtime_home()) / FILE_NAME, _limits(budget.day))
    limits = _limits(budget.process)
    return Ledger(limits.max_tokens, limits.max_cost, limits.max_requests, scope="process", parent=day)


def run_ledger(budget: BudgetSettings, process: Ledger, *, one_agent: bool) -> Ledger:
    """The ledger of a new run; with `one_agent`, that of the run's only agent, under the run's."""
    run = Ledger(
        budget.max_tokens,
        budget.max_cost,
        budget.max_requests,
        scope="run",
        parent=process,
        for_agents=_limits(budget.agent),
        unpriced=budget.unpriced,
    )
    return run.child() if one_agent else run


def close_ledgers(process: Ledger) -> None:
    """Close the file of the day, if there is one; a later call opens it again."""
    for ledger in process.chain():
        if isinstance(ledger, DayLedger):
            ledger.close()


def _limits(settings: LimitSettings) -> Limits:
    return Limits(settings.max_tokens, settings.max_cost, settings.max_requests)


def _today() -> str:
    """The day on the user's calendar."""
    return date.today().isoformat()


class DayLedger(Ledger):
    """What all processes that share the file spend today, with what their calls under way hold.

    Admission is one transaction, so processes side by side cannot overshoot together. A process that ended without
    giving back holds nothing. A file that cannot be used never stops a run: `trouble` says so, a damaged one is set
    aside, and this process goes on counting for itself.
    """

    def __init__(self, path: Path, limits: Limits, *, today: Callable[[], str] = _today) -> None:
        super().__init__(limits.max_tokens, limits.max_cost, limits.max_requests, scope="day")
        self._path = path
        self._today = today
        self._day = today()
        self._owner = os.urandom(8).hex()
        self._numbers: dict[int, int] = {}
        self._next = 0
        self._db: sqlite3.Connection | None = None

    @property
    def spent(self) -> Amount:
        """Spent today by all processes, and held by the other ones."""
        known = self._try(self._read)
        return self._own_spending() if known is None else known

    def hold(self, config: str, worst: Worst, *, max_input_tokens: int | None = None) -> Hold:
        hold = Hold(self, config, worst, None)
        if self._try(lambda db: self._admit(db, hold)) is None:
            self._check_own(worst, when_settled=False)
        self._take(hold)
        return hold

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _give_back(self, hold: Hold, usage: Usage | None, cost_usd: float | None) -> None:
        super()._give_back(hold, usage, cost_usd)
        number = self._numbers.pop(id(hold), None)
        if number is not None:
            self._try(lambda db: db.execute("DELETE FROM held WHERE owner = ? AND number = ?", (self._owner, number)))

    def _add(self, config: str, usage: Usage, cost_usd: float | None) -> None:
        self._own_spending()
        super()._add(config, usage, cost_usd)
        self._try(lambda db: db.execute(_ADD, (self._today(), usage.total, cost_usd or 0.0, 0)))

    def _own_spending(self) -> Amount:
        """What this process alone has spent today."""
        if (today := self._today()) != self._day:
            self._day, self.requests, self.unpriced_calls = today, 0, 0
            self.by_config.clear()
            self.costs.clear()
        return Amount(self.usage.total, self.known_cost_usd, self.requests)

    def _read(self, db: sqlite3.Connection) -> Amount:
        spent = db.execute("SELECT tokens, cost, requests FROM spent WHERE day = ?", (self._today(),)).fetchone()
        held = db.execute(
            "SELECT COALESCE(SUM(tokens), 0), COALESCE(SUM(cost), 0) FROM held WHERE owner <> ?", (self._owner,)
        ).fetchone()
        tokens, cost, requests = spent or (0, 0.0, 0)
        return Amount(tokens + held[0], cost + held[1], requests)

    def _admit(self, db: sqlite3.Connection, hold: Hold) -> bool:
        with _transaction(db):
            self._forget_the_dead(db)
            self._check_own(hold.worst, when_settled=False)
            self._next += 1
            worst = hold.worst
            db.execute(
                "INSERT INTO held VALUES(?, ?, ?, ?, ?, ?, ?)",
                (self._owner, self._next, socket.gethostname(), os.getpid(), time.time(), worst.tokens,
                 worst.cost_usd or 0.0),
            )  # fmt: skip
            db.execute(_ADD, (self._today(), 0, 0.0, 1))
        self._numbers[id(hold)] = self._next
        return True

    def _forget_the_dead(self, db: sqlite3.Connection) -> None:
        for owner, host, pid, since in db.execute(
            "SELECT owner, host, pid, MAX(since) FROM held WHERE owner <> ? GROUP BY owner", (self._owner,)
        ).fetchall():
            if time.time() - since > HELD_S or (host == socket.gethostname() and not _lives(pid)):
                db.execute("DELETE FROM held WHERE owner = ?", (owner,))

    def _try(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """The work on the file; None, with `trouble`, where the file cannot be used."""
        try:
            return work(self._open())
        except sqlite3.OperationalError as error:
            self._say(f"{error}")
        except sqlite3.DatabaseError as error:
            self._set_aside(f"{error}")
        except OSError as error:
            self._say(error.strerror or str(error))
        return None

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                db.executescript(_TABLES)
            except sqlite3.Error:
                db.close()
                raise
            self._db = db
        return self._db

    def _set_aside(self, why: str) -> None:
        """Move a damaged file out of the way; a new one starts with what this process has spent."""
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged-{time.time_ns()}")
        self._say(f"{why}; it was set aside as {aside.name}, and the count of today starts anew")
        try:
            self._path.rename(aside)
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            own = self._own_spending()
            self._open().execute(_ADD, (self._today(), own.tokens, own.cost_usd, own.requests))
        except (OSError, sqlite3.Error) as error:
            self._say(f"{why}, and no new one could be made: {error}")

    def _say(self, why: str) -> None:
        self.trouble = (
            f"the day's spending in {self._path} could not be used ({why}); the limits of [budget.day] may be exceeded"
        )


@contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")


def _lives(pid: int) -> bool:
    if os.name == "nt":
        return True  # where a signal of nothing is not nothing; the hold runs out by itself
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
