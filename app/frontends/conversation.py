"""A conversation at the terminal: a line is a turn for the same agent, a slash begins a command of ours."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from app import __version__
from app.frontends.person import read_line
from app.frontends.redact import repaired
from app.frontends.report import table_of
from app.frontends.terminal import TerminalView, many
from app.frontends.turns import Stage
from app.paths import runtime_home
from app.schema.run import CancelToken, RunError, RunResult
from app.schema.usage import Usage

if TYPE_CHECKING:
    from prompt_toolkit.history import History

HELP = {
    "/help": "this list",
    "/model [NAME]": "which model answers, or another one from now on",
    "/cost": "what this conversation has used so far",
    "/compact": "sum up the older part of this conversation, so that it costs less",
    "/quit": "leave (so does Ctrl+D)",
}
PROMPT = "you> "

NextLine = Callable[[], Awaitable[str | None]]


class Cleared(Exception):
    """Ctrl+C at the prompt: what was typed is dropped."""


class Conversation:
    """Turns and commands until the person leaves."""

    def __init__(self, stage: Stage) -> None:
        assert stage.view is not None
        self._stage = stage
        self._screen = stage.view.screen
        self._usage = Usage()
        self._cost: float | None = 0.0
        self._turns = 0

    async def to_the_end(self, next_line: NextLine) -> int:
        """Returns the exit code: 0 when the person left, 130 when it was with Ctrl+C twice."""
        self._screen.line(("dragoman ", "bold"), __version__, (" · /help lists commands, Ctrl+D leaves", "dim"))
        cleared = False
        while True:
            try:
                line = await next_line()
            except Cleared:
                if cleared:
                    return 130
                cleared = True
                self._screen.line(("Ctrl+C once more leaves", "dim"))
                continue
            cleared = False
            if line is None or line.strip() in ("/quit", "/exit"):
                return 0
            await self._answer(repaired(line))

    async def _answer(self, line: str) -> None:
        try:
            if line.startswith("/"):
                await self._command(line)
            elif task := line.strip():
                self._book(await self._stage.play(task))
                self._screen.line()
        except Exception as error:
            # A turn that fails is told like any failure; the conversation goes on.
            self._stage.front.failed(error)

    def _book(self, result: RunResult) -> None:
        self._turns += 1
        self._usage += result.usage
        known = self._cost is not None and result.cost_usd is not None
        self._cost = (self._cost or 0.0) + (result.cost_usd or 0.0) if known else None

    async def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        match name:
            case "/help":
                for command, words in HELP.items():
                    self._screen.line(f"{command:<16}", (words, "dim"))
            case "/model" if rest.strip():
                await self._stage.work.use(rest.strip())
                self._screen.line(f"from now on: {self._model()}")
            case "/model":
                self._screen.line(self._model())
                names = ", ".join(sorted(self._stage.work.app.config.llm))
                self._screen.line((f"configured: {names}; /model NAME changes it", "dim"))
            case "/cost":
                self._screen.line(self._spent())
            case "/compact":
                await self._compact()
            case _:
                hint = f"known: {', '.join(command.split()[0] for command in HELP)}; a leading blank makes it a task"
                self._stage.front.complain(RunError("USAGE", f"there is no command {name}", hint))

    async def _compact(self) -> None:
        done = await self._stage.compact()
        if done is None:
            self._screen.line("there is nothing that could be left out")
        else:
            self._screen.line(f"{done.before:,} → {done.after:,} tokens")

    def _model(self) -> str:
        llm = self._stage.work.llm
        return f"{llm.settings.model} at {llm.vendor} ({table_of(llm.name)})"

    def _spent(self) -> str:
        cost = "cost unknown" if self._cost is None else f"${self._cost:.4f}"
        usage = self._usage
        return f"{many(self._turns, 'turn')} · {usage.total_input:,} + {usage.output_tokens:,} tokens · {cost}"


async def converse(stage: Stage) -> int:
    """Talk until the person leaves; returns the exit code."""
    assert stage.view is not None
    read = _editing_reader() if stage.view.screen.live else _plain_reader(stage.view)

    async def next_line() -> str | None:
        token = CancelToken()
        with stage.interrupts.during(token):
            reading = asyncio.ensure_future(read())
            token.on_cancel(reading.cancel)
            try:
                return await reading
            except asyncio.CancelledError:
                if token.cause == "SIGINT":
                    raise Cleared from None
                raise

    return await Conversation(stage).to_the_end(next_line)


def _editing_reader() -> Callable[[], Coroutine[Any, Any, str | None]]:
    """Lines with editing and history; on standard error, so that standard output has answers alone."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.output import create_output

    session: PromptSession[str] = PromptSession(
        PROMPT,
        history=_history(),
        completer=WordCompleter([command.split()[0] for command in HELP], sentence=True),
        complete_while_typing=False,
        output=create_output(stdout=sys.stderr),
        interrupt_exception=Cleared,
    )

    async def read() -> str | None:
        try:
            return await session.prompt_async(handle_sigint=False)
        except EOFError:
            return None

    return read


def _history() -> History:
    """The lines of earlier conversations, readable for their owner alone; only this one's where no file can be kept."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = runtime_home() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _plain_reader(view: TerminalView) -> Callable[[], Coroutine[Any, Any, str | None]]:
    """Lines from a terminal that can do no more than lines."""

    async def read() -> str | None:
        view.prompt(PROMPT)
        line: str | None = None
        try:
            line = await read_line()
        finally:
            if line is None:
                view.prompt("\n")
        return line

    return read
