"""The adapter contract: a request in, chunks out. Adapters know neither the client nor the config file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from app.schema.errors import LLMError
from app.schema.request import ModelRequest
from app.schema.stream import Chunk


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """How a route is shown to people: `id` is the route, `provider` the account's name, `local` where text goes."""

    id: str
    name: str
    provider: str = ""
    local: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningInfo:
    efforts: tuple[tuple[str, str], ...]
    """(id, display name) in preferred order."""
    default: str | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What an adapter says of one model: identity, and facts where they are known (None = unknown)."""

    provider: str
    id: str
    name: str
    description: str | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    reasoning: ReasoningInfo | None = None


FEATURES = {
    "stream": "text is shown while it is written",
    "tools": "native tool calls",
    "parallel": "several calls in one reply",
    "images": "pictures from the user and from tools",
    "reasoning": "thinking, kept apart from the answer",
    "usage": "token counts of the provider",
    "caching": "counts of cached tokens; prompts are sent so that caches hit",
    "cancel": "a stop frees the connection within half a second",
}
"""What a dialect may carry; whether a model can do it is another question (`models.py`)."""


class LLMAdapter(ABC):
    """One wire dialect for one account. `stream` is the only mandatory method.

    Obligations of `stream`: one attempt, no retry; `UsageReport` before `Finish`, nothing after it; tool arguments
    stay raw text; a failure either raises `LLMError` or ends with `Finish("error")`; a reply without any block is
    `EMPTY_RESPONSE`; closing the iterator closes the connection.
    """

    features: ClassVar[frozenset[str]] = frozenset(FEATURES)
    """Keys of `FEATURES`; the table of providers in the docs is made of them, and each is shown by a test."""

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]: ...

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, route)

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        """What the account offers now; advisory, never a whitelist."""
        return ()

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        return ModelInfo(route, model, model)

    def correct(self, error: LLMError, request: ModelRequest) -> str | None:
        """Learn from a refused option so that the next attempt leaves it out; returns what to tell the user.

        None means that there is nothing new to learn and the error stands.
        """
        return None

    def takes(self, option: str, model: str) -> bool:
        """False once this model is known to refuse a request option (`tool_choice`, `response_format`, …)."""
        return True

    async def close(self) -> None:  # noqa: B027
        """Free connections and child processes; an adapter may have none."""
