"""Loopback addresses of local servers inside a container."""

from __future__ import annotations

import pytest

from app.config.settings import LLMSettings
from app.llm.container import host_address
from app.llm.pool import LLMPool
from tests.conftest import MakeServer

OLLAMA = "http://127.0.0.1:11434/api?x=1"


@pytest.mark.parametrize(
    ("base_url", "named", "expected"),
    [
        (OLLAMA, "http://host.docker.internal", "http://host.docker.internal:11434/api?x=1"),
        (OLLAMA, "http://172.17.0.1:9", "http://172.17.0.1:11434/api?x=1"),
        (OLLAMA, "gateway", "http://gateway:11434/api?x=1"),
        ("http://localhost:1234/v1", "https://up.stairs", "https://up.stairs:1234/v1"),
        ("http://[::1]:1234/v1", "http://[fd00::1]", "http://[fd00::1]:1234/v1"),
        ("http://192.168.1.7:1234/v1", "http://host.docker.internal", "http://192.168.1.7:1234/v1"),
        ("https://api.openai.com/v1", "http://host.docker.internal", "https://api.openai.com/v1"),
        ("", "http://host.docker.internal", ""),
    ],
)
def test_the_variable_moves_loopback_addresses_alone(base_url: str, named: str, expected: str) -> None:
    assert host_address(base_url, env={"DOCKER_INTERNAL_URL": named}) == expected


@pytest.mark.parametrize(
    ("inside", "listens", "resolves", "expected"),
    [
        (True, False, True, "http://host.docker.internal:11434/api?x=1"),
        (False, False, True, OLLAMA),
        (True, True, True, OLLAMA),
        (True, False, False, OLLAMA),
    ],
)
def test_without_the_variable_the_host_is_looked_for(
    inside: bool, listens: bool, resolves: bool, expected: str
) -> None:
    moved = host_address(
        OLLAMA, env={}, inside=lambda: inside, listens=lambda host, port: listens, resolves=lambda host: resolves
    )
    assert moved == expected


async def test_a_server_in_the_same_container_is_found(fault_server: MakeServer) -> None:
    server = await fault_server([])
    assert host_address(server.url, env={}, inside=lambda: True, resolves=lambda host: True) == server.url


async def test_the_pool_moves_local_accounts_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_INTERNAL_URL", "http://host.docker.internal")
    pool = LLMPool(
        {
            "desk": LLMSettings(name="desk", model="m", base_url="http://localhost:1234/v1", api_type="lm-studio"),
            "cloud": LLMSettings(name="cloud", model="m", api_type="deepseek", api_key="sk-test"),  # type: ignore[arg-type]
        }
    )
    desk, cloud = (pool.get(name) for name in ("desk", "cloud"))
    assert (desk.local, cloud.local) == (True, False)
    urls = [pool.service.adapter(name).account.base_url for name in ("desk", "cloud")]  # type: ignore[attr-defined]
    assert urls == ["http://host.docker.internal:1234/v1", "https://api.deepseek.com"]
    await pool.close()
