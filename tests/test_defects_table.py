"""The table in `docs/defects.md` names every case it promises, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = re.findall(r"^\| ([MHF]?\d+) \| (.+?) \| (.*) \|$", (ROOT / "docs/defects.md").read_text(), re.MULTILINE)
WANTED = [
    *(f"M{n}" for n in range(1, 21)),
    *(f"H{n}" for n in (1, 2, *range(5, 13))),
    *(f"F{n}" for n in range(1, 13)),
    *(str(n) for n in (*range(1, 59), *range(120, 133))),
]


def test_every_case_has_its_row() -> None:
    assert [row[0] for row in ROWS] == WANTED


@pytest.mark.parametrize(("case", "tests"), [(row[0], row[2]) for row in ROWS], ids=[row[0] for row in ROWS])
def test_named_tests_exist(case: str, tests: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named, f"{case} names no test"
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{path} has no {name}"
