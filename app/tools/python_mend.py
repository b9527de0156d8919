"""Mends code that a model sent through JSON: a line break inside a quoted string was meant as `\\n`.

Small models escape once where JSON needs it twice. Nothing else is ever changed; code that parses stays as it is.
"""

from __future__ import annotations

import ast

_MOST_BREAKS = 50


def mended_code(code: str) -> str:
    """The code with such breaks written as `\\n`. What other faults it has stay, for the interpreter to name."""
    lines = code.split("\n")
    for _ in range(_MOST_BREAKS):
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            broken = _line_of_open_string(error)
            if broken is None or broken >= len(lines):
                break
            lines[broken - 1 : broken + 1] = [f"{lines[broken - 1]}\\n{lines[broken]}"]
        except (ValueError, RecursionError, MemoryError):
            break
        else:
            break
    return "\n".join(lines)


def _line_of_open_string(error: SyntaxError) -> int | None:
    message = error.msg or ""
    if not message.startswith(("unterminated string literal", "unterminated f-string literal")):
        return None
    return error.lineno
