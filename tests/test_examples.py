"""Every example runs as a user would run it, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "01_hello.py": "Bonjour, tout le monde.",
    "02_agent.py": "answered - haiku.txt has three lines.",
    "03_flow.py": "The text is written and has two words.",
    "04_budget.py": "stopped by budget after",
    "05_own_tool.py": "One dollar is 0.92 euros.",
}


def test_every_example_is_listed() -> None:
    assert sorted(SAYS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_runs(name: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "DRAGOMAN_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    assert done.stderr == ""
