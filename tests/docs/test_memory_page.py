"""The Python example of `docs/memory.md` runs as it is printed, and its settings are what they say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from app.config.settings import MemorySettings

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/memory.md", "exec"), {})


def test_the_settings_are_the_defaults() -> None:
    [table] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    written = tomllib.loads(table)["memory"]
    assert written | {"max_messages": None} == MemorySettings().model_dump()
