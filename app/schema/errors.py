"""The whole error tree, the one list of codes, and `error_chain`, which renders a failure for people.

    DragomanError            code, hint, chained cause
    ├── UsageError           USAGE            a command line or argument that makes no sense
    ├── ConfigError          CONFIG           a setting that is missing, misspelt or of the wrong type
    ├── LLMError             by failure       anything a provider, server or model did; carries an `LLMFailure`
    ├── BudgetExceeded       BUDGET           the run's money is spent; never retried
    │   └── TokenLimitExceeded  TOKEN_LIMIT   the run's tokens are spent; never retried
    ├── ToolError            TOOL_FAILED, …   words for the model, made into an error result by the toolbox
    ├── SandboxError         SANDBOX          a command or file could not be reached at all
    ├── SessionError         SESSION, …       a session could not be read, written or taken
    ├── RunInterrupted       ABORTED          a person or a signal stopped the run
    └── InvariantError       INVARIANT        a promise inside the program is broken
        └── StreamGrammarError                a chunk stream broke the grammar of `schema/stream.py`

Decisions route on `code`; texts are for people and are never parsed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodeInfo:
    meaning: str
    retried: bool = False


CODES: dict[str, CodeInfo] = {
    # asking a model
    "AUTH": CodeInfo("the provider refused the key (HTTP 401, 403)"),
    "RATE_LIMIT": CodeInfo("too many requests for now (HTTP 429 without quota wording)", retried=True),
    "QUOTA": CodeInfo("balance, credit or quota of the account is used up"),
    "CONTEXT_WINDOW_EXCEEDED": CodeInfo("the request is longer than the model's context window"),
    "INVALID_REQUEST": CodeInfo("the provider refused the request as malformed (HTTP 400, 413, 422)"),
    "UNKNOWN_MODEL": CodeInfo("the provider does not know this model"),
    "ENDPOINT": CodeInfo("the address answers, but not as a model API; usually a wrong base_url"),
    "SERVER": CodeInfo("the provider failed (HTTP 5xx)", retried=True),
    "TIMEOUT": CodeInfo("no answer, or no further byte, within the time limit", retried=True),
    "TRANSPORT": CodeInfo("the connection could not be made or broke (DNS, refused, reset)", retried=True),
    "TLS": CodeInfo("the server's certificate or TLS set-up was refused"),
    "STREAM_CLOSED": CodeInfo("the stream ended before the reply was complete", retried=True),
    "MALFORMED_RESPONSE": CodeInfo("the provider sent something that is not the protocol"),
    "EMPTY_RESPONSE": CodeInfo("a reply without any content", retried=True),
    "INVALID_TOOL_CALL": CodeInfo("the model's call did not fit the server's call format; a model error"),
    "MISSING_CREDENTIAL": CodeInfo("no key is set for this account"),
    "INVALID_CREDENTIAL": CodeInfo("the key has characters that no key has"),
    "UNSUPPORTED_CONTENT": CodeInfo("the model cannot take this content, for example an image"),
    "UNSUPPORTED_TOOLS": CodeInfo("the model or its server takes no native tool calls"),
    "UNSUPPORTED_OPTION": CodeInfo("the dialect cannot express this request option"),
    "UNSUPPORTED_REASONING_EFFORT": CodeInfo("the model does not advertise this reasoning effort"),
    "CONTENT_FILTER": CodeInfo("the provider's content filter stopped the reply"),
    "REFUSED": CodeInfo("the model refused the task"),
    "OUTPUT_LIMIT": CodeInfo("the reply was cut by the output limit"),
    "ABORTED": CodeInfo("the caller cancelled"),
    "UNKNOWN": CodeInfo("a foreign exception"),
    # the service's registry
    "NO_ADAPTER": CodeInfo("no adapter is registered for the route"),
    "DUPLICATE_ADAPTER": CodeInfo("the route is already owned"),
    "INVALID_ADAPTER": CodeInfo("bad registration input"),
    "REGISTRATION_DISPOSED": CodeInfo("the registration was disposed before"),
    "INVALID_CATALOG": CodeInfo("bad or duplicate entry in a model list"),
    "INVALID_MODEL_INFO": CodeInfo("model facts name another model or have no name"),
    "INVALID_MODEL_CONTEXT": CodeInfo("the context window is not a positive integer"),
    "INVALID_MODEL_MAX_TOKENS": CodeInfo("the default output cap is not a positive integer"),
    "INVALID_MODEL_REASONING": CodeInfo("reasoning efforts are empty, doubled or lack their default"),
    "INVALID_PREPARED_CALL": CodeInfo("a prepared call was reused or its config was changed"),
    # a run
    "USAGE": CodeInfo("the command line makes no sense"),
    "CONFIG": CodeInfo("a setting is missing, misspelt or of the wrong type"),
    "TOKEN_LIMIT": CodeInfo("a token budget (of the agent, the run, the process or the day) is spent"),
    "BUDGET": CodeInfo("a budget of money or requests is spent"),
    "STUCK": CodeInfo("the agent repeated itself and did not change course"),
    "STEP_LIMIT": CodeInfo("the step limit was reached"),
    "TIME": CodeInfo("the time limit was reached"),
    "TASK_FAILED": CodeInfo("the agent ended the task as failed"),
    "PLAN_INCOMPLETE": CodeInfo("at least one step of the plan failed or is blocked"),
    # tools
    "TOOL_FAILED": CodeInfo("the tool reported a failure"),
    "TOOL_UNKNOWN": CodeInfo("no tool of this name is offered"),
    "TOOL_ARGUMENTS": CodeInfo("the arguments do not fit the tool's schema"),
    "TOOL_TIMEOUT": CodeInfo("the tool did not end within its time limit"),
    "TOOL_DENIED": CodeInfo("an approval was needed and not given"),
    "TOOL_NOT_STARTED": CodeInfo("the call was not started"),
    "TOOL_OUTCOME_UNKNOWN": CodeInfo("the call was interrupted; its outcome is unknown"),
    "SANDBOX": CodeInfo("a command or file could not be reached"),
    # sessions
    "SESSION": CodeInfo("the stored sessions could not be read or written"),
    "SESSION_BUSY": CodeInfo("another process works in this session"),
    "SESSION_DAMAGED": CodeInfo("stored sessions are damaged; what could not be read was set aside"),
    "SESSION_NEWER": CodeInfo("the sessions were written by a newer version"),
    "SESSION_UNKNOWN": CodeInfo("there is no such session"),
    # notices
    "SESSION_NOT_KEPT": CodeInfo("this run is not stored and cannot be resumed"),
    "SESSION_REPAIRED": CodeInfo("calls that were interrupted in an earlier run were closed"),
    "CLOUD": CodeInfo("text of this run leaves the machine"),
    "UNKNOWN_API_TYPE": CodeInfo("the api_type label is unknown and read as openai"),
    "MODEL_UNKNOWN_FACTS": CodeInfo("the model is not in the table; documented defaults are used"),
    "IMAGES_REPLACED": CodeInfo("images were replaced by a text note for a model without vision"),
    "IMAGE_DESCRIBED": CodeInfo("`[llm.vision]` described a picture for a model without vision, or could not"),
    "TOOLS_AS_TEXT": CodeInfo("tools are offered in words and calls read from text, because the server takes no calls"),
    "FALLBACK": CodeInfo("another model of the list `fallback` answers, because the one before it failed"),
    "TOOL_LEFT_OUT": CodeInfo("a tool is not offered: its schema is too deep or large, or the account takes no more"),
    "OPTION_DROPPED": CodeInfo("the server refused an option; it is left out from now on"),
    "BUDGET_FILE": CodeInfo("the file with the day's spending could not be used; its limits may be exceeded"),
    "PROMPT_CUT": CodeInfo("the server counted far fewer tokens than were sent: it cuts prompts in silence"),
    "RATE_WAIT": CodeInfo("a request waits until the account's rate limit allows it"),
    "UNPRICED": CodeInfo("the model has no known price; the money budget cannot bind"),
    "COMPACTION": CodeInfo("how a long conversation was shortened for the model, or why not"),
    "HISTORY_REPAIRED": CodeInfo("unanswered or orphaned calls in the history were repaired"),
    "TOKENIZER": CodeInfo("token counts are estimates"),
    "ARGUMENTS_REPAIRED": CodeInfo("tool arguments were malformed and were read by safe repair rules"),
    "LLM_CHOSEN": CodeInfo("which model configuration an agent uses and why"),
    "PLAN": CodeInfo("how the plan came about or changed"),
    "MODEL_DOWNLOAD": CodeInfo("the embedded model is being fetched or started"),
    "HINT": CodeInfo("advice for the user"),
    "INVARIANT": CodeInfo("a promise inside the program is broken; please report it"),
}
"""Every code that may appear in an error, a result or a notice; printed into `docs/errors.md`.

