"""The page of codes says what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

from app.schema.errors import CODES

ROOT = Path(__file__).parents[2]
errors_page = runpy.run_path(str(ROOT / "scripts" / "error_docs.py"))["errors_page"]


def test_the_page_is_up_to_date() -> None:
    written = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert written == errors_page(), "write it anew: python -m scripts.error_docs"


def test_the_table_has_one_row_for_each_code() -> None:
    rows = [line for line in errors_page().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells == [[f"`{code}`", info.meaning, "yes" if info.retried else "no"] for code, info in CODES.items()]
