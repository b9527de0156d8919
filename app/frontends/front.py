"""One start of the program from the outside: what goes to which stream, how a failure is told and becomes a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from app.config.secrets import Redactor
    from app.frontends.json_lines import JsonLines
    from app.schema.run import RunError


class Front:
    """Writes to the two streams without ever failing: a reader who has left is remembered, not complained about."""

    def __init__(self, *, as_json: bool = False, debug: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self.signal_code = 130
        """What a stop by a signal exits with; 143 after a request to terminate."""
        self.reader_left = False
        self._lost_output = False
        self._redactor: Redactor | None = None
        self._json: JsonLines | None = None
        for stream in (sys.stdout, sys.stderr):
            _use_utf8(stream)

    @property
    def redactor(self) -> Redactor:
        if self._redactor is None:
            from app.config.secrets import Redactor

            self._redactor = Redactor()
        return self._redactor

    @property
    def json(self) -> JsonLines:
        if self._json is None:
            from app.frontends.json_lines import JsonLines

            self._json = JsonLines(self.write, self.redactor)
        return self._json

    def write(self, text: str) -> None:
        """To standard output, at once."""
        if self.reader_left or sys.stdout is None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (BrokenPipeError, ValueError):
            self.reader_left = True
        except OSError as error:
            self.reader_left = self._lost_output = True
            self.tell(f"error: standard output cannot be written: {error.strerror or error}\n→ free some space there")

    def say(self, text: str) -> None:
        """To standard output, without secrets, and on a terminal without what the terminal would obey."""
        from app.frontends.redact import plain

        text = self.redactor(text)
        self.write(f"{plain(text) if sys.stdout is not None and sys.stdout.isatty() else text}\n")

    def complain(self, error: RunError) -> None:
        """The sentence and the next step, to standard error."""
        from app.frontends.redact import plain
        from app.frontends.report import error_lines

        first, *more = (plain(self.redactor(line)) for line in error_lines(error))
        _to_stderr("\n".join((_in_red(first), *more)))

    def tell(self, text: str) -> None:
        """A word beside the answer, to standard error."""
        _to_stderr(self.redactor(text))

    def guarded(self, work: Callable[[], int]) -> int:
        """Run `work` to its exit code, whatever happens in it."""
        from asyncio import CancelledError

        try:
            code = work()
        except (KeyboardInterrupt, CancelledError):
            code = self._interrupted()
        except Exception as error:
            code = self.failed(error)
        self._let_go()
        return 1 if self._lost_output else code

    def failed(self, error: Exception) -> int:
        """Tell what went wrong in one sentence with a next step, and return the exit code."""
        from app.frontends.report import as_run_error, exit_code_of

        if self.debug:
            import traceback

            _to_stderr(self.redactor("".join(traceback.format_exception(error))))
        ending = as_run_error(error)
        if self.as_json:
            self.json.fail(ending)
        else:
            self.complain(ending)
        return exit_code_of(ending)

    def _interrupted(self) -> int:
        from app.schema.run import RunError

        ending = RunError("ABORTED", "the run was interrupted")
        if self.as_json:
            self.json.fail(ending, stop_reason="cancelled")
        else:
            _to_stderr("■ interrupted")
        return self.signal_code

    def _let_go(self) -> None:
        """Nothing is left for the interpreter to write at its end, where a gone reader would make it complain."""
        if self.reader_left:
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())
                os.close(nowhere)


def _in_red(text: str) -> str:
    """The word before the colon in red, on a terminal that shows colours to somebody who wants them."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    if plain or sys.stderr is None or not sys.stderr.isatty():
        return text
    word, colon, rest = text.partition(":")
    return f"\x1b[31m{word}{colon}\x1b[0m{rest}"


def _to_stderr(text: str) -> None:
    # Where nobody can hear us, there is nobody to tell that.
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _use_utf8(stream: TextIO | None) -> None:
    """UTF-8 whatever the locale says; what cannot be encoded becomes a question mark instead of a crash."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="replace")
