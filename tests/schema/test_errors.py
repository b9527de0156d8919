"""Cases E01 to E08: the facts of a failure, the codes of the error tree, and causes rendered for people."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from app.schema import errors
from app.schema.errors import (
    CODES,
    RETRIED_CODES,
    BudgetExceeded,
    ConfigError,
    DragomanError,
    InvariantError,
    LLMError,
    LLMFailure,
    RunInterrupted,
    SandboxError,
    SessionError,
    StreamGrammarError,
    TokenLimitExceeded,
    ToolError,
    UsageError,
    error_chain,
    normalize_failure,
)

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "E01-no message": {"message": ""},
    "E01-no code": {"code": ""},
    "E01-status 99": {"status": 99},
    "E01-status 600": {"status": 600},
    "E01-status true": {"status": True},
    "E01-wait 0": {"retry_after_s": 0},
    "E01-wait -1": {"retry_after_s": -1},
    "E01-wait inf": {"retry_after_s": math.inf},
    "E01-wait nan": {"retry_after_s": math.nan},
    "E01-wait true": {"retry_after_s": True},
    "E01-request id empty": {"request_id": ""},
}


@pytest.mark.parametrize("fact", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
@pytest.mark.parametrize("make", [LLMFailure, LLMError])
def test_E01_facts_that_cannot_be_true_are_refused(make: Any, fact: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make(**{"message": "m", "code": "SERVER"} | fact)


@pytest.mark.parametrize("status", [100, 599])
def test_E01_the_borders_of_a_status_are_statuses(status: int) -> None:
    assert LLMFailure("m", "SERVER", status).status == status


def test_the_json_form_of_a_failure_leaves_out_what_is_not_known() -> None:
    assert LLMFailure("slow down", "RATE_LIMIT", 429, 1.5, "r-1").to_json() == {
        "message": "slow down",
        "code": "RATE_LIMIT",
        "status": 429,
        "retry_after_s": 1.5,
        "request_id": "r-1",
    }
    assert LLMFailure("gone", "TRANSPORT").to_json() == {"message": "gone", "code": "TRANSPORT"}


TREE: dict[type[DragomanError], tuple[type[Exception], str]] = {
    DragomanError: (Exception, "UNKNOWN"),
    UsageError: (DragomanError, "USAGE"),
    ConfigError: (DragomanError, "CONFIG"),
    LLMError: (DragomanError, "UNKNOWN"),
    BudgetExceeded: (DragomanError, "BUDGET"),
    TokenLimitExceeded: (BudgetExceeded, "TOKEN_LIMIT"),
    ToolError: (DragomanError, "TOOL_FAILED"),
    SandboxError: (DragomanError, "SANDBOX"),
    SessionError: (DragomanError, "SESSION"),
    RunInterrupted: (DragomanError, "ABORTED"),
    InvariantError: (DragomanError, "INVARIANT"),
    StreamGrammarError: (InvariantError, "INVARIANT"),
}


def test_the_tree_is_the_one_that_is_drawn() -> None:
    classes = {item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, DragomanError)}
    assert {item: (item.__base__, item.code) for item in classes} == TREE


def test_every_code_of_a_class_is_listed() -> None:
    assert {item.code for item in TREE} <= CODES.keys()


def test_the_retried_codes() -> None:
    assert set(RETRIED_CODES) == {
        "EMPTY_RESPONSE",
        "RATE_LIMIT",
        "SERVER",
        "STREAM_CLOSED",
        "TIMEOUT",
        "TRANSPORT",
    }


def test_an_error_carries_message_hint_and_code() -> None:
    error = ToolError("no such file", hint="list the folder", code="TOOL_ARGUMENTS")
    assert (str(error), error.message, error.hint) == ("no such file", "no such file", "list the folder")
    assert error.code == "TOOL_ARGUMENTS"
    assert ToolError("x").code == ToolError.code == "TOOL_FAILED"


def test_the_code_of_a_model_error_is_that_of_its_failure() -> None:
    error = LLMError("slow down", "RATE_LIMIT", status=429, retry_after_s=2, request_id="r-1", hint="wait")
    assert error.failure == LLMFailure("slow down", "RATE_LIMIT", 429, 2, "r-1")
    assert (error.code, error.message, error.hint) == ("RATE_LIMIT", "slow down", "wait")


class Unrenderable(Exception):
    code = "RATE_LIMIT"

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Foreign(Exception):
    code = "RATE_LIMIT"


FAILURES: dict[str, tuple[BaseException, LLMFailure]] = {
    "ours": (LLMError("slow", "RATE_LIMIT", status=429), LLMFailure("slow", "RATE_LIMIT", 429)),
    "ours of another room": (TokenLimitExceeded("spent"), LLMFailure("spent", "TOKEN_LIMIT")),
    "a foreign code is not trusted": (Foreign("boom"), LLMFailure("boom", "UNKNOWN")),
    "without text": (ValueError(), LLMFailure("LLM adapter failed", "UNKNOWN")),
    "unrenderable": (Unrenderable(), LLMFailure("LLM adapter failed", "UNKNOWN")),
}


@pytest.mark.parametrize(("error", "failure"), FAILURES.values(), ids=FAILURES)
def test_every_exception_has_a_failure_record(error: BaseException, failure: LLMFailure) -> None:
    assert normalize_failure(error) == failure


def caused(*chain: BaseException) -> BaseException:
    """The first of `chain`, each caused by the next."""
    for error, cause in itertools.pairwise(chain):
        error.__cause__ = cause
    return chain[0]


def _context(*, suppressed: bool) -> BaseException:
    try:
        try:
            raise OSError("reset")
        except OSError:
            if suppressed:
                raise ValueError("bad") from None
            raise ValueError("bad")  # noqa: B904  (the context is what is looked at)
    except ValueError as error:
        return error


def _ring() -> BaseException:
    error = ValueError("a")
    return caused(error, error)


def _long_ring() -> BaseException:
    error = ValueError("a")
    return caused(error, ValueError("b"), error)


def _diamond() -> BaseException:
    shared = ValueError("c")
    return ExceptionGroup("both", [_e("a", shared), _e("b", shared)])


def _e(text: str, *causes: BaseException) -> Exception:
    error = ValueError(text)
    caused(error, *causes)
    return error


CHAINS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "E02-wrapper and cause": (
        lambda: _e("fetch failed", OSError("ECONNREFUSED 127.0.0.1:1")),
        "fetch failed: ECONNREFUSED 127.0.0.1:1",
    ),
    "E02-three levels": (lambda: _e("a", _e("b", _e("c"))), "a: b: c"),
    "E02-context": (lambda: _context(suppressed=False), "bad: reset"),
    "E02-suppressed context": (lambda: _context(suppressed=True), "bad"),
    "E03-repeated text": (lambda: _e("x", _e("x")), "x"),
    "E03-repeated text with a cause": (lambda: _e("x", _e("x"), _e("y")), "x: y"),
    "E03-wrapper that spells its causes out": (lambda: _e("x: y", _e("x"), _e("y")), "x: y"),
    "E03-group that repeats its cause": (lambda: caused(ExceptionGroup("x", [_e("a")]), _e("x")), "x [a]"),
    "E04-group and cause": (
        lambda: caused(ExceptionGroup("all failed", [_e("a"), _e("b")]), _e("c")),
        "all failed [a; b]: c",
    ),
    "E04-group in a group": (
        lambda: ExceptionGroup("out", [ExceptionGroup("in", [_e("a")]), _e("b", _e("c"))]),
        "out [in [a]; b: c]",
    ),
    "E04-group without text": (lambda: ExceptionGroup("", [_e("a")]), "ExceptionGroup [a]"),
    "E05-caused by itself": (_ring, "a: <circular cause>"),
    "E05-longer ring": (_long_ring, "a: b: <circular cause>"),
    "E06-shared cause": (_diamond, "both [a: c; b: c]"),
    "E07-unrenderable in the middle": (
        lambda: caused(_e("a"), Unrenderable(), _e("c")),
        "a: <unrenderable value>: c",
    ),
    "E08-no text": (lambda: ValueError(), "ValueError"),
    "E08-no text inside": (lambda: _e("a", TimeoutError()), "a: TimeoutError"),
}


@pytest.mark.parametrize(("make", "rendered"), CHAINS.values(), ids=CHAINS)
def test_error_chain(make: Callable[[], BaseException], rendered: str) -> None:
    assert error_chain(make()) == rendered
