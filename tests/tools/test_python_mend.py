"""Line breaks inside quoted strings are read as `\\n`, and nothing else is touched."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.python_mend import mended_code


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("f.write(str(1) + '\n')", "f.write(str(1) + '\\n')"),
        ('print("a\nb\nc")\nprint(1)', 'print("a\\nb\\nc")\nprint(1)'),
        ("x = 1\nprint('a' + '\n', f'{x}\n')", "x = 1\nprint('a' + '\\n', f'{x}\\n')"),
    ],
)
def test_a_break_inside_a_string_is_mended(sent: str, meant: str) -> None:
    assert mended_code(sent) == meant


@pytest.mark.parametrize(
    "code",
    ["print(1)", '"""a\nb"""', "print('it')\n", "print('open", "if x:\nprint(1)", "x = (", "\0"],
)
def test_everything_else_stays_as_it_is(code: str) -> None:
    assert mended_code(code) == code


def test_what_else_is_wrong_is_left_for_the_interpreter() -> None:
    assert mended_code("print('a\n')\nif x print(1)") == "print('a\\n')\nif x print(1)"


@given(st.text(alphabet="ab'\"\n\\ =+()f{}", max_size=40))
def test_code_that_parses_stays_and_only_breaks_change(code: str) -> None:
    mended = mended_code(code)
    assert mended.replace("\\n", "\n") == code.replace("\\n", "\n")
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return
    assert mended == code
