"""The view for people: what a run does, on standard error. Knows events only; the answer itself is not its business."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, assert_never, cast

from app.config.secrets import Redactor
from app.frontends.redact import StreamFilter, plain
from app.frontends.screen import Part, Screen
from app.schema.event import (
    ApprovalRequested,
    Compacted,
    EventRecord,
    ModelReplied,
    Notice,
    PlanChanged,
    ReasoningStreamed,
    Retrying,
    RunFinished,
    RunStarted,
    StepStarted,
    TextStreamed,
    ToolFinished,
    ToolStarted,
)
from app.schema.message import JSON
from app.schema.plan import MARKS, Plan, StepStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.llm.downloads import Progress

RESULT_LINES = 3
LONGEST_LINE = 500
TELLING_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "bash": ("command",),
    "python_execute": ("code",),
    "str_replace_editor": ("command", "path"),
    "web_search": ("query",),
    "fetch_page": ("url",),
    "ask_human": ("question",),
}
"""The arguments that say what a call does; other tools show all of theirs."""

SELF_SHOWN = frozenset({"planning", "terminate", "ask_human"})
"""Tools whose success shows in another way: a plan, the end, the person's own answer."""

STYLES: dict[StepStatus, str] = {
    "not_started": "",
    "in_progress": "yellow",
    "completed": "green",
    "failed": "red",
    "blocked": "red",
}
ENDINGS: dict[str, Part] = {
    "answered": ("✓ done", "green"),
    "finished": ("✓ done", "green"),
    "failed": ("✗ failed", "red"),
    "step_limit": ("■ stopped at the step limit", "yellow"),
    "budget": ("■ stopped: the budget is spent", "yellow"),
    "context": ("■ stopped: the context window is full", "yellow"),
    "stuck": ("■ stopped: it went in circles", "yellow"),
    "time": ("■ stopped at the time limit", "yellow"),
    "cancelled": ("■ interrupted", "yellow"),
}