Besides these, `HTTP_<status>` names a status without a code of its own, and an upper-cased finish reason names
a provider's private way of ending a reply.
"""

RETRIED_CODES: frozenset[str] = frozenset(code for code, info in CODES.items() if info.retried)


@dataclass(frozen=True, slots=True)
class LLMFailure:
    """What went wrong in one model call, as JSON-able facts; policy ("retry?") is decided elsewhere.

    `retry_after_s` is the provider's own request to wait, in seconds. Raises `ValueError` on a fact that
    cannot be true (empty texts, a status outside 100–599, a wait that is not finite and positive).
    """

    message: str
    code: str
    status: int | None = None
    retry_after_s: float | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        if not self.message or not self.code:
            raise ValueError("a failure needs a message and a code")
        if self.status is not None and (isinstance(self.status, bool) or not 100 <= self.status <= 599):
            raise ValueError(f"not an HTTP status: {self.status!r}")
        wait = self.retry_after_s
        if wait is not None and (isinstance(wait, bool) or not math.isfinite(wait) or wait <= 0):
            raise ValueError(f"not a waiting time: {wait!r}")
        if self.request_id is not None and not self.request_id:
            raise ValueError("an empty request id is no request id")

    def to_json(self) -> dict[str, object]:
        facts = {
            "message": self.message,
            "code": self.code,
            "status": self.status,
            "retry_after_s": self.retry_after_s,
            "request_id": self.request_id,
        }
        return {name: value for name, value in facts.items() if value is not None}


class DragomanError(Exception):
    """Base of all our errors: a sentence, a stable `code`, and a `hint` that says what to do next."""

    code = "UNKNOWN"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code


class UsageError(DragomanError):
    code = "USAGE"


class ConfigError(DragomanError):
    code = "CONFIG"


class LLMError(DragomanError):
    """A model call failed; `failure` holds the facts and `failure.code` equals `code`."""

    def __init__(
        self,
        message: str,
        code: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        hint: str = "",
    ) -> None:
        self.failure = LLMFailure(message, code, status, retry_after_s, request_id)
        super().__init__(message, hint=hint, code=code)


class BudgetExceeded(DragomanError):
    code = "BUDGET"


class TokenLimitExceeded(BudgetExceeded):
    code = "TOKEN_LIMIT"


class ToolError(DragomanError):
    code = "TOOL_FAILED"


class SandboxError(DragomanError):
    code = "SANDBOX"


class SessionError(DragomanError):
    code = "SESSION"


class RunInterrupted(DragomanError):
    code = "ABORTED"


class InvariantError(DragomanError):
    code = "INVARIANT"


class StreamGrammarError(InvariantError):
    pass


def normalize_failure(error: BaseException) -> LLMFailure:
    """The failure record of any exception: our own facts as they are, foreign ones as `UNKNOWN`.

    A foreign exception's own `code` is not trusted, and one that cannot be rendered still gives a record.
    """
    if isinstance(error, LLMError):
        return error.failure
    try:
        text = str(error)
    except Exception:
        text = ""
    code = error.code if isinstance(error, DragomanError) else "UNKNOWN"
    return LLMFailure(text or "LLM adapter failed", code)


def error_chain(error: BaseException) -> str:
    """Render an exception with its causes, outermost first, for people and logs; never parse the result.

    A cause that repeats its wrapper's text is skipped, members of a group stand in brackets, a cycle and an
    exception whose text cannot be had are named as such.
    """
    return _render(error, ())


def _render(error: BaseException, path: tuple[int, ...]) -> str:
    if id(error) in path:
        return "<circular cause>"
    path = (*path, id(error))
    own = text = _own_text(error)
    if isinstance(error, BaseExceptionGroup):
        members: tuple[BaseException, ...] = error.exceptions  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        text = f"{own} [{'; '.join(_render(member, path) for member in members)}]"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None:
        return text
    below = _render(cause, path)
    if below == own:
        return text
    # The cause says the same and has causes of its own.
    if text == own and below.startswith(f"{own}: "):
        return below
    return f"{text}: {below}"


def _own_text(error: BaseException) -> str:
    name = type(error).__name__
    try:
        # The text of a group counts its members, which are rendered one by one.
        return (error.message if isinstance(error, BaseExceptionGroup) else str(error)) or name
    except Exception:
        return "<unrenderable value>"
