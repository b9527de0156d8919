"""Where things live: the workspace an agent may write to, and the runtime home it may not, are two places."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app import paths
from app.schema.errors import SandboxError
from tests.frontends.conftest import ROOT


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"DRAGOMAN_HOME": "/a", "AGENT_RUNTIME_DIR": "/b", "XDG_DATA_HOME": "/c"}, "/a"),
        ({"AGENT_RUNTIME_DIR": "/b", "XDG_DATA_HOME": "/c"}, "/b"),
        ({"XDG_DATA_HOME": "/c"}, "/c/dragoman"),
        ({"DRAGOMAN_HOME": ""}, "/h/.local/share/dragoman"),
        ({"DRAGOMAN_HOME": "~/mine"}, "/h/mine"),
    ],
    ids=["own", "agenticSeek's", "XDG", "default", "tilde"],
)
def test_the_runtime_home(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str) -> None:
    monkeypatch.setenv("HOME", "/h")
    assert paths.runtime_home(env) == Path(expected)


def test_the_workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paths.workspace_dir() == ROOT / "workspace"
    monkeypatch.setenv("WORK_DIR", "/w")
    assert paths.workspace_dir() == Path("/w")
    monkeypatch.setenv("DRAGOMAN_WORKSPACE", "/d")
    assert paths.workspace_dir() == Path("/d")
    assert paths.workspace_dir(tmp_path) == tmp_path


def test_a_read_only_project_has_its_workspace_in_the_home(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert paths.workspace_dir() == home / "workspace"


def test_runtime_files_are_outside_the_workspace(home: Path) -> None:
    """Sessions, logs and screenshots, by the defaults: an agent cannot write to what is kept about it."""
    assert not paths.lies_in(paths.runtime_home({"HOME": str(home)}), paths.workspace_dir())
    assert not paths.lies_in(paths.runtime_dir("logs"), paths.workspace_dir())
    with pytest.raises(SandboxError, match="outside the workspace"):
        paths.resolve_in_workspace(home / "workspace", "../sessions/sessions.db")


def test_links_do_not_hide_what_lies_where(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert paths.lies_in(tmp_path / "link" / "x", tmp_path / "real")
    assert paths.lies_in(tmp_path / "real", tmp_path / "link")
    assert not paths.lies_in(tmp_path, tmp_path / "real")


def test_a_run_writes_nothing_into_the_source_tree(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("app", "prompts", "config"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "config.toml"))
    for name in ("main.py", "pyproject.toml"):
        shutil.copy(ROOT / name, source / name)
    before = sorted(source.rglob("*"))
    env = {**os.environ, "DRAGOMAN_WORKSPACE": str(tmp_path / "ws"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(source / "main.py"), "--llm", "test", "--quiet", "try me"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(source.rglob("*")) == before
    assert (tmp_path / "ws" / "greeting.txt").exists()
    assert (tmp_path / "home" / "sessions" / "sessions.db").exists()
