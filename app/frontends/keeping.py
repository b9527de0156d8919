"""The session that a program's turns are kept in: opened, resumed, told about, closed. Storing is `app/memory`'s."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.agents.react import ReActAgent
from app.agents.toolcall import ToolCallAgent
from app.config.settings import SessionSettings
from app.frontends.terminal import many
from app.memory.recover import Restored
from app.memory.sessions import RUNNING, Session, Sessions
from app.paths import lies_in
from app.schema.errors import SessionError, UsageError
from app.schema.event import EventRecord, Notice, RunStarted
from app.schema.message import tool_result_message
from app.schema.plan import Plan
from app.schema.run import EventSink, RunContext

Tell = Callable[[str, str], None]
IN_REACH = "the sessions lie inside the workspace, where an agent may change them; set DRAGOMAN_HOME to another folder"
NOT_KEPT = "this run is not stored and cannot be resumed: {why}"


@dataclass(slots=True)
class Keeping:
    """A session in use, or none, with what has to be said about it in the next run."""

    sessions: Sessions | None = None
    session: Session | None = None
    notices: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    restored: Restored = field(default_factory=Restored)
    _attached: set[str] = field(default_factory=set[str])
    _tell: Tell | None = None
    _model_spoke_last: bool = False

    @property
    def id(self) -> str | None:
        return self.session.id if self.session is not None else None

    @property
    def unfinished(self) -> bool:
        """Whether a run can go on without a new word: not when it failed with the model's last word."""
        if self.session is None or not self.session.unfinished:
            return False
        return self.session.row.state == RUNNING or not self._model_spoke_last

    @property
    def question(self) -> str:
        """What an agent has asked and nobody has answered yet."""
        return self.restored.asked

    @property
    def task(self) -> str:
        return self.session.task if self.session is not None else ""

    @property
    def plan(self) -> Plan | None:
        return self.session.plan if self.session is not None else None

    def sink(self, sink: EventSink, tell: Tell) -> EventSink:
        """A sink that keeps what it passes on, and tells what there is to tell once the run has begun."""

        def watching(record: EventRecord) -> None:
            if self.session is not None:
                self.session.watch(record)
            sink(record)
            if isinstance(record.event, RunStarted):
                self._tell = tell
                waiting, self.notices = self.notices, []
                for code, message in waiting:
                    tell(code, message)

        return watching

    def attach(self, agent: ReActAgent, thread: str = "", *, fresh: bool = False) -> bool:
        """Give the agent what is stored under this name, and keep what it does. True when there was something."""
        session = self.session
        if session is None:
            return False
        known = thread in self._attached
        self._attached.add(thread)
        if isinstance(agent, ToolCallAgent):
            # Also for a second attempt in this process: the first one's toolbox is gone.
            agent.toolbox.doubt(session.doubts(thread))
        if fresh or known or not session.has(thread):
            agent.memory.journal = session.journal(thread)
            return False
        restored = session.attach(agent.memory, thread, keep_question=not thread)
        if restored.closers:
            names = ", ".join(sorted({call.name for call in restored.doubts}))
            doubt = f"; whether {names} had its effect is unknown" if names else ""
            self._note("SESSION_REPAIRED", f"{many(len(restored.closers), 'call')} cut off in the run before{doubt}")
        if not thread:
            self.restored = restored
            last = agent.memory.messages[-1:]
            self._model_spoke_last = bool(last) and last[0].role == "assistant" and restored.question is None
        return True

    def answer(self, agent: ReActAgent, words: str) -> bool:
        """Take the words as the answer to the question that waits; False when none does."""
        question, self.restored.question = self.restored.question, None
        if question is None:
            return False
        agent.memory.add(tool_result_message(question.id, words))
        return True

    def _note(self, code: str, message: str) -> None:
        """Say it in the run that goes on, else in the next."""
        if self._tell is not None:
            self._tell(code, message)
        else:
            self.notices.append((code, message))

    async def settled(self) -> None:
        if self.session is not None:
            await self.session.settled()

    def close(self) -> None:
        """Write what is left and let everything go. What cannot be written was told by the run itself."""
        if self.session is not None:
            with suppress(SessionError):
                self.session.close()
        if self.sessions is not None:
            self.sessions.close()
        self.session = self.sessions = None


def open_keeping(
    settings: SessionSettings,
    redact: Callable[[str], str],
    *,
    resume: str | None,
    kind: str,
    agent: str,
    workspace: str,
) -> Keeping:
    """The session to work in: `resume` names a stored one, else it is a new one.

    A place where nothing can be kept does not stop a new run, which says so. Raises `SessionError` or `UsageError`
    when a stored session was asked for and cannot be had.
    """
    if resume is None and not settings.save:
        return Keeping()
    if resume is not None and not Sessions.exist():
        raise SessionError("there is no session yet", code="SESSION_UNKNOWN", hint="run without --resume")
    sessions: Sessions | None = None
    try:
        sessions = Sessions(redact=redact)
        keeping = Keeping(sessions, notices=[("SESSION_DAMAGED", warning) for warning in sessions.warnings])
        if resume is not None:
            keeping.session = _resumed(sessions, resume, kind=kind, workspace=workspace)
            if count := keeping.session.set_damaged_aside():
                keeping.notices.append(("SESSION_DAMAGED", f"{many(count, 'damaged row')} of the session set aside"))
        else:
            keeping.session = sessions.create(kind=kind, agent=agent, workspace=workspace)
        if lies_in(sessions.folder, Path(workspace)):
            keeping.notices.append(("HINT", IN_REACH))
        if settings.keep_days is not None:
            sessions.writer.submit(sessions.prune, settings.keep_days)
    except SessionError as error:
        if sessions is not None:
            sessions.close()
        if resume is not None:
            raise
        return Keeping(notices=[("SESSION_NOT_KEPT", NOT_KEPT.format(why=error.message))])
    return keeping


def _resumed(sessions: Sessions, reference: str, *, kind: str, workspace: str) -> Session:
    row = sessions.find(reference, workspace=workspace)
    if row.kind != kind:
        program = "run_flow.py" if row.kind == "flow" else "main.py"
        raise UsageError(
            f"the session {row.id} is one of {program}", hint=f"python {program} --resume {row.id} goes on with it"
        )
    return sessions.resume(row.id)


def tell_in(ctx: RunContext) -> Tell:
    return lambda code, message: ctx.emit(Notice(code, message))
