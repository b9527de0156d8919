"""The view for people, fed with events: who may speak, what is folded, what is told once."""

from __future__ import annotations

import io

import pytest

from app.config.secrets import Redactor
from app.frontends.terminal import TerminalView
from app.llm.downloads import Progress
from app.schema.event import (
    Compacted,
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
from app.schema.message import ToolCallBlock
from app.schema.plan import Plan, PlanStep
from app.schema.run import RunContext
from app.schema.usage import Usage

CALL = ToolCallBlock("c1", "bash", "{}")


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def view_on(stream: io.StringIO, **options: bool) -> tuple[TerminalView, RunContext]:
    view = TerminalView(stream, Redactor({}), **options)
    return view, RunContext(sink=view)


@pytest.fixture(autouse=True)
def _colourless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")


def started(local: bool = True) -> RunStarted:
    llm = {"config": "default", "provider": "openai", "model": "m", "local": local}
    return RunStarted("t", "manus", llm, None, "none", "/w")


def replied(text: str, *calls: ToolCallBlock) -> ModelReplied:
    return ModelReplied(text, calls, "stop", Usage())


def text_of(stream: io.StringIO) -> str:
    return stream.getvalue().replace("\x1b[2m", "").replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_two_agents_do_not_speak_into_each_other() -> None:
    stream = Tty()
    _, ctx = view_on(stream)
    ctx.emit(started())
    one, two = ctx.child(), ctx.child()
    one.emit(TextStreamed("first ", 1))
    two.emit(TextStreamed("second ", 1))
    one.emit(TextStreamed("speaks\non", 1))
    two.emit(TextStreamed("waits", 1))
    one.emit(replied("first speaks\non"))
    two.emit(replied("second waits"))
    assert text_of(stream).splitlines()[1:] == ["  first speaks", "  on", "  second waits"]


def test_an_answer_is_shown_once_and_a_call_in_words_not_at_all() -> None:
    stream = Tty()
    view, ctx = view_on(stream)
    ctx.emit(started())
    for piece in ('{"name": "ba', 'sh"}'):
        ctx.emit(TextStreamed(piece, 1))
    ctx.emit(replied('{"name": "bash"}'))
    ctx.emit(ToolStarted("c1", "bash", {"command": "ls -l"}))
    ctx.emit(ToolFinished("c1", "bash", True, "", 0.25))
    ctx.emit(TextStreamed("\n", 1))
    ctx.emit(TextStreamed("The end.", 1))
    ctx.emit(replied("\nThe end."))
    assert not view.showed("Another end.")
    assert view.showed("The end.\n")
    assert "name" not in stream.getvalue()
    assert text_of(stream).splitlines()[1:] == ["✓ bash  ls -l  0.2 s", "", "The end."]


def test_a_retry_forgets_what_was_said() -> None:
    stream = Tty()
    view, ctx = view_on(stream)
    ctx.emit(started())
    ctx.emit(TextStreamed("Half an ans", 1))
    ctx.emit(Retrying(2, 0.5, "STREAM_CLOSED", "it broke off"))
    ctx.emit(TextStreamed("Whole answer", 2))
    ctx.emit(replied("Whole answer"))
    assert view.showed("Whole answer")
    assert text_of(stream).splitlines()[1:] == [
        "Half an ans",
        "↻ STREAM_CLOSED: it broke off; attempt 2 in 0.5 s",
        "Whole answer",
    ]


def test_plain_lines_leave_the_answer_to_standard_output() -> None:
    stream = io.StringIO()
    view, ctx = view_on(stream)
    ctx.emit(started(local=False))
    ctx.notice("CLOUD", "the text of this run goes to OpenAI (m)")
    ctx.emit(StepStarted(1))
    ctx.emit(ReasoningStreamed("deep", 1))
    ctx.emit(TextStreamed("I look.", 1))
    ctx.emit(replied("I look.", CALL))
    ctx.emit(ToolStarted("c1", "bash", "{broken"))
    ctx.emit(ToolFinished("c1", "bash", False, "error: no\n\ndetail", 1.0))
    ctx.emit(Compacted(9000, 1200))
    ctx.emit(StepStarted(2))
    ctx.emit(replied("Nothing to call, but not the end."))
    ctx.emit(StepStarted(3))
    ctx.emit(replied("The answer."))
    end = RunFinished("answered", "The answer.", None, Usage(1000, 20, estimated=True), None, 3, 3, None)
    ctx.emit(end)
    view.end(end, 2.04)
    assert stream.getvalue().splitlines() == [
        "manus · m at openai · no sandbox · /w",
        "! the text of this run goes to OpenAI (m)",
        "· thought briefly",
        "I look.",
        "✗ bash  {broken  1.0 s",
        "    error: no",
        "    detail",
        "· older messages were summed up: 9,000 → 1,200 tokens",
        "Nothing to call, but not the end.",
        "✓ done · 3 steps · 3 requests · ≈1,000 + 20 tokens · cost unknown · 2.0 s",
    ]


def test_a_plan_is_shown_whole_once_and_then_by_its_changes() -> None:
    stream = io.StringIO()
    _, ctx = view_on(stream)
    ctx.emit(started())
    plan = Plan.create("Trip\x1b[2J", [PlanStep("", "pack", agent="manus"), PlanStep("", "go")])
    for each in (plan, plan.mark("1", "in_progress"), plan.mark("1", "completed")):
        ctx.emit(PlanChanged(each))
    ctx.emit(PlanChanged(plan.with_open_steps([PlanStep("", "stay")])))
    assert stream.getvalue().splitlines()[1:] == [
        "plan: Trip",
        "  [ ] 1. [manus] pack",
        "  [ ] 2. go",
        "  [→] 1. [manus] pack",
        "  [✓] 1. [manus] pack",
        "plan: Trip",
        "  [ ] 1. stay",
    ]


def test_the_header_and_the_cloud_are_told_once_in_a_conversation() -> None:
    stream = io.StringIO()
    view, _ = view_on(stream)
    for _ in range(2):
        ctx = RunContext(sink=view)
        ctx.emit(started(local=False))
        ctx.emit(Notice("CLOUD", "goes to OpenAI"))
        ctx.emit(Notice("OPTION_DROPPED", "no temperature"))
    assert stream.getvalue().splitlines() == [
        "manus · m at openai · no sandbox · /w",
        "! goes to OpenAI",
        "· no temperature",
        "· no temperature",
    ]


def test_events_wait_while_a_person_is_asked() -> None:
    stream = io.StringIO()
    view, ctx = view_on(stream)
    ctx.emit(started())
    with view.asking():
        ctx.emit(Notice("HINT", "meanwhile"))
        view.question("Sure?", ["preview"])
        view.prompt("y/n ")
    assert stream.getvalue().splitlines()[1:] == ["? Sure?", "  │ preview", "y/n · meanwhile"]


def test_quiet_shows_questions_alone() -> None:
    stream = io.StringIO()
    view, ctx = view_on(stream, quiet=True)
    ctx.emit(started())
    ctx.emit(replied("x", CALL))
    view.progress(Progress("download", 1, 2))
    with view.asking():
        view.question("Sure?", [])
    assert stream.getvalue() == "? Sure?\n"


def test_the_whole_reasoning_with_debug() -> None:
    stream = Tty()
    _, ctx = view_on(stream, debug=True)
    ctx.emit(started())
    ctx.emit(ReasoningStreamed("I thi", 1))
    ctx.emit(ReasoningStreamed("nk.", 1))
    ctx.emit(replied("x", CALL))
    assert text_of(stream).splitlines()[1:] == ["I think.", "· thought briefly", "x"]


def test_a_download_is_a_bar_or_a_line_at_each_tenth() -> None:
    stream = io.StringIO()
    view, _ = view_on(stream)
    for done in range(0, 1000, 49):
        view.progress(Progress("download", done * 10**6, 1000 * 10**6, "the hub"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "downloading the model: 0 of 1000 MB from the hub"
    terminal = Tty()
    view, _ = view_on(terminal)
    view.progress(Progress("download", 5 * 10**8, 10**9))
    assert "[█████     ] downloading the model: 500 of 1000 MB" in terminal.getvalue()
