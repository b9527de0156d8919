"""One `LLM` and one ledger a config name, in a visible pool; and the table from `api_type` to adapter.

`LLMPool.get("planner") is LLMPool.get("planner")`; the same name with other settings is an error, never a silent reuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

from app.config.load import load_config
from app.config.settings import LLMSettings
from app.config.vendors import VENDORS, Dialect, Vendor, dialect_for, vendor_for
from app.llm.adapters.accounts import quirks_of
from app.llm.adapters.base import LLMAdapter
from app.llm.client import LLM, Probe
from app.llm.container import host_address
from app.llm.fallback import Fallback
from app.llm.governor import Governor, governor_for
from app.llm.models import ModelFacts, facts_for
from app.llm.probe import Prober
from app.llm.retry import RetryPolicy, Sleep
from app.llm.service import LLMService, Registration
from app.llm.transport import Timeouts, Transport
from app.llm.vision import HELPER
from app.schema.errors import ConfigError
from app.schema.usage import Usage

if TYPE_CHECKING:
    from app.llm.adapters.http import Account
    from app.llm.downloads import DownloadHooks


class LLMPool:
    """Makes and keeps the `LLM` of each config name.

    `adapters` overrides the adapter of a name, for tests and examples; `close()` frees everything, after which the
    pool starts anew.
    """

    def __init__(
        self,
        settings: Mapping[str, LLMSettings],
        *,
        adapters: Mapping[str, LLMAdapter] | None = None,
        downloads: DownloadHooks | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.service = LLMService()
        self._settings = dict(settings)
        self._adapters = dict(adapters or {})
        self._downloads = downloads
        self._sleep = sleep
        self._transport = Transport()
        self._prober = Prober(self._transport)
        self._clients: dict[str, LLM] = {}
        self._registrations: list[Registration] = []

    def get(self, name: str = "default", settings: LLMSettings | None = None) -> LLM:
        """The one `LLM` of this config name. `ConfigError` for an unknown name, or for other settings than before."""
        known = self._clients.get(name)
        if known is not None:
            if settings is not None and settings.model_copy(update={"name": name}) != known.settings:
                raise ConfigError(
                    f"the model configuration {name!r} is in use with other settings",
                    hint="give the other settings a name of their own",
                )
            return known
        chosen = settings or self._settings.get(name)
        if chosen is None:
            names = ", ".join(sorted(self._settings)) or "none"
            raise ConfigError(f"there is no [llm.{name}]", hint=f"known model configurations: {names}")
        named = chosen if chosen.name == name else chosen.model_copy(update={"name": name})
        client = self._clients[name] = self._make(named)
        return client

    @property
    def totals(self) -> dict[str, Usage]:
        """What each config name has spent in this process."""
        return {name: client.usage for name, client in self._clients.items()}

    async def close(self) -> None:
        await self.service.close()
        await self._transport.close()
        for registration in self._registrations:
            registration.dispose()
        self._registrations.clear()
        self._clients.clear()

    def _make(self, settings: LLMSettings) -> LLM:
        vendor, _ = vendor_for(settings.api_type, settings.base_url)
        facts = facts_for(settings.model, settings.capabilities, context_window=settings.context_window)
        adapter = self._adapters.get(settings.name)
        if adapter is None:
            adapter, facts = self._make_adapter(settings, vendor, facts)
        info = adapter.provider_info(settings.name)
        retry = settings.retry
        policy = RetryPolicy(
            max_retries=retry.max_retries,
            initial_delay_s=retry.initial_delay_s,
            max_delay_s=retry.max_delay_s,
            retry_after_cap_s=retry.retry_after_cap_s,
        )
        self._registrations.append(self.service.register_adapter([settings.name], adapter, retry_policy=policy))
        client = LLM.make(
            settings,
            self.service,
            facts=facts,
            vendor=info.provider or info.name,
            local=info.local,
            sleep=self._sleep,
            probe=self._probe_of(adapter, settings) if info.local else None,
            helper=lambda: self._helper_of(settings.name),
            governor=_governor(settings, vendor, local=info.local) if settings.name not in self._adapters else None,
        )
        client.fallback = Fallback(settings.fallback, self.get)
        return client

    def _probe_of(self, adapter: LLMAdapter, settings: LLMSettings) -> Probe | None:
        """How to ask the server of a local account what its model can do; None where there is no such server."""
        if settings.api_type in ("test", "server"):
            return None
        from app.llm.adapters.embedded import EmbeddedAdapter
        from app.llm.adapters.http import HTTPAdapter

        match adapter:
            case HTTPAdapter():
                return partial(self._prober.ask, adapter.account, settings.model)
            case EmbeddedAdapter(row=row) if not row.sha256:
                return partial(adapter.told, self._prober)
            case _:
                return None

    def _helper_of(self, name: str) -> LLM | None:
        """The model of `[llm.vision]`, for the other configurations, unless it is known to be blind."""
        if name == HELPER or HELPER not in self._settings:
            return None
        helper = self.get(HELPER)
        return helper if helper.facts.sends_images else None

    def _make_adapter(
        self, settings: LLMSettings, vendor: Vendor | None, facts: ModelFacts
    ) -> tuple[LLMAdapter, ModelFacts]:
        dialect = dialect_for(settings.api_type, settings.base_url, vendor)
        if dialect == "test":
            from app.llm.adapters.scripted import ScriptedAdapter, demonstration, load_script

            return ScriptedAdapter(load_script(settings.script) if settings.script else demonstration), facts
        if dialect == "embedded":
            from app.llm.adapters.embedded import EmbeddedAdapter
            from app.llm.embedded.catalog import find_model

            adapter = EmbeddedAdapter(
                find_model(settings.model),
                self._transport,
                route=settings.name,
                timeouts=_timeouts(settings),
                hooks=self._downloads,
            )
            return adapter, adapter.facts
        if vendor is not None and vendor.name == "litellm" and not settings.base_url:
            from app.llm.adapters.litellm import LiteLLMAdapter, is_installed

            if is_installed():
                account = replace(_account(settings, vendor, dialect), base_url="")
                return LiteLLMAdapter(account, route=settings.name, facts=facts), facts
        if dialect == "ollama":
            from app.llm.adapters.ollama import OllamaAdapter

            account = _account(settings, vendor or VENDORS["ollama"], dialect)
            made = OllamaAdapter(account, self._transport, route=settings.name, facts=facts)
            made.window, made.downloads = settings.context_window, self._downloads or made.downloads
            made.keep_alive = settings.keep_alive
            return made, facts
        from app.llm.adapters.http import HTTPAdapter

        speaks = adapter_class(dialect)
        assert issubclass(speaks, HTTPAdapter)
        account = _account(settings, vendor or _unknown_cloud(settings.base_url), dialect)
        facts = speaks.limits(facts)
        return speaks(account, self._transport, route=settings.name, facts=facts), facts


def adapter_class(dialect: Dialect) -> type[LLMAdapter]:
    """The adapter of a dialect, loaded when it is used; its `features` say what the dialect carries."""
    match dialect:
        case "chat":
            from app.llm.adapters.openai_chat import OpenAIChatAdapter

            return OpenAIChatAdapter
        case "responses":
            from app.llm.adapters.responses import ResponsesAdapter

            return ResponsesAdapter
        case "messages":
            from app.llm.adapters.anthropic import AnthropicAdapter

            return AnthropicAdapter
        case "converse":
            from app.llm.adapters.bedrock import BedrockAdapter

            return BedrockAdapter
        case "gemini":
            from app.llm.adapters.gemini import GeminiAdapter

            return GeminiAdapter
        case "ollama":
            from app.llm.adapters.ollama import OllamaAdapter

            return OllamaAdapter
        case "polling":
            from app.llm.adapters.polling import PollingAdapter

            return PollingAdapter
        case "embedded":
            from app.llm.adapters.embedded import EmbeddedAdapter

            return EmbeddedAdapter
        case "test":
            from app.llm.adapters.scripted import ScriptedAdapter

            return ScriptedAdapter
        case _:
            assert_never(dialect)


def _governor(settings: LLMSettings, vendor: Vendor | None, *, local: bool) -> Governor | None:
    """The governor of the account, which configurations with the same vendor, host and key share; None = one's own."""
    if settings.api_type in ("test", "embedded"):
        return None
    address = settings.base_url or (vendor.base_url if vendor else "")
    key = settings.api_key.get_secret_value()
    return governor_for(vendor.name if vendor else "", address, key, settings.rate, local=local)


