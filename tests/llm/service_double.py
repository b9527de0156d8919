"""An adapter for the tests of the service, and short ways to register, ask and expect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo, ReasoningInfo
from app.llm.retry import RetryPolicy
from app.llm.service import (
    LLMService,
    LLMStream,
)
from app.schema.errors import LLMError
from app.schema.message import TextBlock
from app.schema.request import ModelRequest
from app.schema.stream import BlockEnd, BlockStart, Chunk, Finish, TextDelta
from tests.llm.asking import ask

HELLO: tuple[Chunk, ...] = (BlockStart(0, "text"), TextDelta(0, "hi"), BlockEnd(0, TextBlock("hi")), Finish("stop"))
HI = ["S0 text", "T0 hi", "E0 hi", "F stop"]
Answer = Callable[[ModelRequest], AsyncIterator[Chunk]]


class Double(LLMAdapter):
    """An adapter that plays chunks, then raises or ends; remembers its requests and how often it was closed."""

    def __init__(self, *chunks: Chunk, error: BaseException | None = None, info: Any = None) -> None:
        self.chunks = chunks or HELLO
        self.error = error
        self.requests: list[ModelRequest] = []
        self.closed = 0
        self.info = info
        self.models: Sequence[ModelInfo] = ()
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        try:
            for chunk in self.chunks:
                yield chunk
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1

    def provider_info(self, route: str) -> ProviderInfo:
        return self.info(route) if callable(self.info) else ProviderInfo(route, "double")

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        return self.models

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        self.asked += 1
        return next((each for each in self.models if each.id == model), ModelInfo(route, model, model))


def serve(adapter: LLMAdapter, *routes: str, policy: RetryPolicy | None = None) -> LLMService:
    service = LLMService()
    service.register_adapter(routes or ("x",), adapter, retry_policy=policy)
    return service


async def drain(stream: AsyncIterator[Chunk] | LLMStream, seen: list[Chunk] | None = None) -> list[Chunk]:
    seen = [] if seen is None else seen
    async for chunk in stream:
        seen.append(chunk)
    return seen


def coded(code: str) -> Any:
    return pytest.raises(LLMError, check=lambda error: error.code == code)


def request(**fields: Any) -> ModelRequest:
    return ask("hi", **({"provider": "x", "model": "m"} | fields))


def thinking(*efforts: str, default: str | None = None) -> ReasoningInfo:
    return ReasoningInfo(tuple((effort, effort.title()) for effort in efforts), default)
