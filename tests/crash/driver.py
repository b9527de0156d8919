"""Kills, or starves, a run in child processes at random moments until it has reached its end, and counts the harm.

    python -m tests.crash.driver FOLDER --kills 200 --seed 1
    python -m tests.crash.driver FOLDER --faults 100 --seed 1

Prints one JSON object; every list and count of harm in it has to be empty.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from app.memory.packing import unpack_message
from app.memory.sessions import DONE, Sessions
from app.schema.errors import SessionError
from app.schema.run import RunResult
from tests.crash.work import STEPS, Observer, work

ALIVE = os.WEXITED | os.WNOHANG | os.WNOWAIT
ENDED, FAILED_CLEANLY, BROKEN = 0, 3, 4
"""How a child ended: its run is over, it stopped with a sentence about the disk, anything else."""


class Starved:
    """A connection that fails from a certain write on, as a full or a broken disk does."""

    def __init__(self, db: sqlite3.Connection, after: int, code: int) -> None:
        self._db = db
        self._left = after
        self._code = code

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(("INSERT", "UPDATE", "BEGIN")):
            self._left -= 1
            if self._left < 0:
                error = sqlite3.OperationalError("injected")
                error.sqlite_errorcode = self._code
                raise error
        return self._db.execute(statement, *values)

    def __enter__(self) -> Any:
        return self._db.__enter__()

    def __exit__(self, *what: Any) -> Any:
        return self._db.__exit__(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class Driver:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.log = folder / "observer"
        self.found: dict[str, Any] = {"kills": 0, "starved": 0, "runs": 0, "once": 0, "unknown": 0}
        self.harm: dict[str, list[Any]] = {"lost": [], "doubled": [], "unrecorded": [], "invalid": [], "broken": []}
        self.session: str | None = None

    def kill_until(self, kills: int) -> None:
        while self.found["kills"] < kills or self.session is not None:
            child = self._fork(None)
            if self.found["kills"] < kills:
                self._wait_for_progress(child)
                os.kill(child, signal.SIGKILL)
            self._after(child)

    def _wait_for_progress(self, child: int) -> None:
        """Until the observer saw some more, and a moment longer: at any stage, on a busy machine too."""
        enough = self._size() + self.random.randrange(600)
        end = time.monotonic() + 1
        while self._size() < enough and time.monotonic() < end and os.waitid(os.P_PID, child, ALIVE) is None:
            time.sleep(0.0005)
        time.sleep(self.random.uniform(0, 0.003))

    def _size(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def starve_until(self, faults: int) -> None:
        while self.found["starved"] < faults or self.session is not None:
            fault = self.random.choice((self._full, self._broken, self._quota))
            self._after(self._fork(fault if self.found["starved"] < faults else None))

    def _full(self, sessions: Sessions) -> None:
        sessions.store._db = Starved(sessions.store._db, self.random.randrange(120), sqlite3.SQLITE_FULL)  # type: ignore[assignment]

    def _broken(self, sessions: Sessions) -> None:
        sessions.store._db = Starved(sessions.store._db, self.random.randrange(120), sqlite3.SQLITE_IOERR)  # type: ignore[assignment]

    def _quota(self, sessions: Sessions) -> None:
        """No file may grow beyond a point: the kernel itself cuts a write in the middle."""
        largest = max(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + self.random.randrange(60_000), resource.RLIM_INFINITY))

    def _fork(self, prepare: Any) -> int:
        seed = self.random.random()
        child = os.fork()
        if child:
            return child
        self.random.seed(seed)
        try:
            result = asyncio.run(work(self.folder, Observer(self.log), self.session, prepare or (lambda _: None)))
            code = _code_of(result)
        except SessionError:
            code = FAILED_CLEANLY
        except BaseException:
            import traceback

            traceback.print_exc()
            code = BROKEN
        os._exit(code)

    def _after(self, child: int) -> None:
        _, status = os.waitpid(child, 0)
        seen = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        stored = self._stored(seen)
        if os.WIFSIGNALED(status):
            self.found["kills"] += 1
        elif (code := os.waitstatus_to_exitcode(status)) == FAILED_CLEANLY:
            self.found["starved"] += 1
        elif code == BROKEN:
            self.harm["broken"].append(self.session)
        elif stored is not None:
            self._finish(seen, stored)

    def _stored(self, seen: list[Any]) -> dict[str, Any] | None:
        """What the file holds of the session, checked against what was promised."""
        names = [what for kind, what in seen if kind == "session"]
        if not names:
            return None
        if not (self.folder / "sessions.db").exists():
            return None
        sessions = Sessions(self.folder)
        try:
            rows = sessions.store.sessions("id = ?", (names[-1],))
            if not rows:
                kept = [what for kind, what in seen if kind == "kept"]
                self.harm["lost"] += kept
                return None
            self.session = names[-1]
            events, damaged = sessions.store.events(rows[0].number)
        finally:
            sessions.close()
        self.harm["lost"] += [f"damaged {row}" for row in damaged]
        messages = [unpack_message(event.data, event.bodies) for event in events if event.kind == "message"]
        there = {message.id for message in messages}
        self.harm["lost"] += [what for kind, what in seen if kind == "kept" and what not in there]
        calls = {call.id: call for message in messages for call in message.tool_calls}
        started = Counter(
            (calls[event.data["call"]].name, json.loads(calls[event.data["call"]].arguments)["number"])
            for event in events
            if event.kind == "started"
        )
        effects = Counter((what[0], what[1]) for kind, what in seen if kind == "effect")
        self.harm["doubled"] += [deed for deed, times in effects.items() if deed[0] == "once" and times > 1]
        self.harm["unrecorded"] += [deed for deed, times in effects.items() if started[deed] < times]
        self.harm["invalid"] += [what for kind, what in seen if kind == "invalid"]
        return {"messages": messages, "state": rows[0].state, "effects": effects}

    def _finish(self, seen: list[Any], stored: dict[str, Any]) -> None:
        text = "".join(result.text for message in stored["messages"] for result in message.tool_results)
        if stored["state"] not in DONE or stored["messages"][-1].text != "all is done":
            self.harm["broken"].append(f"{self.session} ended as {stored['state']}")
        self.found["runs"] += 1
        self.found["once"] += sum(deed[0] == "once" for deed in stored["effects"])
        self.found["unknown"] += text.count("not run")
        missing = STEPS - len({deed[1] for deed in stored["effects"]}) - text.count("not run")
        if missing > 0:
            self.harm["lost"].append(f"{missing} steps of {self.session} never happened")
        self.log.unlink()
        self.session = None


def _code_of(result: RunResult) -> int:
    if result.ok:
        return ENDED
    return FAILED_CLEANLY if result.error is not None and result.error.code == "SESSION" else BROKEN


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    driver = Driver(options.folder, options.seed)
    if options.kills:
        driver.kill_until(options.kills)
    if options.faults:
        driver.starve_until(options.faults)
    json.dump({**driver.found, "harm": {kind: what for kind, what in driver.harm.items() if what}}, sys.stdout)


if __name__ == "__main__":
    main()