class TerminalView:
    """Shows a run, or several in turn. `why` tells how the model was chosen; `quiet` shows questions alone.

    On a real terminal text streams and a status line ticks; elsewhere whole lines come as things happen, without the
    answer, which the reader gets from standard output.
    """

    def __init__(self, stream: TextIO, redactor: Redactor, *, quiet: bool = False, debug: bool = False) -> None:
        self.screen = Screen(stream)
        self.why = ""
        self._redact = redactor
        self.quiet = quiet
        self._debug = debug
        self._waiting: list[EventRecord] | None = None
        self._told: set[str] = set()
        self._progress_told = ""
        self._begin()

    def _begin(self) -> None:
        self._depth: dict[str, int] = {}
        self._started = 0.0
        self._floor: str | None = None
        self._filters: dict[tuple[str, str], StreamFilter] = {}
        self._unsaid: dict[str, str] = {}
        self._said = ""
        self._replies: set[str] = set()
        self._thinking: dict[str, float] = {}
        self._running: dict[str, str] = {}
        self._plans: dict[str, Plan] = {}

    def __call__(self, record: EventRecord) -> None:
        if self._waiting is not None:
            self._waiting.append(record)
        elif not self.quiet:
            self._show(record)

    def showed(self, answer: str) -> bool:
        """Whether this answer has been streamed as it is, in one reply or in several that followed each other."""
        text = self._clean(answer).strip()
        return text == self._said.strip() or text in self._replies

    @contextmanager
    def asking(self) -> Generator[None]:
        """A person is being asked: events wait until the answer is there."""
        self._waiting = []
        try:
            with self.screen.paused():
                yield
        finally:
            waiting, self._waiting = self._waiting, None
            for record in waiting:
                self(record)

    def question(self, text: str, preview: Sequence[str]) -> None:
        self.screen.line(("? ", "bold yellow"), (self._clean(text), "bold"))
        for line in preview:
            self.screen.exact_line(("  │ ", "dim"), self._redact(line))

    def prompt(self, text: str) -> None:
        self.screen.prompt(text)

    def progress(self, progress: Progress) -> None:
        """Show how far the preparation of the embedded model is: a bar on a terminal, else a line at each tenth."""
        if self.quiet:
            return
        share = progress.done / progress.total if progress.total else 0.0
        if self.screen.live:
            bar = f"[{'█' * int(share * 10):<10}] " if progress.total else ""
            if self._progress_told != progress.phase:
                self._progress_told = progress.phase
                self.screen.status(progress.phase)
            self.screen.update_status(f"{bar}{progress.text}")
            return
        mark = f"{progress.phase}{int(share * 10)}"
        if mark != self._progress_told:
            self._progress_told = mark
            self.screen.line((progress.text, "dim"))

    def end(self, finished: RunFinished, seconds: float) -> None:
        """The last line of a run: how it ended, what it took, and how it can be gone on with when it is not done."""
        if self.quiet:
            return
        usage = finished.usage
        tokens = f"{'≈' if usage.estimated else ''}{usage.total_input:,} + {usage.output_tokens:,} tokens"
        cost = "cost unknown" if finished.cost_usd is None else f"${finished.cost_usd:.4f}".rstrip("0").rstrip(".")
        facts = [many(finished.steps, "step"), many(finished.requests, "request"), tokens, cost, f"{seconds:.1f} s"]
        if finished.session is not None and finished.stop_reason not in ("answered", "finished"):
            facts.append(f"--resume {finished.session} goes on")
        self.screen.line(ENDINGS.get(finished.stop_reason, finished.stop_reason), (f" · {' · '.join(facts)}", "dim"))

    def _show(self, record: EventRecord) -> None:
        span = record.span
        if span not in self._depth:
            self._depth[span] = self._depth.get(record.parent or "", -1) + 1
        indent = self._depth[span]
        match record.event:
            case RunStarted() as event:
                self._begin()
                self._depth[span] = 0
                self._header(event)
            case StepStarted():
                self._say_the_unsaid(span)
                self._status_of_work()
            case TextStreamed() as event:
                self._thought(span)
                self._text(span, event.text)
            case ReasoningStreamed() as event:
                self._reasoning(span, event.text)
            case ModelReplied() as event:
                self._thought(span)
                self._replied(span, event)
            case Retrying() as event:
                self._reset_text(span)
                words = f"{event.code}: {self._clean(event.message)}; attempt {event.attempt} in {event.delay_s:.1f} s"
                self.screen.line((f"↻ {words}", "yellow"), indent=indent)
                self.screen.status("waiting to try again")
            case ToolStarted() as event:
                self._unsaid.pop(span, None)
                self._said = ""
                self._running[event.call] = f"{event.name}  {self._arguments(event.name, event.arguments)}"
                self._status_of_work()
            case ToolFinished() as event:
                self._tool(event, indent)
                self._status_of_work()
            case PlanChanged() as event:
                self._plan(event.plan, indent)
            case Notice() as event:
                self._notice(event, indent)
            case Compacted() as event:
                self.screen.line(
                    (
                        f"· older messages were summed up: {event.before_tokens:,} → {event.after_tokens:,} tokens",
                        "dim",
                    ),
                    indent=indent,
                )
            case RunFinished():
                self._reset_text(span, keep_said=True)
                self.screen.status(None)
                self.screen.end_line()
            case ApprovalRequested():
                pass
            case _:
                assert_never(record.event)

    def _header(self, event: RunStarted) -> None:
        llm = event.llm
        where = ", local" if llm["local"] else f" at {llm['provider']}"
        model = f"{llm['model']}{where}" + (f" ({self.why})" if self.why else "")
        sandbox = "no sandbox" if event.sandbox == "none" else f"sandbox {event.sandbox}"
        words = self._clean(f" · {model} · {sandbox} · {event.workspace}")
        if words not in self._told:
            self._told.add(words)
            self.screen.line((event.agent, "bold"), (words, "dim"))
        self.screen.status("thinking")

    def _text(self, span: str, piece: str) -> None:
        """Stream it when it is this span's turn to speak and it is no call in words; else it waits for its end."""
        text = self._unsaid.pop(span, "") + self._filter(span, "text").feed(piece)
        call_or_nothing = self._floor != span and text.lstrip()[:1] in ("", "{", "[", "<", "`")
        if not self.screen.live or self._floor not in (None, span) or call_or_nothing:
            self._unsaid[span] = text
            return
        self._floor = span
        self._write(span, text)

    def _filter(self, span: str, kind: str) -> StreamFilter:
        return self._filters.setdefault((span, kind), StreamFilter(self._redact, for_terminal=True))

    def _write(self, span: str, text: str) -> None:
        prefix = "  " * self._depth[span]
        self._said += text if not self._depth[span] else ""
        start = "" if self.screen.mid_line else prefix
        body = text[:-1].replace("\n", f"\n{prefix}") + text[-1:]
        self.screen.write(start + body)

    def _replied(self, span: str, event: ModelReplied) -> None:
        if self._floor == span:
            if rest := self._filter(span, "text").flush():
                self._write(span, rest)
            self._floor = None
            self._replies.add(self._clean(event.text).strip())
            self.screen.end_line()
        elif event.text.strip():
            self._unsaid[span] = self._clean(event.text)
            # Text beside calls is a comment on them; text alone may be the answer, which is not shown here.
            if event.tool_calls or self._depth[span]:
                self._say_the_unsaid(span)
        self._filters.pop((span, "text"), None)
        self._status_of_work()

    def _say_the_unsaid(self, span: str) -> None:
        if text := self._unsaid.pop(span, "").strip():
            self.screen.end_line()
            self._write(span, f"{text}\n")
            self._said = ""

    def _reset_text(self, span: str, *, keep_said: bool = False) -> None:
        self._filters.pop((span, "text"), None)
        self._unsaid.pop(span, None)
        self._floor = None if self._floor == span else self._floor
        self._said = self._said if keep_said else ""

    def _reasoning(self, span: str, piece: str) -> None:
        self._thinking.setdefault(span, time.monotonic())
        if self._debug:
            self.screen.write(self._filter(span, "reasoning").feed(piece), "dim")

    def _thought(self, span: str) -> None:
        began = self._thinking.pop(span, None)
        if began is not None:
            if self._debug:
                self.screen.write(self._filter(span, "reasoning").flush(), "dim")
            seconds = time.monotonic() - began
            words = f"for {seconds:.0f} s" if seconds >= 1 else "briefly"
            self.screen.line((f"· thought {words}", "dim"), indent=self._depth[span])

    def _tool(self, event: ToolFinished, indent: int) -> None:
        words = self._running.pop(event.call, event.name)
        if event.ok and event.name in SELF_SHOWN:
            return
        name, _, arguments = words.partition("  ")
        mark = ("✓ ", "green") if event.ok else ("✗ ", "red")
        seconds = (f"  {event.seconds:.1f} s", "dim")
        self.screen.short_line(mark, (name, "bold"), f"  {arguments}", tail=seconds, indent=indent)
        lines = [line for line in self._clean(event.content).splitlines() if line.strip()]
        for line in lines[:RESULT_LINES]:
            # Why a call failed is worth more than one line.
            show = self.screen.short_line if event.ok else self.screen.line
            show((line[:LONGEST_LINE], "dim"), indent=indent + 2)
        if len(lines) > RESULT_LINES:
            self.screen.short_line((f"… {many(len(lines) - RESULT_LINES, 'more line')}", "dim"), indent=indent + 2)

    def _arguments(self, name: str, arguments: JSON) -> str:
        if not isinstance(arguments, dict):
            return self._one_line(str(arguments))
        table = cast("dict[str, JSON]", arguments)
        telling = [str(table[key]) for key in TELLING_ARGUMENTS.get(name, ()) if key in table]
        return self._one_line(" ".join(telling) or ", ".join(f"{key}={value}" for key, value in table.items()))

    def _plan(self, plan: Plan, indent: int) -> None:
        """The whole plan when it is new, then the steps whose mark changed."""
        before = self._plans.get(plan.id)
        self._plans[plan.id] = plan
        known = {step.id: step.status for step in before.steps} if before else {}
        if [step.id for step in plan.steps] != list(known):
            self.screen.line(("plan: ", "bold"), self._one_line(plan.title), indent=indent)
            known = {}
        for number, step in enumerate(plan.steps, 1):
            if known.get(step.id) != step.status:
                owner = f"[{step.agent}] " if step.agent else ""
                words = f" {number}. {owner}{self._one_line(step.text)}"
                self.screen.short_line((MARKS[step.status], STYLES[step.status]), words, indent=indent + 1)

    def _notice(self, event: Notice, indent: int) -> None:
        message = self._clean(event.message)
        if event.code == "LLM_CHOSEN" or (event.code == "CLOUD" and message in self._told):
            return
        if event.code == "CLOUD":
            self._told.add(message)
            self.screen.line((f"! {message}", "yellow"), indent=indent)
        elif event.code != "MODEL_DOWNLOAD":
            self.screen.line((f"· {message}", "dim"), indent=indent)

    def _status_of_work(self) -> None:
        if not self._running:
            self.screen.status("thinking")
            return
        last = list(self._running.values())[-1]
        others = len(self._running) - 1
        self.screen.status(last + (f" (and {others} more)" if others else ""))

    def _clean(self, text: str) -> str:
        return plain(self._redact(text))

    def _one_line(self, text: str) -> str:
        return " ".join(self._clean(text).split())


def many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
