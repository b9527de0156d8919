"""A place of one's own for each test: current folder, project and home are empty folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from app import paths
from app.config.load import load_config
from app.config.settings import Config, LLMSettings
from app.schema.errors import ConfigError


class Lab:
    """Writes files as a user would and loads them; the environment is what a test names, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder.parent / "home"
        self.file = folder / "config" / "config.toml"

    def write(self, text: str | bytes, path: Path | None = None) -> Path:
        target = path or self.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def write_mcp(self, servers: object, path: Path | None = None) -> Path:
        return self.write(json.dumps({"mcpServers": servers}), path or self.file.parent / "mcp.json")

    def env(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"DRAGOMAN_HOME": str(self.home), **(variables or {})}

    def load(
        self,
        text: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        path: Path | None = None,
        detected: LLMSettings | None = None,
    ) -> Config:
        if text is not None:
            self.write(text)
        return load_config(path, env=self.env(env), flags=flags, detected=detected)

    def problems(
        self,
        text: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        path: Path | None = None,
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            self.load(text, env, flags, path)
        assert caught.value.code == "CONFIG"
        return caught.value.message.split("\n")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(paths, "PROJECT_ROOT", tmp_path / "project")
    return Lab(folder)
