"""`Sessions` and `Session`: what happened, kept so that any end can be gone on from; the file is another's matter."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from app.config.secrets import Redactor
from app.memory.journal import Journal
from app.memory.memory import Memory
from app.memory.packing import Redact, Row, message_row, plain_row
from app.memory.recover import Restored, last_plan, plan_to_json, restore
from app.memory.session_lock import SessionLock
from app.memory.session_store import FILE_NAME, EventRow, SessionRow, SessionStore
from app.paths import runtime_home
from app.schema.errors import SessionError
from app.schema.event import EventRecord, PlanChanged, RunFinished, RunStarted
from app.schema.message import JSON, Message, ToolCallBlock
from app.schema.plan import Plan

ID = re.compile(r"[0-9a-z][0-9a-z-]{0,63}\Z")
RUNNING = "running"
INTERRUPTED = "interrupted"
"""The state of a session whose process is gone while its run had not ended."""

DONE = frozenset({"answered", "finished"})
TASK_CHARS = 200


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that a search found."""

    session: SessionRow
    seq: int
    time: float
    message: Message


class Sessions:
    """Every session of a runtime home. `redact` takes secrets out of whatever is written.

    Raises `SessionError` when the file cannot be used; `warnings` says what was damaged and set aside.
    """

    def __init__(self, folder: Path | None = None, *, redact: Redact | None = None) -> None:
        self.folder = folder or sessions_folder()
        self.store = SessionStore(self.folder)
        self.redact = redact or Redactor()
        self.writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions")

    @staticmethod
    def exist(folder: Path | None = None) -> bool:
        """Whether anything was ever stored there; asking creates nothing."""
        return ((folder or sessions_folder()) / FILE_NAME).exists()

    @property
    def warnings(self) -> list[str]:
        return self.store.warnings

    def close(self) -> None:
        self.writer.shutdown()
        self.store.close()

    def create(self, *, kind: str = "agent", agent: str = "", workspace: str = "") -> Session:
        """A new session, locked for this process. It stands in the file from its first event on."""
        return Session(self, secrets.token_hex(4), kind=kind, agent=agent, workspace=workspace)

    def resume(self, reference: str, *, workspace: str | None = None) -> Session:
        """A stored session, locked for this process: `SESSION_UNKNOWN`, `SESSION_BUSY`.

        `reference` is an id, the beginning of one, or `last`: the one used last in `workspace`.
        """
        return Session(self, self.find(reference, workspace=workspace))

    def find(self, reference: str, *, workspace: str | None = None) -> SessionRow:
        """The session of a reference; `SESSION_UNKNOWN` says what is wrong with it."""
        hint = "python main.py sessions list shows them"
        if reference == "last":
            where = ("workspace = ?", (workspace,)) if workspace is not None else ("", ())
            found = self.store.sessions(*where)
            if not found:
                place = f" for the workspace {workspace}" if workspace is not None else ""
                raise SessionError(f"there is no session yet{place}", code="SESSION_UNKNOWN", hint=hint)
            return found[0]
        if not ID.match(reference):
            words = "a session's id has small letters, digits and hyphens only"
            raise SessionError(f"{reference[:80]!r} names no session: {words}", code="SESSION_UNKNOWN", hint=hint)
        found = self.store.sessions("id = ?", (reference,)) or self.store.sessions("id GLOB ?", (f"{reference}*",))
        if len(found) == 1:
            return found[0]
        several = f"several sessions begin with {reference}: {', '.join(row.id for row in found[:5])}"
        message = several if found else f"there is no session {reference}"
        raise SessionError(message, code="SESSION_UNKNOWN", hint=hint)

    def list(self, workspace: str | None = None) -> list[SessionRow]:
        """All sessions, or those of a workspace, the one used last in front."""
        return self.store.sessions(*(("workspace = ?", (workspace,)) if workspace is not None else ("", ())))

    def state(self, row: SessionRow) -> str:
        """How a session stands: `running`, how its last run ended, or `interrupted`."""
        if row.state != RUNNING:
            return row.state or INTERRUPTED
        return RUNNING if self.lock(row.id).held_elsewhere else INTERRUPTED

    def read(self, row: SessionRow) -> tuple[dict[str, tuple[Memory, Restored]], list[int]]:
        """What a session holds, without taking or changing it: each memory by its thread, and damaged rows."""
        events, damaged = self.store.events(row.number)
        threads = dict.fromkeys(event.thread for event in events if event.kind == "message")
        held: dict[str, tuple[Memory, Restored]] = {}
        for thread in threads:
            memory = Memory()
            held[thread] = (memory, restore(memory, events, thread))
            damaged += held[thread][1].damaged
        return held, damaged

    def fork(self, reference: str, *, at: int | None = None, workspace: str | None = None) -> SessionRow:
        """A session that shares the history of another, up to event `at` (default: all), and goes its own way.

        Takes the same time however long the history is, and may be done while the other is in use.
        """
        source = self.find(reference, workspace=workspace)
        last = self.store.last_seq(source.number)
        upto = last if at is None else max(0, min(at, last))
        now = time.time()
        columns: dict[str, JSON] = {
            "id": (name := secrets.token_hex(4)),
            "created": now,
            "updated": now,
            "kind": source.kind,
            "agent": source.agent,
            "workspace": source.workspace,
            "task": source.task,
            "state": "" if source.state == RUNNING else source.state,
            "parent": source.number,
            "parent_seq": upto,
        }
        origin = {"fork_of": source.id, "at": upto}
        row = plain_row("created", origin, thread="", time=now, redact=self.redact, durable=True)
        self.store.append(None, [row], columns=columns)
        return self.store.sessions("id = ?", (name,))[0]

    def delete(self, reference: str) -> SessionRow:
        """Forget a session that nobody uses; `SESSION_BUSY` otherwise."""
        row = self.find(reference)
        lock = self.lock(row.id)
        lock.acquire()
        try:
            self.store.delete([row.number])
        finally:
            lock.release()
        return row

    def prune(self, keep_days: float) -> int:
        """Forget sessions that nobody used for so many days; returns how many."""
        gone: list[int] = []
        for row in self.store.sessions("updated < ?", (time.time() - keep_days * 86_400,)):
            lock = self.lock(row.id)
            with suppress(SessionError):
                lock.acquire()
                gone.append(row.number)
                lock.release()
        if gone:
            self.store.delete(gone)
        return len(gone)

    def search(self, words: str, *, limit: int = 20) -> list[Hit]:
        """Messages that hold all the words, newest first. `ValueError` for a negative limit; 0 finds nothing."""
        if limit < 0:
            raise ValueError("a limit below zero")
        hits: list[Hit] = []
        for row, event in self.store.search(words, limit):
            memory = Memory()
            restore(memory, [event], event.thread)
            hits += [Hit(row, event.seq, event.time, message) for message in memory.messages]
        return hits

    def lock(self, session: str) -> SessionLock:
        return SessionLock(self.folder / "locks", session)


