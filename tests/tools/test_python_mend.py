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
    ["print(1)", '"""a\nb"""', "print('it')\n", "print('open", "if x:\nprint(1)", "x = (", "'" + "\n" * 200, "\0"],
)
def test_everything_else_stays_as_it_is(code: str) -> None:
    assert mended_code(code) == code


@given(st.text(alphabet="ab'\"\n\\ =+()f{}", max_size=40))
def test_what_comes_out_parses_or_is_what_went_in(code: str) -> None:
    mended = mended_code(code)
    if mended != code:
        ast.parse(mended)
        assert mended.replace("\\n", "\n") == code.replace("\\n", "\n")