def _timeouts(settings: LLMSettings) -> Timeouts:
    limits = settings.timeout
    return Timeouts(limits.connect_s, limits.first_byte_s, limits.idle_s, limits.total_s)


def _unknown_cloud(base_url: str) -> Vendor:
    host = urlsplit(base_url).hostname or base_url
    return replace(VENDORS["openai"], name="openai-compatible", label=host, base_url="", default_model="")


def _account(settings: LLMSettings, vendor: Vendor, dialect: Dialect) -> Account:
    from app.llm.adapters.http import Account

    base_url = settings.base_url or vendor.base_url
    if not base_url and dialect != "converse":  # whose address follows from the region
        raise ConfigError(f"{vendor.label} needs base_url", hint=f"set base_url under [llm] (config {settings.name!r})")
    if not settings.model:
        raise ConfigError(f"no model is named for {vendor.label}", hint="set `model` under [llm], or use --model")
    variables = " or ".join(vendor.key_env)
    return Account(
        vendor=vendor.name,
        label=vendor.label,
        base_url=_root(base_url, dialect, vendor, settings.api_version),
        api_key=settings.api_key.get_secret_value(),
        local=vendor.local,
        headers=settings.headers,
        timeouts=_timeouts(settings),
        quirks=quirks_of(vendor.name),
        azure_version=(settings.api_version or "2024-10-21") if vendor.name == "azure" else None,
        region=settings.region,
        key_hint=f"set api_key under [llm]{f', or the variable {variables}' if variables else ''}",
    )


