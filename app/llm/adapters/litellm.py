"""LiteLLM inside the process: its library's translation to whatever vendor, read as chat completions. Needs the extra
`litellm`; a LiteLLM proxy is an ordinary chat-completions address and needs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo, ReasoningInfo
from app.llm.adapters.chat_decode import ChatDecoder
from app.llm.adapters.chat_encode import EFFORTS, ChatEncoder
from app.llm.adapters.corrections import Corrections
from app.llm.adapters.http import Account
from app.llm.adapters.wire import as_table
from app.llm.failures import classify
from app.llm.models import ModelFacts
from app.schema.errors import ConfigError, LLMError
from app.schema.request import ModelRequest
from app.schema.stream import Chunk


def is_installed() -> bool:
    return importlib.util.find_spec("litellm") is not None


class LiteLLMAdapter(LLMAdapter):
    """Models are named as LiteLLM names them (`anthropic/claude-…`); keys are its own variables, or `api_key`."""

    def __init__(self, account: Account, *, route: str, facts: ModelFacts) -> None:
        self._account = account
        self._facts = facts
        self._encoder = ChatEncoder(route, account.quirks)
        self._corrections = Corrections({})

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, self._account.label, self._account.vendor, self._account.local)

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        reasoning = ReasoningInfo(tuple((name, name) for name in EFFORTS["openai"]))
        may_reason = self._facts.reasoning is not False
        return ModelInfo(
            route,
            model,
            model,
            context_window=self._facts.context_window,
            reasoning=reasoning if may_reason else None,
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        library, decoder = _library(), ChatDecoder(self._account.label)
        events: Any = None
        try:
            events = await library.acompletion(**self._arguments(request))
            async for event in events:
                for chunk in decoder.feed(event.model_dump(exclude_none=True)):
                    yield chunk
        except (_vendor_errors(), OSError, TimeoutError) as error:
            raise self._as_error(error) from error
        finally:
            if events is not None:
                await events.aclose()
        for chunk in decoder.end(done=False):
            yield chunk

    def correct(self, error: LLMError, request: ModelRequest) -> str | None:
        return self._corrections.learn(error, request.config.model, self._body(request))

    def takes(self, option: str, model: str) -> bool:
        return self._corrections.takes(option, model)

    async def close(self) -> None:
        """The library keeps its connections for the process; they end with the pool."""
        if "litellm" in sys.modules:
            await _library().close_litellm_async_clients()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        learned = self._corrections.of(request.config.model)
        body = self._encoder.body(request, learned, token_field="max_tokens", temperature=self._facts.temperature)
        return as_table(json.loads(body)) or {}

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        times = self._account.timeouts
        options: dict[str, Any] = {"timeout": times.total_s or times.first_byte_s, "num_retries": 0, "max_retries": 0}
        if self._account.api_key:
            options["api_key"] = self._account.api_key
        if self._account.base_url:
            options["api_base"] = self._account.base_url
        return self._body(request) | options

    def _as_error(self, error: Exception) -> LLMError:
        """LiteLLM's exceptions carry the vendor's status and words; the rest are faults of the way."""
        status = getattr(error, "status_code", None)
        name, message = type(error).__name__, str(getattr(error, "message", error))
        if isinstance(error, TimeoutError) or "Timeout" in name:
            return LLMError(f"{self._account.label} did not answer in time", "TIMEOUT")
        # It gives broken connections the status 500.
        if "Stream ended" in message or name == "MidStreamFallbackError":
            return LLMError(f"{self._account.label} broke off: {message}", "STREAM_CLOSED")
        if "Connection error" in message or not isinstance(status, int):
            return LLMError(f"{self._account.label} could not be reached: {message}", "TRANSPORT")
        headers = cast("dict[str, str]", dict(getattr(getattr(error, "response", None), "headers", None) or {}))
        lower = {key.lower(): value for key, value in headers.items()}
        return classify(status, message.encode(), lower, who=self._account.label)


def _vendor_errors() -> type[Exception]:
    """What all exceptions of LiteLLM derive from."""
    return importlib.import_module("openai").OpenAIError


def _library() -> Any:
    """The library, kept from fetching its price table and from printing."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ImportError as error:
        hint = "pip install 'dragoman[litellm]', or set base_url to a LiteLLM proxy"
        raise ConfigError("api_type 'litellm' without base_url needs the package litellm", hint=hint) from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm
