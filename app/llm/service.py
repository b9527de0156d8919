"""The one path to a model: a registry of adapters by route, prepared calls, middleware, one interceptable stream.

Does not retry, cache, limit rates or clamp values. A route is the name of a model configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo, ReasoningInfo
from app.llm.retry import RetryPolicy
from app.schema.errors import LLMError, LLMFailure, normalize_failure
from app.schema.message import Message, ModelSource
from app.schema.request import CallConfig, ModelRequest
from app.schema.stream import Chunk, Finish

Next = Callable[[ModelRequest], AsyncIterator[Chunk]]
Middleware = Callable[[ModelRequest, Next], AsyncIterator[Chunk]]


@dataclass(frozen=True, slots=True)
class _Entry:
    adapter: LLMAdapter
    info: ProviderInfo
    policy: RetryPolicy


class _Registry:
    """Which adapter serves which route. A change happens as a whole or, with an error, not at all."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}

    def entry(self, route: str) -> _Entry:
        try:
            return self.entries[route]
        except KeyError:
            known = ", ".join(self.entries) or "none"
            raise LLMError(
                f"no adapter serves the route {route!r}", "NO_ADAPTER", hint=f"known routes: {known}"
            ) from None

    def swap(self, old: Sequence[str], new: tuple[str, ...], adapter: LLMAdapter, policy: RetryPolicy) -> None:
        entries = {route: _Entry(adapter, _described(adapter, route), policy) for route in new}
        taken = [route for route in new if route in self.entries and route not in old]
        if taken or len(entries) != len(new):
            raise LLMError(f"the route {(taken or list(new))[0]!r} is already owned", "DUPLICATE_ADAPTER")
        for route in old:
            self.entries.pop(route, None)
        self.entries.update(entries)

    def own_replay_state(self, request: ModelRequest, adapter: LLMAdapter) -> ModelRequest:
        """Keep replay state only where the adapter that made it is the one that will read it."""
        if not any(self._is_foreign(message, adapter) for message in request.messages):
            return request
        return replace(request, messages=tuple(self._without_foreign_state(each, adapter) for each in request.messages))

    def _is_foreign(self, message: Message, adapter: LLMAdapter) -> bool:
        source = message.source
        if not isinstance(source, ModelSource) or source.replay_state is None:
            return False
        owner = self.entries.get(source.provider)
        return owner is None or owner.adapter is not adapter

    def _without_foreign_state(self, message: Message, adapter: LLMAdapter) -> Message:
        source = message.source
        if not isinstance(source, ModelSource) or not self._is_foreign(message, adapter):
            return message
        return message.replace(source=ModelSource(source.provider, source.model))


def _described(adapter: LLMAdapter, route: str) -> ProviderInfo:
    if not route:
        raise LLMError("a route needs a name", "INVALID_ADAPTER")
    info = adapter.provider_info(route)
    if info.id != route or not info.name:
        raise LLMError(f"the adapter describes {info.id!r} instead of {route!r}", "INVALID_ADAPTER")
    return info


class Registration:
    """The routes one `register_adapter` call made. `dispose()` takes them all away; a second call does nothing."""

    def __init__(self, registry: _Registry, routes: tuple[str, ...], adapter: LLMAdapter, policy: RetryPolicy) -> None:
        self._registry = registry
        self._adapter = adapter
        self._policy = policy
        self.routes = routes
        self.disposed = False

    def dispose(self) -> None:
        if not self.disposed:
            self.disposed = True
            self._registry.swap(self.routes, (), self._adapter, self._policy)

    def replace(self, routes: Iterable[str]) -> None:
        """Swap the routes in one step, or raise and change nothing. An empty list is legal."""
        if self.disposed:
            raise LLMError("the registration was disposed", "REGISTRATION_DISPOSED")
        new = tuple(routes)
        self._registry.swap(self.routes, new, self._adapter, self._policy)
        self.routes = new