def _root(base_url: str, dialect: Dialect, vendor: Vendor, api_version: str) -> str:
    """The address before a dialect's own path: Ollama speaks chat completions under `/v1` and its own beside that,
    Azure names no deployment in the address of its Responses API, which needs no version under `/openai/v1`.
    """
    root = base_url.rstrip("/")
    if dialect == "responses" and vendor.name == "azure":
        root = root.partition("/deployments/")[0].removesuffix("/openai")
        dated = api_version[:1].isdigit() or root.endswith("/openai/v1")
        return root if dated else f"{root}/openai/v1"
    if vendor.local:
        root = host_address(root)
    if dialect == "messages":
        # Anthropic's own variable, and the addresses that others name for it, end before the version.
        return root if root.endswith("/v1") else f"{root}/v1"
    if dialect == "ollama":
        return root.removesuffix("/v1")
    if dialect == "gemini":
        # Google's own SDK names an address without the version.
        return root if urlsplit(root).path else f"{root}/v1beta"
    return f"{root}/v1" if vendor.name == "ollama" and not urlsplit(root).path else root


_default: LLMPool | None = None


def default_pool() -> LLMPool:
    """The pool behind `LLM("name")`: the one set last, else a new one of the configuration in force."""
    pool = _default
    if pool is None:
        pool = LLMPool(load_config().llm)
        set_default_pool(pool)
    return pool


def set_default_pool(pool: LLMPool | None) -> None:
    """Let `LLM("name")` look in this pool; None = make one of the configuration at the next look-up."""
    global _default
    _default = pool
