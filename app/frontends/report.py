"""An end that nobody wished for, in words and as an exit code; any exception becomes a sentence here."""

from __future__ import annotations

from app.schema.errors import DragomanError, error_chain
from app.schema.run import RunError, RunResult

CONFIGURATION_CODES = frozenset({"USAGE", "CONFIG", "MISSING_CREDENTIAL", "INVALID_CREDENTIAL"})
"""Errors that a change of the command line or the configuration mends; they exit with 2 wherever they come up."""


def as_run_error(error: BaseException) -> RunError:
    """Code, sentence and next step of an exception that ended the program instead of a run."""
    if isinstance(error, DragomanError):
        return RunError.of(error)
    words = error_chain(error).splitlines()
    detail = f": {words[0][:200]}" if words else ""
    return RunError(
        "UNKNOWN", f"internal error ({type(error).__name__}{detail})", "run again with --debug for the details"
    )


def exit_code_of(ending: RunResult | RunError) -> int:
    """0 done, 1 failed, 2 usage or configuration, 3 a limit, 130 interrupted, 143 terminated."""
    error = ending if isinstance(ending, RunError) else ending.error
    if error is not None and error.code in CONFIGURATION_CODES:
        return 2
    return 1 if isinstance(ending, RunError) else ending.exit_code


def error_lines(error: RunError) -> list[str]:
    """The sentence and, behind an arrow, what to do next."""
    first, *more = error.message.splitlines() or [error.code]
    return [f"error: {first}", *(f"       {line}" for line in more), *(f"→ {line}" for line in error.hint.splitlines())]
