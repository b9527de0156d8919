"""The example files: complete, loadable, and as good with every comment removed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from app.config.check import settable
from app.config.settings import AgentSettings, Config, LLMSettings, McpServerSettings, Settings
from tests.config.conftest import Lab

FOLDER = Path(__file__).parents[2] / "config"
EXAMPLE = (FOLDER / "config.example.toml").read_text(encoding="utf-8")
UNCOMMENTED = "\n".join(re.sub(r"^# (?=\[|[A-Za-z_]+ = )", "", line) for line in EXAMPLE.split("\n"))
NAMED: dict[tuple[str, ...], type[Settings]] = {
    ("llm",): LLMSettings,
    ("agents", "manus"): AgentSettings,
    ("mcp", "servers", "time"): McpServerSettings,
}


def _settings(model: type[Settings], path: tuple[str, ...]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in settable(model):
        kind = model.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            found += _settings(kind, (*path, name))
        elif not any(isinstance(inner, type) and issubclass(inner, Settings) for inner in get_args(kind)):
            found.append((*path, name))
    return found


ALL = [path for at, model in [((), Config), *NAMED.items()] for path in _settings(model, at)]


@pytest.mark.parametrize("path", ALL, ids=".".join)
def test_every_setting_stands_in_the_example(path: tuple[str, ...]) -> None:
    value: object = tomllib.loads(UNCOMMENTED)
    for part in path:
        assert isinstance(value, dict)
        assert part in value
        value = value[part]


def test_the_settings_are_really_walked() -> None:
    assert {("llm", "retry", "max_retries"), ("browser", "proxy", "server"), ("mcp", "servers", "time", "env")} < set(
        ALL
    )


def test_the_example_loads_as_it_is(lab: Lab) -> None:
    config = lab.load(EXAMPLE, {"OPENAI_API_KEY": "k"})
    assert config.llm["default"].api_key.get_secret_value() == "k"
    assert config.model_dump(exclude={"llm", "path", "origins"}) == Config().model_dump(
        exclude={"llm", "path", "origins"}
    )


def test_the_example_loads_with_every_comment_removed(lab: Lab) -> None:
    env = {"MCP_TOKEN": "t", "DRAGOMAN_SERVER_TOKEN": "t", "DAYTONA_API_KEY": "t"}
    config = lab.load(UNCOMMENTED, env)
    assert list(config.llm) == ["default", "local", "vision", "summary"]
    assert config.mcp.servers["time"].type == "stdio"
    assert config.llm_name_for_agent("manus")[0] == "local"


def test_the_mcp_example_loads(lab: Lab) -> None:
    lab.write((FOLDER / "mcp.example.json").read_bytes(), lab.file.parent / "mcp.json")
    servers = lab.load().mcp.servers
    assert [(name, server.type, server.disabled) for name, server in servers.items()] == [
        ("time", "stdio", True),
        ("files", "stdio", True),
        ("remote", "http", True),
        ("events", "sse", True),
    ]
