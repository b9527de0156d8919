"""Nothing promised is lost and nothing is done twice, wherever a process is killed or its disk fails.

`DRAGOMAN_NIGHTLY=1` makes them 10,000; `DRAGOMAN_CRASH_KILLS` sets another number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("fork and SIGKILL", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
NIGHT = 10_000 if os.environ.get("DRAGOMAN_NIGHTLY") else 200
KILLS = int(os.environ.get("DRAGOMAN_CRASH_KILLS", NIGHT))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: a killed process leaves the same behind, and no disk slows the killing down."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as place:
        yield Path(place) / "sessions"


def drive(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.crash.driver", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120 + KILLS)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_at_any_moment_loses_and_doubles_nothing(folder: Path, seed: int) -> None:
    found = drive(folder, "--kills", str(KILLS // 2), "--seed", str(seed))
    assert found["harm"] == {}
    assert found["kills"] >= KILLS // 2
    assert found["runs"] >= KILLS // 100
    # The kills do come in the middle of deeds, else this test shows nothing.
    assert found["unknown"] > 0


def test_a_full_or_broken_disk_stops_the_run_before_the_next_effect(folder: Path) -> None:
    found = drive(folder, "--faults", str(max(40, KILLS // 5)))
    assert found["harm"] == {}
    assert found["starved"] >= 40
    assert found["runs"] >= 2
