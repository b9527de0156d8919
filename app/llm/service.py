"""The one path to a model: a registry of adapters by route, prepared calls, middleware, one interceptable stream.

Does not retry, cache, limit rates or clamp values. A route is the name of a model configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast

from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo
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


class Registration:
    """The routes one `register_adapter` call made. `dispose()` takes them all away; a second call does nothing."""

    def __init__(self, service: LLMService, routes: tuple[str, ...], adapter: LLMAdapter, policy: RetryPolicy) -> None:
        self._service = service
        self._adapter = adapter
        self._policy = policy
        self.routes = routes
        self.disposed = False

    def dispose(self) -> None:
        if not self.disposed:
            self.disposed = True
            self._service._remove(self.routes)  # pyright: ignore[reportPrivateUsage]

    def replace(self, routes: Iterable[str]) -> None:
        """Swap the routes in one step, or raise and change nothing. An empty list is legal."""
        if self.disposed:
            raise LLMError("the registration was disposed", "REGISTRATION_DISPOSED")
        self.routes = self._service._swap(self.routes, tuple(routes), self._adapter, self._policy)  # pyright: ignore[reportPrivateUsage]


class LLMStream:
    """One model call. Iterate it for chunks with failures as exceptions, or `terminal()` for a stream that always
    ends in a `Finish`; either once. Nothing is sent before the first chunk is asked for.

    `failure_of(error)` is the record of an exception that came out of *this* call's adapter, else None;
    `retry_policy` is that of the registration which served it, None when none was reached.
    """

    def __init__(self, service: LLMService, request: ModelRequest, pinned: _Entry | None) -> None:
        self._service = service
        self._request = request
        self._pinned = pinned
        self._tagged: list[tuple[BaseException, LLMFailure]] = []
        self.retry_policy: RetryPolicy | None = None

    def failure_of(self, error: BaseException) -> LLMFailure | None:
        return next((failure for tagged, failure in self._tagged if tagged is error), None)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        source: Next = self._dispatch
        for middleware in reversed(self._service._middleware):  # pyright: ignore[reportPrivateUsage]
            source = _wrap(middleware, source)
        return source(self._request)

    async def terminal(self) -> AsyncIterator[Chunk]:
        """The same chunks, but a failure of the adapter becomes one `Finish("error")`; other exceptions still raise."""
        try:
            async with aclosing(_generator(aiter(self))) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Exception as error:
            failure = self.failure_of(error)
            if failure is None:
                raise
            yield Finish("aborted" if failure.code == "ABORTED" else "error", failure)

    async def _dispatch(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        finished = False
        try:
            entry = self._pinned or self._service._entry(request.config.provider)  # pyright: ignore[reportPrivateUsage]
            self.retry_policy = entry.policy
            if self._pinned is None:
                config = await self._service.resolve_call_config(request.config)
                request = request if config is request.config else replace(request, config=config)
            request = self._service._own_replay_state(request, entry.adapter)  # pyright: ignore[reportPrivateUsage]
            source = entry.adapter.stream(request)
        except Exception as error:
            self._tag(error)
            raise
        try:
            while True:
                try:
                    chunk = await anext(source)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    self._tag(error)
                    raise
                finished = finished or isinstance(chunk, Finish)
                yield chunk
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()
        if not finished:
            closed = LLMError("the stream ended without a finish", "STREAM_CLOSED")
            self._tag(closed)
            raise closed

    def _tag(self, error: Exception) -> None:
        self._tagged.append((error, normalize_failure(error)))


def is_llm_adapter_failure(stream: object, error: BaseException) -> bool:
    """True when `error` came out of the adapter of exactly this stream."""
    return isinstance(stream, LLMStream) and stream.failure_of(error) is not None


def llm_failure_of(stream: object, error: BaseException) -> LLMFailure | None:
    return stream.failure_of(error) if isinstance(stream, LLMStream) else None


def llm_retry_policy_of(stream: object) -> RetryPolicy | None:
    return stream.retry_policy if isinstance(stream, LLMStream) else None


class PreparedCall:
    """A resolved config bound to the registration that resolved it, for one use."""

    def __init__(self, service: LLMService, config: CallConfig, entry: _Entry) -> None:
        self.config = config
        self.retry_policy = entry.policy
        self._service = service
        self._entry = entry
        self._used = False

    def stream(self, request: ModelRequest) -> LLMStream:
        """Start the call. `INVALID_PREPARED_CALL` on a second use or when the request's config is another one."""
        if self._used:
            raise LLMError("a prepared call serves once", "INVALID_PREPARED_CALL")
        if request.config != self.config:
            raise LLMError("the request's config is not the prepared one", "INVALID_PREPARED_CALL")
        self._used = True
        return LLMStream(self._service, request, self._entry)


