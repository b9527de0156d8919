"""The table in `docs/defects.md` names every case it promises, and only tests that pytest can run by that name."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/defects.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([MHF]?\d+) \| (.+?) \| (.*) \|$", PAGE, re.MULTILINE)
WANTED = [
    *(f"M{n}" for n in range(1, 21)),
    *(f"H{n}" for n in range(1, 13)),
    *(f"F{n}" for n in range(1, 13)),
    *(str(n) for n in (*range(1, 59), 68, *range(120, 133), 170, 171, 173, 174)),
]


@cache
def runnable_in(path: str) -> set[str]:
    """The names of the tests of a file, as pytest writes them: those of a class behind its name."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + each.name for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_every_case_has_its_row() -> None:
    assert [row[0] for row in ROWS] == WANTED


@pytest.mark.parametrize(("case", "tests"), [(row[0], row[2]) for row in ROWS], ids=[row[0] for row in ROWS])
def test_named_tests_exist(case: str, tests: str) -> None:
    named = tests.split("<br>")
    assert len(set(named)) == len(named), f"{case} names a test twice"
    for each in named:
        found = re.fullmatch(r"`(tests/(?:\w+/)*test_\w+\.py)::((?:Test\w+::)?test_\w+)(?:\[.+\])?`", each)
        assert found, f"{case}: {each!r} is no name of a test"
        path, name = found.groups()
        assert name in runnable_in(path), f"{case}: {path} has no {name}"


def test_the_page_speaks_of_behaviour_and_not_of_reports() -> None:
    assert re.findall(r"#\d|https?://", PAGE) == []
