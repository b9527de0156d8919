"""Stopping a run, what its parts are handed, and the result that comes up."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from app.schema.errors import LLMError, TokenLimitExceeded
from app.schema.event import EventRecord, Notice, StepStarted
from app.schema.run import EXIT_CODES, CancelToken, RunContext, RunError, RunResult, StopReason


def test_l13_the_first_cause_of_a_stop_wins() -> None:
    token = CancelToken()
    assert (token.cancelled, token.cause) == (False, None)
    token.cancel("SIGTERM")
    token.cancel("user")
    assert (token.cancelled, token.cause) == (True, "SIGTERM")


def test_subscribers_are_called_once_in_order_and_know_the_cause() -> None:
    token, seen = CancelToken(), list[tuple[str, str | None]]()
    token.on_cancel(lambda: seen.append(("first", token.cause)))
    token.on_cancel(lambda: seen.append(("second", token.cause)))
    assert seen == []
    token.cancel("SIGINT")
    token.cancel("SIGINT")
    assert seen == [("first", "SIGINT"), ("second", "SIGINT")]


def test_a_late_subscriber_is_called_at_once() -> None:
    token, seen = CancelToken(), list[str]()
    token.cancel()
    forget = token.on_cancel(lambda: seen.append("late"))
    assert seen == ["late"]
    assert token.cause == "user"
    forget()
    token.cancel("again")
    assert seen == ["late"]


def test_a_forgotten_subscriber_is_not_called_and_forgetting_twice_is_fine() -> None:
    token, seen = CancelToken(), list[str]()
    forget = token.on_cancel(lambda: seen.append("forgotten"))
    token.on_cancel(lambda: seen.append("kept"))
    forget()
    forget()
    token.cancel()
    assert seen == ["kept"]


def test_a_stop_request_from_within_a_subscriber_changes_nothing() -> None:
    token, seen = CancelToken(), list[str]()
    token.on_cancel(lambda: token.cancel("echo"))
    token.on_cancel(lambda: seen.append("called"))
    token.cancel("user")
    assert (token.cause, seen) == ("user", ["called"])


EXITS: dict[StopReason, tuple[int, bool]] = {
    "answered": (0, True),
    "finished": (0, True),
    "failed": (1, False),
    "step_limit": (3, False),
    "budget": (3, False),
    "context": (3, False),
    "stuck": (3, False),
    "time": (3, False),
    "cancelled": (130, False),
}


@pytest.mark.parametrize(("reason", "code", "ok"), [(reason, *end) for reason, end in EXITS.items()], ids=EXITS)
def test_exit_codes(reason: StopReason, code: int, ok: bool) -> None:
    result = RunResult(reason, "")
    assert (result.exit_code, result.ok) == (code, ok)


def test_every_stop_reason_has_an_exit_code() -> None:
    assert set(EXITS) == set(EXIT_CODES) == set(get_args(StopReason))


CAUSES: list[tuple[StopReason, str | None, int]] = [
    ("cancelled", "SIGTERM", 143),
    ("cancelled", "SIGINT", 130),
    ("cancelled", "user", 130),
    ("cancelled", None, 130),
    # The signal came when the run had its end already.
    ("answered", "SIGTERM", 0),
    ("failed", "SIGTERM", 1),
]


@pytest.mark.parametrize(("reason", "cause", "code"), CAUSES)
def test_only_a_cancelled_run_is_terminated(reason: StopReason, cause: str | None, code: int) -> None:
    assert RunResult(reason, "", cause=cause).exit_code == code


def test_the_error_of_a_result_repeats_code_message_and_hint() -> None:
    assert RunError.of(TokenLimitExceeded("spent", hint="split")).to_json() == {
        "code": "TOKEN_LIMIT",
        "message": "spent",
        "hint": "split",
    }
    assert RunError.of(LLMError("slow", "RATE_LIMIT")) == RunError("RATE_LIMIT", "slow", "")


def test_events_are_numbered_over_the_whole_run_and_nest_by_span(ctx: RunContext, events: list[EventRecord]) -> None:
    child = ctx.child()
    ctx.emit(StepStarted(1))
    child.emit(StepStarted(1))
    child.child().emit(StepStarted(1))
    ctx.emit(StepStarted(2))
    assert [record.seq for record in events] == [1, 2, 3, 4]
    assert {record.run for record in events} == {ctx.run}
    assert [record.parent for record in events] == [None, ctx.span, child.span, None]
    assert len({record.span for record in events}) == 3


def test_a_child_shares_stop_request_deadline_and_session_and_counts_in_its_parents_ledger() -> None:
    ctx = RunContext(deadline=12.5, session="s-1")
    child = ctx.child()
    assert child.cancel is ctx.cancel
    assert (child.ledger.parent, child.ledger.scope) == (ctx.ledger, "agent")
    assert (child.deadline, child.session) == (12.5, "s-1")
    ctx.cancel.cancel()
    assert child.cancel.cancelled


def test_a_notice_said_once_is_said_once_in_the_whole_run(ctx: RunContext, events: list[EventRecord]) -> None:
    ctx.notice("CLOUD", "text leaves", once=True)
    ctx.child().notice("CLOUD", "text leaves", once=True)
    ctx.notice("CLOUD", "other text leaves", once=True)
    ctx.notice("HINT", "again")
    ctx.notice("HINT", "again")
    said: list[Any] = [record.event for record in events]
    assert said == [
        Notice("CLOUD", "text leaves"),
        Notice("CLOUD", "other text leaves"),
        Notice("HINT", "again"),
        Notice("HINT", "again"),
    ]


def test_two_runs_have_different_names_and_each_counts_from_one() -> None:
    first: list[EventRecord] = []
    second: list[EventRecord] = []
    for seen in (first, second):
        RunContext(sink=seen.append).emit(StepStarted(1))
    assert first[0].run != second[0].run
    assert first[0].seq == second[0].seq == 1
