"""A run from the front end's side: started with its views, stopped by signals, its answer and its end told."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import sys
import time
from typing import TYPE_CHECKING

from app.frontends.front import Front
from app.frontends.intake import read_image, task_of
from app.frontends.interrupts import Interrupts
from app.frontends.keeping import Keeping, open_keeping
from app.frontends.launch import Work, build_work, configuration
from app.frontends.person import PersonAtTerminal
from app.frontends.report import exit_code_of
from app.frontends.terminal import TerminalView
from app.llm.downloads import DownloadHooks, consent_given, refuse
from app.schema.errors import UsageError
from app.schema.event import EventRecord, RunFinished

if TYPE_CHECKING:
    from app.llm.downloads import Progress
    from app.memory.compaction import Compaction
    from app.schema.message import ImageBlock
    from app.schema.run import RunContext, RunResult


def start(front: Front, options: argparse.Namespace, *, flow: bool) -> int:
    """Run the task, or a conversation when there is none and a person is there; returns the exit code."""
    # What is gone on with needs no new words; standard input is read when `-` asks for it.
    resumes_silently = options.resume is not None and options.task is None and options.prompt is None
    task = None if resumes_silently else task_of(options)
    images = tuple(read_image(path) for path in options.image)
    if not front.debug:
        # With nobody to listen, Python prints a library's log lines to standard error (asyncio's child watcher has
        # one for a child that was reaped elsewhere); people see our words only.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    return asyncio.run(_start(front, options, task, images, flow=flow))


async def _start(
    front: Front, options: argparse.Namespace, task: str | None, images: tuple[ImageBlock, ...], *, flow: bool
) -> int:
    interrupts = Interrupts()
    try:
        with interrupts.installed():
            config = await configuration(options)
            front.redactor.learn(config)
            view = None
            if not options.json:
                view = TerminalView(
                    sys.stderr or io.StringIO(), front.redactor, quiet=options.quiet, debug=options.debug
                )
            stage = Stage(front, view, interrupts)
            person = _person(view)
            consent = consent_given if options.yes else person.consent if person else refuse
            hooks = DownloadHooks(consent=consent, progress=stage.progress)
            stage.work = build_work(options, config, flow=flow, person=person, downloads=hooks)
            try:
                stage.work.keep(_keeping(front, options, stage.work, flow=flow))
                if task is not None:
                    return exit_code_of(await stage.play(task, images))
                at_terminal = view is not None and sys.stdin is not None and sys.stdin.isatty()
                if options.resume is not None:
                    result = await _go_on(stage, images, at_terminal=at_terminal)
                    if result is not None and not at_terminal:
                        return exit_code_of(result)
                from app.frontends.conversation import converse

                return await converse(stage)
            finally:
                await stage.work.close()
    finally:
        front.signal_code = interrupts.exit_code


def _keeping(front: Front, options: argparse.Namespace, work: Work, *, flow: bool) -> Keeping:
    return open_keeping(
        work.app.config.sessions,
        front.redactor,
        resume=options.resume,
        kind="flow" if flow else "agent",
        agent=options.agent,
        workspace=str(work.app.workspace),
    )


async def _go_on(stage: Stage, images: tuple[ImageBlock, ...], *, at_terminal: bool) -> RunResult | None:
    """Go on with what a stored session left unfinished; None when the next word is a person's."""
    keeping = stage.work.keeping
    if keeping.question:
        if not at_terminal:
            hint = "give the answer as the prompt"
            raise UsageError(f"the session waits for an answer: {keeping.question}", hint=hint)
        assert stage.view is not None
        stage.view.question(keeping.question, [])
        return None
    if keeping.unfinished:
        return await stage.play(None, images)
    if not at_terminal:
        raise UsageError(f"the session {keeping.id} has nothing unfinished", hint="say what to do next, as the prompt")
    return None


def _person(view: TerminalView | None) -> PersonAtTerminal | None:
    """The person who can be asked: nobody where programs read, or where a question or its answer would be lost."""
    if view is None or not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return None
    return PersonAtTerminal(view)


class Stage:
    """Where turns of work are played before one view: a terminal's, or JSON lines when `view` is None."""

    work: Work

    def __init__(self, front: Front, view: TerminalView | None, interrupts: Interrupts) -> None:
        self.front = front
        self.view = view
        self.interrupts = interrupts
        self._ctx: RunContext | None = None
        self._finished: RunFinished | None = None
        self._phase = ""

    async def play(self, task: str | None, images: tuple[ImageBlock, ...] = ()) -> RunResult:
        """One run, shown as it goes and told at its end; without a task it goes on. Raises for what ends no run."""
        began = time.monotonic()
        self._ctx = ctx = self.work.context(self._event)
        self._finished = None
        with self.interrupts.during(ctx.cancel):
            if self.view is None:
                return await self.work.turn(task, ctx, images=images)
            screen = self.view.screen
            self.view.why = self.work.why
            ctx.cancel.on_cancel(lambda: screen.status("stopping; once more to leave at once"))
            async with screen.ticking():
                result = await self.work.turn(task, ctx, images=images)
        self._tell(result, self.view, time.monotonic() - began)
        return result

    async def compact(self) -> Compaction | None:
        """Shorten what the agent remembers, between two turns; a stop request leaves it as it was."""
        self._ctx = ctx = self.work.context(self._event)
        with self.interrupts.during(ctx.cancel):
            work = asyncio.ensure_future(self.work.compact(ctx))
            forget = ctx.cancel.on_cancel(work.cancel)
            try:
                return await work
            except asyncio.CancelledError:
                if not ctx.cancel.cancelled:
                    raise
                return None
            finally:
                forget()

    def _event(self, record: EventRecord) -> None:
        ctx = self._ctx
        assert ctx is not None
        if self.view is None:
            self.front.json(record)
            if self.front.reader_left:
                ctx.cancel.cancel("user")
        else:
            self.view(record)
        if isinstance(record.event, RunFinished):
            self._finished = record.event

    def progress(self, progress: Progress) -> None:
        """What the embedded model's preparation tells; a new phase is an event, the rest is for the eye."""
        if progress.phase != self._phase and self._ctx is not None:
            self._phase = progress.phase
            self._ctx.notice("MODEL_DOWNLOAD", progress.text)
        if self.view is not None:
            self.view.progress(progress)

    def _tell(self, result: RunResult, view: TerminalView, seconds: float) -> None:
        on_one_terminal = view.screen.live and sys.stdout is not None and sys.stdout.isatty()
        if result.answer and not (on_one_terminal and view.showed(result.answer)):
            if on_one_terminal and not view.quiet:
                view.screen.line()
            self.front.say(result.answer)
        if self._finished is not None:
            view.end(self._finished, seconds)
        error = result.error
        repeats = on_one_terminal and error is not None and error.message == result.answer
        if error is not None and not repeats and (view.quiet or result.stop_reason != "cancelled"):
            self.front.complain(error)
