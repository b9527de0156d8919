"""Clients and adapters that talk to fault servers; waits are recorded instead of slept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from app.config.settings import LLMSettings
from app.llm.adapters.accounts import quirks_of
from app.llm.adapters.http import Account
from app.llm.adapters.openai_chat import OpenAIChatAdapter
from app.llm.client import LLM
from app.llm.models import DEFAULTS, ModelFacts
from app.llm.pool import LLMPool
from app.llm.transport import Transport
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, Script
from tests.llm.asking import MODEL

MakeLLM = Callable[..., Awaitable[tuple[LLM, FaultServer]]]
MakeAdapter = Callable[..., OpenAIChatAdapter]


@pytest.fixture
def waits() -> list[float]:
    """How long a client waited before each retry, in seconds."""
    return []


@pytest.fixture
async def make_pool(waits: list[float]) -> AsyncIterator[Callable[..., LLMPool]]:
    """`make_pool(main=settings, …)`: a pool whose waits take no time; closed at the end."""
    pools: list[LLMPool] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def make(**settings: LLMSettings) -> LLMPool:
        pools.append(LLMPool(settings, sleep=sleep))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


@pytest.fixture
def make_llm(fault_server: MakeServer, make_pool: Callable[..., LLMPool]) -> MakeLLM:
    """`llm, server = await make_llm([reply("hi")], server={"strict": False}, temperature=0.5)`."""

    async def start(
        script: Script = (), *, server: dict[str, Any] | None = None, name: str = "main", **settings: Any
    ) -> tuple[LLM, FaultServer]:
        started = await fault_server(script, **(server or {}))
        options = {"model": MODEL, "base_url": started.url, "api_key": "sk-test"} | settings
        return make_pool(**{name: LLMSettings(name=name, **options)}).get(name), started

    return start


@pytest.fixture
async def make_adapter() -> AsyncIterator[MakeAdapter]:
    """`make_adapter(server.url, vendor="deepseek")`: the bare dialect, without client, service and retries."""
    transport = Transport()

    def make(
        base_url: str, *, vendor: str = "local", facts: ModelFacts = DEFAULTS, route: str = "main", **account: Any
    ) -> OpenAIChatAdapter:
        options = {"label": "the server", "api_key": "sk-test", "quirks": quirks_of(vendor)} | account
        return OpenAIChatAdapter(Account(vendor, base_url=base_url, **options), transport, route=route, facts=facts)

    yield make
    await transport.close()
