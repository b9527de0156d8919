"""One client a config name: identity, separate ledgers and servers, accounts of vendors, keys that stay secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from app.config.settings import LLMSettings, RetrySettings
from app.llm.adapters.gemini import GeminiAdapter
from app.llm.adapters.http import HTTPAdapter
from app.llm.adapters.ollama import OllamaAdapter
from app.llm.adapters.openai_chat import OpenAIChatAdapter
from app.llm.adapters.polling import PollingAdapter
from app.llm.adapters.responses import ResponsesAdapter
from app.llm.client import LLM
from app.llm.downloads import DownloadHooks
from app.llm.pool import LLMPool, default_pool, set_default_pool
from app.schema.errors import ConfigError, LLMError
from app.schema.run import RunContext
from app.schema.usage import Usage
from tests.conftest import MakeServer
from tests.fault_server import FaultServer, reply, status, usage
from tests.llm.asking import ask
from tests.llm.conftest import MakeLLM

MakePool = Callable[..., LLMPool]
SETTINGS = LLMSettings(name="a", model="gpt-4o", api_key="sk-secret-key")  # type: ignore[arg-type]


@pytest.fixture
def clean_default() -> Iterator[None]:
    set_default_pool(None)
    yield
    set_default_pool(None)


def test_o01_the_same_name_is_the_same_client(make_pool: MakePool, clean_default: None) -> None:
    pool = make_pool(a=SETTINGS, default=SETTINGS)
    set_default_pool(pool)
    assert LLM("a") is LLM("a") is pool.get("a")
    assert LLM() is LLM("default") is not LLM("a")
    assert default_pool() is pool
    assert LLM("a", SETTINGS) is LLM("a"), "equal settings are no conflict"


def test_o01_other_settings_for_a_used_name_raise(make_pool: MakePool, clean_default: None) -> None:
    set_default_pool(make_pool(a=SETTINGS))
    first = LLM("a")
    with pytest.raises(ConfigError) as caught:
        LLM("a", SETTINGS.model_copy(update={"model": "gpt-4"}))
    assert caught.value.hint == "give the other settings a name of their own"
    assert LLM("a") is first


def test_defect_03_ready_settings_make_a_client(make_pool: MakePool) -> None:
    pool = make_pool()
    client = pool.get("mine", LLMSettings(name="other", model="gpt-4o", api_key="k"))  # type: ignore[arg-type]
    assert (client.name, client.settings.name, pool.get("mine") is client) == ("mine", "mine", True)
    assert pool.get("mine", LLMSettings(name="other", model="gpt-4o", api_key="k")) is client  # type: ignore[arg-type]


def test_unknown_name_lists_the_known_ones(make_pool: MakePool) -> None:
    with pytest.raises(ConfigError) as caught:
        make_pool(b=SETTINGS, a=SETTINGS).get("x")
    assert (caught.value.message, caught.value.hint) == ("there is no [llm.x]", "known model configurations: a, b")


async def test_defect_01_two_names_two_servers_two_ledgers(fault_server: MakeServer, make_pool: MakePool) -> None:
    one = await fault_server([reply("from one", usage=usage(10, 1))] * 2)
    two = await fault_server([reply("from two", usage=usage(20, 2))])
    pool = make_pool(
        manus=LLMSettings(name="manus", model="m1", base_url=one.url),
        planner=LLMSettings(name="planner", model="m2", base_url=two.url),
    )
    ctx = RunContext()
    answers = await asyncio.gather(*(pool.get(name).ask("hi", ctx=ctx) for name in ("manus", "planner", "manus")))
    assert answers == ["from one", "from two", "from one"]
    assert [[request.json["model"] for request in server.chats] for server in (one, two)] == [["m1", "m1"], ["m2"]]
    assert pool.totals == {"manus": Usage(20, 2), "planner": Usage(20, 2)} == ctx.ledger.by_config


async def test_closed_pool_starts_anew(make_llm: MakeLLM, make_pool: MakePool, fault_server: MakeServer) -> None:
    server = await fault_server([reply("one"), reply("two")])
    pool = make_pool(a=LLMSettings(name="a", model="m", base_url=server.url))
    first = pool.get("a")
    assert await first.ask("hi") == "one"
    await pool.close()
    assert pool.get("a") is not first
    assert await pool.get("a").ask("hi") == "two"


def test_a_pool_may_be_used_by_one_event_loop_after_another(make_pool: MakePool) -> None:
    async def ask() -> str:
        async with FaultServer([reply("hi")]) as server:
            pool = LLMPool({"a": LLMSettings(name="a", model="m", base_url=server.url)})
            try:
                return await pool.get("a").ask("hi")
            finally:
                await pool.close()

    assert [asyncio.run(ask()), asyncio.run(ask())] == ["hi", "hi"]


@pytest.mark.parametrize(
    ("settings", "url", "vendor", "local"),
    [
        ({}, "https://api.openai.com/v1/chat/completions", "openai", False),
        ({"api_type": "deepseek"}, "https://api.deepseek.com/chat/completions", "deepseek", False),
        ({"base_url": "https://api.deepseek.com/b/"}, "https://api.deepseek.com/b/chat/completions", "deepseek", False),
        ({"base_url": "https://x.example/v1"}, "https://x.example/v1/chat/completions", "openai-compatible", False),
        ({"base_url": "http://localhost:11434/"}, "http://localhost:11434/v1/chat/completions", "ollama", True),
        ({"base_url": "http://localhost:11434/v1"}, "http://localhost:11434/v1/chat/completions", "ollama", True),
        ({"base_url": "http://192.168.0.9:8000/v1"}, "http://192.168.0.9:8000/v1/chat/completions", "vllm", True),
        (
            {"api_type": "azure", "base_url": "https://x.openai.azure.com", "api_version": "2025-01-01"},
            "https://x.openai.azure.com/openai/deployments/gpt-4o/chat/completions?api-version=2025-01-01",
            "azure",
            False,
        ),
    ],
)  # fmt: skip
def test_accounts(settings: dict[str, str], url: str, vendor: str, local: bool, make_pool: MakePool) -> None:
    pool = make_pool(a=SETTINGS.model_copy(update=settings))
    client = pool.get("a")
    adapter = pool.service.adapter("a")
    assert isinstance(adapter, OpenAIChatAdapter)
    assert adapter.account.url("chat/completions", model="gpt-4o") == url
    assert (client.vendor, client.local) == (vendor, local)
    assert client.describe == {"config": "a", "provider": vendor, "model": "gpt-4o", "local": local}


@pytest.mark.parametrize(
    ("settings", "kind", "url"),
    [
        ({"api_type": "ollama"}, OllamaAdapter, "http://127.0.0.1:11434/api/chat"),
        ({"api_type": "ollama", "base_url": "http://nas:1/v1"}, OllamaAdapter, "http://nas:1/api/chat"),
        (
            {"api_type": "openai", "base_url": "http://nas:11434"},
            OpenAIChatAdapter,
            "http://nas:11434/v1/chat/completions",
        ),
        ({"api_type": "openai_responses"}, ResponsesAdapter, "https://api.openai.com/v1/responses"),
        (
            {"api_type": "google"},
            GeminiAdapter,
            "https://generativelanguage.googleapis.com/v1beta/models/gpt-4o:streamGenerateContent?alt=sse",
        ),
        (
            {"api_type": "google", "base_url": "https://generativelanguage.googleapis.com/"},
            GeminiAdapter,
            "https://generativelanguage.googleapis.com/v1beta/models/gpt-4o:streamGenerateContent?alt=sse",
        ),
        (
            {"api_type": "google", "base_url": "https://generativelanguage.googleapis.com/v1beta/openai"},
            OpenAIChatAdapter,
            "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        ),
        ({"api_type": "server"}, PollingAdapter, "http://127.0.0.1:3333/generate"),
    ],
)
def test_dialects(settings: dict[str, str], kind: type[HTTPAdapter], url: str, make_pool: MakePool) -> None:
    pool = make_pool(a=SETTINGS.model_copy(update=settings))
    adapter = pool.service.adapter(pool.get("a").name)
    assert type(adapter) is kind
    assert adapter.request_url(ask(model="gpt-4o")) == url


def test_ollama_knows_whom_to_ask_and_what_the_user_set() -> None:
    hooks = DownloadHooks()
    told = SETTINGS.model_copy(update={"api_type": "ollama", "context_window": 12_000, "keep_alive": "30m"})
    pool = LLMPool({"a": told}, downloads=hooks)
    adapter = pool.service.adapter(pool.get("a").name)
    assert isinstance(adapter, OllamaAdapter)
    assert adapter.downloads is hooks
    assert (adapter.window, adapter.keep_alive) == (12_000, "30m")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"api_type": "azure"}, "needs base_url"),
        ({"model": ""}, "no model is named"),
        ({"retry": RetrySettings(initial_delay_s=20.0)}, "must not exceed"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, object], words: str, make_pool: MakePool) -> None:
    with pytest.raises(ConfigError, match=words):
        make_pool(a=SETTINGS.model_copy(update=settings)).get("a")


async def test_missing_key_is_said_before_any_request_with_the_variable(make_pool: MakePool) -> None:
    pool = make_pool(a=LLMSettings(name="a", model="gpt-4o"))
    with pytest.raises(LLMError) as caught:
        await pool.get("a").ask("hi")
    assert caught.value.code == "MISSING_CREDENTIAL"
    assert caught.value.hint == "set api_key under [llm], or the variable OPENAI_API_KEY"


async def test_retry_settings_are_obeyed(make_llm: MakeLLM, waits: list[float]) -> None:
    llm, server = await make_llm([status(503)] * 3, retry=RetrySettings(max_retries=2, initial_delay_s=0.1))
    with pytest.raises(LLMError):
        await llm.ask("hi")
    assert (len(server.chats), [round(wait, 1) for wait in waits]) == (3, [0.1, 0.2])


def test_a_client_shows_no_key(make_pool: MakePool) -> None:
    client = make_pool(a=SETTINGS).get("a")
    assert "sk-secret-key" not in f"{client.settings!r} {client.describe} {client!r} {client.__dict__}"
