"""An end that nobody wished for, in words and as an exit code; any exception becomes a sentence here."""

from __future__ import annotations

from app.schema.errors import DragomanError, error_chain
from app.schema.run import RunError, RunResult

CONFIGURATION_CODES = frozenset({"USAGE", "CONFIG", "MISSING_CREDENTIAL", "INVALID_CREDENTIAL", "SESSION_UNKNOWN"})
"""Errors that a change of the command line or the configuration mends; they exit with 2 wherever they come up."""


NEXT_STEPS: dict[str, str] = {
    "CONFIG": "docs/configuration.md explains every setting; `python main.py config check` shows what is in force",
    "USAGE": "python main.py --help shows how it is used",
    "TRANSPORT": "check the network and base_url",
    "TIMEOUT": "try again, or raise the time limits under [llm.timeout]",
    "STREAM_CLOSED": "try again; if it stays, use another model or server",
    "MALFORMED_RESPONSE": "check base_url and api_type, or use another model or server",
    "EMPTY_RESPONSE": "try again, or use another model",
    "INVALID_REQUEST": "check model, api_type and base_url under [llm]",
    "INVARIANT": "please report it; --debug shows where it broke",
}
"""What to do next about an error that does not say it itself."""


def as_run_error(error: BaseException) -> RunError:
    """Code, sentence and next step of an exception that ended the program instead of a run."""
    if isinstance(error, DragomanError):
        return RunError(error.code, error.message, error.hint or NEXT_STEPS.get(error.code, ""))
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


def table_of(name: str) -> str:
    """A model configuration as people write it."""
    return "[llm]" if name == "default" else f"[llm.{name}]"


def error_lines(error: RunError) -> list[str]:
    """The sentence and, behind an arrow, what to do next."""
    hint = error.hint or NEXT_STEPS.get(error.code, "")
    first, *more = error.message.splitlines() or [error.code]
    return [f"error: {first}", *(f"       {line}" for line in more), *(f"→ {line}" for line in hint.splitlines())]
