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
    ("sent", "meant"),
    [
        ("f.write(str(total)}}", "f.write(str(total))"),
        ('x = [1]\nprint(x[0]"}', "x = [1]\nprint(x[0])"),
        ("print(1)}", "print(1)"),
        ("print(sum([1, 2)}", "print(sum([1, 2)}"),
        ("d = {'a': 1}", "d = {'a': 1}"),
    ],
)
def test_an_object_closed_inside_the_code_is_mended(sent: str, meant: str) -> None:
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
def test_code_that_parses_stays(code: str) -> None:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        mended_code(code)
    else:
        assert mended_code(code) == code
