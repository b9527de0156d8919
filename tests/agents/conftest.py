"""The rig of every agent test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agents.rig import Rig


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
async def rig(workspace: Path) -> AsyncIterator[Rig]:
    rig = Rig(workspace)
    yield rig
    await rig.close()