class LLMStream:
    """One model call. Iterate it for chunks with failures as exceptions, or `terminal()` for a stream that always
    ends in a `Finish`; either once. Nothing is sent before the first chunk is asked for.

    `failure_of(error)` is the record of an exception that came out of *this* call's adapter, else None;
    `retry_policy` is that of the registration which served it, None when none was reached; `error` is the exception
    that `terminal()` turned into its finish.
    """

    def __init__(
        self, registry: _Registry, request: ModelRequest, pinned: _Entry | None, middleware: Sequence[Middleware]
    ) -> None:
        self._registry = registry
        self._request = request
        self._pinned = pinned
        self._middleware = middleware
        self._tagged: list[tuple[BaseException, LLMFailure]] = []
        self.retry_policy: RetryPolicy | None = None
        self.error: Exception | None = None

    def failure_of(self, error: BaseException) -> LLMFailure | None:
        return next((failure for tagged, failure in self._tagged if tagged is error), None)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        source: Next = self._dispatch
        for middleware in reversed(self._middleware):
            source = _wrap(middleware, source)
        return source(self._request)

    async def terminal(self) -> AsyncGenerator[Chunk]:
        """The same chunks, but a failure of the adapter becomes one `Finish("error")`; other exceptions still raise."""
        source = aiter(self)
        try:
            async for chunk in source:
                yield chunk
        except Exception as error:
            failure = self.failure_of(error)
            if failure is None:
                raise
            self.error = error
            yield Finish("aborted" if failure.code == "ABORTED" else "error", failure)
        finally:
            await _close(source)

    async def _dispatch(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        """The adapter's own chunks. Whatever it raises is remembered as its failure and comes out unchanged."""
        source: AsyncIterator[Chunk] | None = None
        finished = False
        try:
            entry = self._pinned or self._registry.entry(request.config.provider)
            self.retry_policy = entry.policy
            if self._pinned is None:
                config = await _resolve_config(entry, request.config)
                request = request if config is request.config else replace(request, config=config)
            source = aiter(entry.adapter.stream(self._registry.own_replay_state(request, entry.adapter)))
            async for chunk in source:
                finished = finished or isinstance(chunk, Finish)
                yield chunk
            _check_finished(finished)
        except Exception as error:
            self._tagged.append((error, normalize_failure(error)))
            raise
        except (GeneratorExit, asyncio.CancelledError):
            # Left early. An iterator that raised by itself is not closed: its close might never settle.
            await _close(source)
            raise


def _check_finished(finished: bool) -> None:
    if not finished:
        raise LLMError("the stream ended without a finish", "STREAM_CLOSED")


def is_llm_adapter_failure(stream: object, error: BaseException) -> bool:
    """True when `error` came out of the adapter of exactly this stream."""
    return isinstance(stream, LLMStream) and stream.failure_of(error) is not None


def llm_failure_of(stream: object, error: BaseException) -> LLMFailure | None:
    return stream.failure_of(error) if isinstance(stream, LLMStream) else None


def llm_retry_policy_of(stream: object) -> RetryPolicy | None:
    return stream.retry_policy if isinstance(stream, LLMStream) else None


class PreparedCall:
    """A resolved config bound to the registration that resolved it, for one use."""

    def __init__(
        self, registry: _Registry, config: CallConfig, entry: _Entry, middleware: Sequence[Middleware]
    ) -> None:
        self.config = config
        self.retry_policy = entry.policy
        self._registry = registry
        self._entry = entry
        self._middleware = middleware
        self._used = False

    def stream(self, request: ModelRequest) -> LLMStream:
        """Start the call. `INVALID_PREPARED_CALL` on a second use or when the request's config is another one."""
        if self._used:
            raise LLMError("a prepared call serves once", "INVALID_PREPARED_CALL")
        if request.config != self.config:
            raise LLMError("the request's config is not the prepared one", "INVALID_PREPARED_CALL")
        self._used = True
        return LLMStream(self._registry, request, self._entry, self._middleware)


class LLMService:
    def __init__(self) -> None:
        self._registry = _Registry()
        self._middleware: list[Middleware] = []

    def register_adapter(
        self, routes: Iterable[str], adapter: LLMAdapter, *, retry_policy: RetryPolicy | None = None
    ) -> Registration:
        """Make `adapter` serve `routes`: all of them, or none and an error. Display facts are captured now."""
        names = tuple(routes)
        if not names:
            raise LLMError("an adapter needs at least one route", "INVALID_ADAPTER")
        policy = retry_policy or RetryPolicy()
        self._registry.swap((), names, adapter, policy)
        return Registration(self._registry, names, adapter, policy)

    def use(self, middleware: Middleware) -> Callable[[], None]:
        """Wrap every stream, the first one used outermost; returns a function that takes it out again."""
        self._middleware.append(middleware)

        def remove() -> None:
            if middleware in self._middleware:
                self._middleware.remove(middleware)

        return remove

    def list_providers(self) -> tuple[ProviderInfo, ...]:
        return tuple(entry.info for entry in self._registry.entries.values())

    def provider_info(self, route: str) -> ProviderInfo:
        return self._registry.entry(route).info

    def provider_retry_policy(self, route: str) -> RetryPolicy:
        return self._registry.entry(route).policy

    def adapter(self, route: str) -> LLMAdapter:
        return self._registry.entry(route).adapter

    async def list_models(self, route: str) -> tuple[ModelInfo, ...]:
        """What the route advertises; never a whitelist. `INVALID_CATALOG` for a bad or doubled entry."""
        models = tuple(await self._registry.entry(route).adapter.list_models(route))
        seen: set[str] = set()
        for model in models:
            if model.provider != route or not model.id or model.id in seen or not _is_named(model):
                raise LLMError(f"a bad entry in the model list of {route!r}: {model.id!r}", "INVALID_CATALOG")
            seen.add(model.id)
        return models

    async def resolve_model_info(self, route: str, model: str) -> ModelInfo:
        """The facts of one model, asked of the adapter once and checked; an unlisted model is fine."""
        return await _resolve_info(self._registry.entry(route), route, model)

    async def resolve_call_config(self, config: CallConfig) -> CallConfig:
        """The config with the adapter's defaults filled in; the same object when there is nothing to fill.

        `UNSUPPORTED_REASONING_EFFORT` when an effort is given that the adapter does not advertise for this model.
        """
        return await _resolve_config(self._registry.entry(config.provider), config)

    async def prepare_call(self, config: CallConfig) -> PreparedCall:
        """Resolve a config and pin the registration that will serve it, also if the route is disposed meanwhile."""
        entry = self._registry.entry(config.provider)
        return PreparedCall(self._registry, await _resolve_config(entry, config), entry, self._middleware)

    def stream(self, request: ModelRequest) -> LLMStream:
        """One attempt at one request. Lazy: an unread stream sends nothing."""
        return LLMStream(self._registry, request, None, self._middleware)

    async def close(self) -> None:
        """Close every adapter once."""
        adapters = {id(entry.adapter): entry.adapter for entry in self._registry.entries.values()}
        await asyncio.gather(*(adapter.close() for adapter in adapters.values()))


async def _resolve_info(entry: _Entry, route: str, model: str) -> ModelInfo:
    info = await entry.adapter.resolve_model(route, model)
    if info.provider != route or info.id != model or not _is_named(info):
        raise LLMError(f"the adapter of {route!r} described another model than {model!r}", "INVALID_MODEL_INFO")
    _check_count(info.context_window, "INVALID_MODEL_CONTEXT")
    _check_count(info.max_output_tokens, "INVALID_MODEL_MAX_TOKENS")
    if info.reasoning is not None:
        _check_reasoning(info.reasoning, model)
    return info


def _check_reasoning(reasoning: ReasoningInfo, model: str) -> None:
    ids = [effort for effort, _ in reasoning.efforts]
    named = all(effort and name for effort, name in reasoning.efforts)
    if (
        not ids
        or not named
        or len(set(ids)) != len(ids)
        or (reasoning.default is not None and reasoning.default not in ids)
    ):
        raise LLMError(f"bad reasoning efforts for {model!r}", "INVALID_MODEL_REASONING")


async def _resolve_config(entry: _Entry, config: CallConfig) -> CallConfig:
    info = await _resolve_info(entry, config.provider, config.model)
    advertised = info.reasoning.efforts if info.reasoning else ()
    ids = [name for name, _ in advertised]
    effort, max_tokens = config.reasoning_effort, config.max_tokens
    if effort is not None and effort not in ids:
        raise LLMError(
            f"{config.model} has no reasoning effort {effort!r}",
            "UNSUPPORTED_REASONING_EFFORT",
            hint=f"choose one of: {', '.join(ids)}" if ids else "remove reasoning_effort",
        )
    if effort is None and info.reasoning:
        effort = info.reasoning.default
    if max_tokens is None:
        max_tokens = info.max_output_tokens
    if (effort, max_tokens) == (config.reasoning_effort, config.max_tokens):
        return config
    return replace(config, reasoning_effort=effort, max_tokens=max_tokens)


def _is_named(model: ModelInfo) -> bool:
    return bool(model.name) and _is_text_or_none(model.description)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _check_count(value: object, code: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise LLMError(f"not a positive token count: {value!r}", code)


def _wrap(middleware: Middleware, following: Next) -> Next:
    return lambda request: middleware(request, following)


async def _close(chunks: AsyncIterator[Chunk] | None) -> None:
    """Close an async generator; a hand-written iterator need not have a close."""
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()