class LLMService:
    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._middleware: list[Middleware] = []

    def register_adapter(
        self, routes: Iterable[str], adapter: LLMAdapter, *, retry_policy: RetryPolicy | None = None
    ) -> Registration:
        """Make `adapter` serve `routes`: all of them, or none and an error. Display facts are captured now."""
        names = tuple(routes)
        if not names:
            raise LLMError("an adapter needs at least one route", "INVALID_ADAPTER")
        policy = retry_policy or RetryPolicy()
        self._swap((), names, adapter, policy)
        return Registration(self, names, adapter, policy)

    def _swap(self, old: Sequence[str], new: tuple[str, ...], adapter: LLMAdapter, policy: RetryPolicy) -> tuple[str, ...]:
        entries = {route: self._make_entry(route, adapter, policy) for route in new}
        taken = [route for route in new if route in self._entries and route not in old]
        if taken or len(entries) != len(new):
            raise LLMError(f"the route {(taken or list(new))[0]!r} is already owned", "DUPLICATE_ADAPTER")
        self._remove(old)
        self._entries.update(entries)
        return new

    def _make_entry(self, route: str, adapter: LLMAdapter, policy: RetryPolicy) -> _Entry:
        if not route:
            raise LLMError("a route needs a name", "INVALID_ADAPTER")
        info = adapter.provider_info(route)
        if info.id != route or not info.name:
            raise LLMError(f"the adapter describes {info.id!r} instead of {route!r}", "INVALID_ADAPTER")
        return _Entry(adapter, info, policy)

    def _remove(self, routes: Iterable[str]) -> None:
        for route in routes:
            self._entries.pop(route, None)

    def use(self, middleware: Middleware) -> Callable[[], None]:
        """Wrap every stream, the first one used outermost; returns a function that takes it out again."""
        self._middleware.append(middleware)

        def remove() -> None:
            if middleware in self._middleware:
                self._middleware.remove(middleware)

        return remove

    def list_providers(self) -> tuple[ProviderInfo, ...]:
        return tuple(entry.info for entry in self._entries.values())

    def provider_info(self, route: str) -> ProviderInfo:
        return self._entry(route).info

    def provider_retry_policy(self, route: str) -> RetryPolicy:
        return self._entry(route).policy

    def adapter(self, route: str) -> LLMAdapter:
        return self._entry(route).adapter

    async def list_models(self, route: str) -> tuple[ModelInfo, ...]:
        """What the route advertises; never a whitelist. `INVALID_CATALOG` for a bad or doubled entry."""
        models = tuple(await self._entry(route).adapter.list_models(route))
        seen: set[str] = set()
        for model in models:
            described = model.description is None or isinstance(model.description, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            if model.provider != route or not model.id or not model.name or not described or model.id in seen:
                raise LLMError(f"a bad entry in the model list of {route!r}: {model.id!r}", "INVALID_CATALOG")
            seen.add(model.id)
        return models

    async def resolve_model_info(self, route: str, model: str) -> ModelInfo:
        """The facts of one model, asked of the adapter once and checked; an unlisted model is fine."""
        info = await self._entry(route).adapter.resolve_model(route, model)
        if info.provider != route or info.id != model or not info.name:
            raise LLMError(f"the adapter of {route!r} described another model than {model!r}", "INVALID_MODEL_INFO")
        _check_count(info.context_window, "INVALID_MODEL_CONTEXT")
        _check_count(info.max_output_tokens, "INVALID_MODEL_MAX_TOKENS")
        if (reasoning := info.reasoning) is not None:
            ids = [effort for effort, _ in reasoning.efforts]
            named = all(effort and name for effort, name in reasoning.efforts)
            default_known = reasoning.default is None or reasoning.default in ids
            if not ids or not named or len(set(ids)) != len(ids) or not default_known:
                raise LLMError(f"bad reasoning efforts for {model!r}", "INVALID_MODEL_REASONING")
        return info

    async def resolve_call_config(self, config: CallConfig) -> CallConfig:
        """The config with the adapter's defaults filled in; the same object when there is nothing to fill.

        `UNSUPPORTED_REASONING_EFFORT` when the adapter advertises efforts and the given one is not among them.
        """
        info = await self.resolve_model_info(config.provider, config.model)
        changes: dict[str, object] = {}
        if info.reasoning is not None:
            ids = [effort for effort, _ in info.reasoning.efforts]
            if config.reasoning_effort is not None and config.reasoning_effort not in ids:
                raise LLMError(
                    f"{config.model} has no reasoning effort {config.reasoning_effort!r}",
                    "UNSUPPORTED_REASONING_EFFORT",
                    hint=f"choose one of: {', '.join(ids)}",
                )
            if config.reasoning_effort is None and info.reasoning.default is not None:
                changes["reasoning_effort"] = info.reasoning.default
        if config.max_tokens is None and info.max_output_tokens is not None:
            changes["max_tokens"] = info.max_output_tokens
        return replace(config, **changes) if changes else config  # pyright: ignore[reportArgumentType]

    async def prepare_call(self, config: CallConfig) -> PreparedCall:
        """Resolve a config and pin the registration that will serve it, also if the route is disposed meanwhile."""
        entry = self._entry(config.provider)
        return PreparedCall(self, await self.resolve_call_config(config), entry)

    def stream(self, request: ModelRequest) -> LLMStream:
        """One attempt at one request. Lazy: an unread stream sends nothing."""
        return LLMStream(self, request, None)

    async def close(self) -> None:
        """Close every adapter once."""
        adapters = {id(entry.adapter): entry.adapter for entry in self._entries.values()}
        await asyncio.gather(*(adapter.close() for adapter in adapters.values()))

    def _entry(self, route: str) -> _Entry:
        try:
            return self._entries[route]
        except KeyError:
            known = ", ".join(self._entries) or "none"
            raise LLMError(f"no adapter serves the route {route!r}", "NO_ADAPTER", hint=f"known routes: {known}") from None

    def _own_replay_state(self, request: ModelRequest, adapter: LLMAdapter) -> ModelRequest:
        """Keep replay state only where the adapter that made it is the one that will read it."""
        messages = request.messages
        if not any(isinstance(m.source, ModelSource) and m.source.replay_state is not None for m in messages):
            return request
        kept = tuple(self._strip(message, adapter) for message in messages)
        return request if all(a is b for a, b in zip(kept, messages, strict=True)) else replace(request, messages=kept)

    def _strip(self, message: Message, adapter: LLMAdapter) -> Message:
        source = message.source
        if not isinstance(source, ModelSource) or source.replay_state is None:
            return message
        owner = self._entries.get(source.provider)
        if owner is not None and owner.adapter is adapter:
            return message
        return message.replace(source=ModelSource(source.provider, source.model))


def _check_count(value: object, code: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise LLMError(f"not a positive token count: {value!r}", code)


def _wrap(middleware: Middleware, following: Next) -> Next:
    return lambda request: middleware(request, following)


def _generator(chunks: AsyncIterator[Chunk]):  # noqa: ANN202
    """`aclosing` wants an `aclose`; a hand-written iterator may have none."""
    if hasattr(chunks, "aclose"):
        return cast("_Closable", chunks)

    async def relay() -> AsyncIterator[Chunk]:
        async for chunk in chunks:
            yield chunk

    return cast("_Closable", relay())


class _Closable(AsyncIterator[Chunk]):
    async def aclose(self) -> None: ...
