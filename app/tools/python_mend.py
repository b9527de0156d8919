"""Mends code that a model sent through JSON and that does not parse: two slips of small models, and nothing else.

They escape once where JSON needs it twice, so that a line break stands inside a quoted string; and they close the JSON
object inside the code, so that it ends in `}` where a bracket should be closed. Code that parses stays as it is.
"""

from __future__ import annotations

import ast

_MOST_BREAKS = 50
_CLOSERS = ("", ")", "))", ")))", "]", "])")


def mended_code(code: str) -> str:
    """The code with breaks inside strings written as `\\n` and a stray end closed; other faults stay in it."""
    joined = _join_broken_strings(code)
    return joined if _parses(joined) else _closed_end(joined) or joined


def _join_broken_strings(code: str) -> str:
    lines = code.split("\n")
    for _ in range(_MOST_BREAKS):
        broken = _line_of_open_string("\n".join(lines))
        if broken is None or broken >= len(lines):
            break
        lines[broken - 1 : broken + 1] = [f"{lines[broken - 1]}\\n{lines[broken]}"]
    return "\n".join(lines)


def _closed_end(code: str) -> str | None:
    end = code.rstrip()
    bare = end.rstrip('}"')
    if bare == end:
        return None
    return next((whole for closers in _CLOSERS if _parses(whole := bare + closers)), None)


def _line_of_open_string(code: str) -> int | None:
    try:
        ast.parse(code)
    except SyntaxError as error:
        if (error.msg or "").startswith(("unterminated string literal", "unterminated f-string literal")):
            return error.lineno
    except (ValueError, RecursionError, MemoryError):
        pass
    return None


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