class Session:
    """One session in use. Recording is cheap and never waits; `settled` waits for the disk.

    `watch` is an event sink that keeps how runs began and ended and how a plan changed.
    """

    def __init__(
        self, sessions: Sessions, row: SessionRow | str, *, kind: str = "", agent: str = "", workspace: str = ""
    ) -> None:
        self._sessions = sessions
        self._queue: deque[tuple[Row, str, str]] = deque()
        self._writing = threading.Lock()
        self._events: list[EventRow] = []
        self._number: int | None = None
        self.damaged: list[int] = []
        self.id = row if isinstance(row, str) else row.id
        self._lock = sessions.lock(self.id)
        self._lock.acquire()
        if isinstance(row, str):
            self.row = SessionRow(0, row, time.time(), 0.0, 0, kind, agent, workspace, "", "", None, None)
            self._put("created", {"id": row})
            return
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            self.row = sessions.find(row.id)  # as it is now that it is ours
            self._number = row.number
            self._events, self.damaged = sessions.store.events(row.number)
            undo.pop_all()

    @property
    def unfinished(self) -> bool:
        """Whether the last run of a stored session left something to go on with."""
        return bool(self._events) and self.row.state not in DONE

    @property
    def task(self) -> str:
        """The task of the last run, whole."""
        tasks = (event.data.get("task") for event in reversed(self._events) if event.kind == "run_started")
        return next((task for task in tasks if isinstance(task, str)), "")

    @property
    def plan(self) -> Plan | None:
        """The newest plan of a flow."""
        return last_plan(self._events)

    def has(self, thread: str) -> bool:
        """Whether an earlier process left messages under this name."""
        return any(event.thread == thread and event.kind == "message" for event in self._events)

    def doubts(self, thread: str = "") -> tuple[ToolCallBlock, ...]:
        """Calls of an earlier process with an effect that may have happened, as `attach` tells them too."""
        return restore(Memory(), self._events, thread).doubts

    def journal(self, thread: str = "") -> Journal:
        """The journal of one memory: the agent's own, or a step's of a flow by its name."""
        return _Thread(self, thread)

    def attach(self, memory: Memory, thread: str = "", *, keep_question: bool = False) -> Restored:
        """Give an empty memory what the session holds, close what was cut off, and keep whatever is added from now on.

        With `keep_question` a question that waits for its answer stays open; answer it before the next run.
        """
        restored = restore(memory, self._events, thread, keep_question=keep_question)
        self.damaged += restored.damaged
        memory.journal = self.journal(thread)
        memory.add_all(restored.closers)
        return restored

    def set_damaged_aside(self) -> int:
        """Mark rows that could not be read, so that they are told of once; returns how many there were."""
        rows, self.damaged = self.damaged, []
        if rows:
            self._sessions.store.mark_damaged(rows)
        return len(rows)

    def watch(self, record: EventRecord) -> None:
        """Keep what an event says about the session as a whole."""
        event = record.event
        if record.parent is not None:
            return
        if isinstance(event, PlanChanged) and self.row.kind == "flow":
            self._put("plan_changed", {"plan": plan_to_json(event.plan)})
        elif isinstance(event, RunStarted):
            data = {key: value for key, value in record.to_json().items() if key not in ("type", "session")}
            self._put("run_started", data, task=title(event.task), state=RUNNING)
        elif isinstance(event, RunFinished):
            data = {key: value for key, value in record.to_json().items() if key not in ("type", "session", "answer")}
            self._put("run_finished", data, state=event.stop_reason)

    def record(self, message: Message, thread: str = "") -> None:
        row = message_row(message, thread=thread, time=time.time(), redact=self._sessions.redact)
        self._queue.append((row, "", ""))

    def note(self, kind: str, data: Mapping[str, JSON], thread: str = "") -> None:
        self._put(kind, data, thread=thread)

    async def started(self, call: ToolCallBlock, effect: str, thread: str = "") -> None:
        data = {"call": call.id, "name": call.name, "effect": effect}
        self._put("started", data, thread=thread, durable=effect != "read")
        await self.settled()

    async def settled(self) -> None:
        """Wait until everything recorded so far is on disk. Raises `SessionError`; the rest is kept for another try."""
        if not self._queue:
            return
        writing = asyncio.get_running_loop().run_in_executor(self._sessions.writer, self._write)
        # A cancelled wait leaves the write to end by itself.
        if (error := await asyncio.shield(writing)) is not None:
            raise error

    def close(self) -> None:
        """Write what is left and let the session go. Raises `SessionError` when it could not be written."""
        error = self._write()
        self._lock.release()
        if error is not None:
            raise error

    def _put(
        self,
        kind: str,
        data: Mapping[str, JSON],
        *,
        thread: str = "",
        task: str = "",
        state: str = "",
        durable: bool = True,
    ) -> None:
        redact = self._sessions.redact
        row = plain_row(kind, data, thread=thread, time=time.time(), redact=redact, durable=durable)
        self._queue.append((row, redact(task), state))

    def _write(self) -> SessionError | None:
        """Everything in the queue in one transaction. What fails stays in the queue, so that nothing is lost."""
        with self._writing:
            batch = list(self._queue)
            if not batch or (self._number is None and len(batch) == 1 and batch[0][0].kind == "created"):
                return None
            task = next((task for _, task, _ in batch if task), "")
            state = next((state for _, _, state in reversed(batch) if state), "")
            columns = None if self._number is not None else self._columns()
            rows = [row for row, _, _ in batch]
            try:
                self._number = self._sessions.store.append(self._number, rows, columns=columns, task=task, state=state)
            except SessionError as error:
                return error
            for _ in batch:
                self._queue.popleft()
            return None

    def _columns(self) -> dict[str, JSON]:
        row = self.row
        columns = {"id": row.id, "created": row.created, "updated": row.created, "kind": row.kind}
        return columns | {"agent": row.agent, "workspace": row.workspace}


class _Thread:
    """The journal of one memory inside a session."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._name = name

    def record(self, message: Message) -> None:
        self._session.record(message, self._name)

    def note(self, kind: str, data: Mapping[str, JSON]) -> None:
        self._session.note(kind, data, self._name)

    async def started(self, call: ToolCallBlock, effect: str) -> None:
        await self._session.started(call, effect, self._name)

    async def settled(self) -> None:
        await self._session.settled()


def sessions_folder() -> Path:
    """Where sessions are kept unless another folder is named."""
    return runtime_home() / "sessions"


def title(task: str) -> str:
    """The first line of a task, for lists."""
    lines = [line.strip() for line in task.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if len(first) <= TASK_CHARS else f"{first[: TASK_CHARS - 1]}…"
