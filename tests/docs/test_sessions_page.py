"""The Python example of `docs/sessions.md` runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "sessions.md"


async def test_the_example_remembers(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    said = await names["remember"](tmp_path / "workspace", tmp_path / "sessions")
    assert said == ["greet me", "hello", "once more", "again"]
