"""The chat-completions dialect that most vendors and local servers speak: encode → HTTP → decode, one attempt.

Speaks the wire itself over aiohttp; why not through the SDK stands in `docs/decisions/0002-own-wire.md`.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote, urlsplit

from app.llm.adapters.accounts import DEFAULT, Quirks
from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo, ReasoningInfo
from app.llm.adapters.chat_decode import ChatDecoder
from app.llm.adapters.chat_encode import EFFORTS, ChatEncoder, Learned
from app.llm.failures import HINTS, RefusedOption, classify, in_band
from app.llm.models import ModelFacts
from app.llm.sse import SSEDecoder, SSEEvent
from app.llm.transport import USER_AGENT, Response, Timeouts, Transport
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.request import ModelRequest
from app.schema.stream import Chunk

PATIENCE = 5
"""Keep-alive comments may stand in for events for this many idle limits."""
BOM = b"\xef\xbb\xbf"
_RESERVED_HEADERS = frozenset({"user-agent", "content-type", "authorization", "api-key", "host", "content-length"})

# What a server's refusal of an option teaches: the option is dropped, or the token field renamed.
_RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
_SAID = {
    "temperature": "the model takes no temperature; it is left out from now on",
    "stream_options": "the server does not report usage in streams; token counts are estimates",
    "tool_choice": "the server knows no tool_choice; the model is asked in words instead",
    "reasoning_effort": "the model takes no reasoning effort; it is left out from now on",
    "response_format": "the server does not constrain replies to a schema; the model is asked in words instead",
    "parallel_tool_calls": "the server knows no parallel_tool_calls; it is left out from now on",
    "system": "the model takes no system message; its text goes in front as a user message",
}


@dataclass(frozen=True, slots=True)
class ChatAccount:
    """Where and as whom to speak. `base_url` ends before `/chat/completions`; `azure_version` marks Azure's form."""

    vendor: str
    label: str
    base_url: str
    api_key: str = field(default="", repr=False)
    local: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeouts: Timeouts = field(default_factory=Timeouts)
    quirks: Quirks = DEFAULT
    azure_version: str | None = None
    key_hint: str = ""

    def url(self, model: str) -> str:
        """The completions address. Azure names the deployment in the path unless base_url already does
        (Azure OpenAI REST reference, data plane), and has the same path as OpenAI under `/openai/v1`.
        """
        base, _, query = self.base_url.partition("?")
        if self.azure_version is None or base.endswith("/openai/v1"):
            return f"{base}/chat/completions" + (f"?{query}" if query else "")
        if "/deployments/" not in base:
            base = f"{base.removesuffix('/openai')}/openai/deployments/{quote(model, safe='')}"
        return f"{base}/chat/completions?api-version={quote(self.azure_version)}"


class OpenAIChatAdapter(LLMAdapter):
    """Speaks chat completions for one account. Raises `LLMError` for every fault; see `LLMAdapter` for the contract."""

    def __init__(self, account: ChatAccount, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        self._account = account
        self._transport = transport
        self._facts = facts
        self._encoder = ChatEncoder(route, account.quirks)
        self._learned: dict[str, Learned] = {}
        self._headers: dict[str, str] | None = None
        self._who = account.label

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, self._account.label, self._account.vendor, self._account.local)

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        """Facts of the table. A model that may reason takes every effort its vendor names; the vendor decides which."""
        may_reason = self._facts.reasoning is not False
        efforts = ReasoningInfo(tuple((name, name) for name in EFFORTS[self._account.quirks.effort_style]))
        return ModelInfo(
            route,
            model,
            model,
            context_window=self._facts.context_window,
            reasoning=efforts if may_reason else None,
        )

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        url = f"{self._account.base_url.partition('?')[0]}/models"
        async with self._transport.request(
            "GET", url, headers=self._request_headers(), timeouts=self._account.timeouts
        ) as response:
            body = await response.read()
            if response.status != 200:
                raise classify(response.status, body, response.headers, who=self._who)
        data = _json(body, self._who)
        entries = cast("dict[str, JSON]", data).get("data") if isinstance(data, dict) else data
        if not isinstance(entries, list):
            raise LLMError(f"{self._who} gave no list of models", "ENDPOINT", hint=HINTS["ENDPOINT"])
        rows = [cast("dict[str, JSON]", entry) for entry in cast("list[JSON]", entries) if isinstance(entry, dict)]
        names = [name for row in rows if isinstance(name := row.get("id"), str) and name]
        return tuple(ModelInfo(route, name, name) for name in dict.fromkeys(names))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        url = self._account.url(request.config.model)
        body = self.encode(request)
        headers = self._request_headers()
        async with self._transport.request(
            "POST", url, headers=headers, body=body, timeouts=self._account.timeouts
        ) as response:
            if response.status != 200:
                raise await self._refusal(response)
            async with aclosing(_decode(response, self._who)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def encode(self, request: ModelRequest) -> bytes:
        """The bytes of a request as they go on the wire."""
        return self._encoder.body(
            request,
            self._learned.get(request.config.model, _NOTHING),
            token_field=self._account.quirks.token_field or self._facts.token_field,
            temperature=self._facts.temperature,
            one_call=self._facts.parallel_tools is False and self._account.quirks.parallel_tool_calls,
        )

    def correct(self, error: LLMError, request: ModelRequest) -> str | None:
        """Learn from a refused option; returns what to tell the user, or None when there is nothing new to learn."""
        options = error.options if isinstance(error, RefusedOption) else ()
        return next((said for option in options if (said := self._learn(option, request))), None)

    def _learn(self, option: str, request: ModelRequest) -> str | None:
        model = request.config.model
        known = self._learned.get(model, _NOTHING)
        if option in known.dropped or not self._sends(option, request):
            return None
        if option in _RENAMED:
            if known.token_field is not None:
                return None
            self._learned[model] = replace(known, token_field=_RENAMED[option])
            return f"{model} wants {_RENAMED[option]} instead of {option}"
        self._learned[model] = replace(known, dropped=known.dropped | {option})
        return f"{model}: {_SAID[option]}"

    def _sends(self, option: str, request: ModelRequest) -> bool:
        if option == "system":
            return bool(request.system)
        body = json.loads(self.encode(request))
        # Vendors name the effort `reasoning_effort` in their words and send it under other names.
        names = ("reasoning_effort", "reasoning", "thinking") if option == "reasoning_effort" else (option,)
        return any(name in body for name in names)

    def takes(self, option: str, model: str) -> bool:
        """False once the server has refused this option for this model."""
        return option not in self._learned.get(model, _NOTHING).dropped

    def _request_headers(self) -> dict[str, str]:
        if self._headers is None:
            extra = {
                name: value for name, value in self._account.headers.items() if name.lower() not in _RESERVED_HEADERS
            }
            self._headers = {
                "User-Agent": USER_AGENT,
                "Content-Type": "application/json",
                **extra,
                **self._key_header(),
            }
        return self._headers

    def _key_header(self) -> dict[str, str]:
        key = self._account.api_key.strip()
        if not key:
            if self._account.local:
                return {}
            raise LLMError(f"no key is set for {self._who}", "MISSING_CREDENTIAL", hint=self._account.key_hint)
        if not all("!" <= char <= "~" for char in key):
            raise LLMError(
                f"the key for {self._who} has characters that no key has (spaces, quotes or letters beyond ASCII)",
                "INVALID_CREDENTIAL",
                hint="copy the key again",
            )
        if self._account.quirks.key_header:
            return {self._account.quirks.key_header: key}
        return {"Authorization": f"Bearer {key}"}

    async def _refusal(self, response: Response) -> LLMError:
        if 300 <= response.status < 400:
            target = urlsplit(response.headers.get("location", ""))
            place = f"{target.scheme}://{target.netloc}" if target.netloc else "another path"
            return LLMError(
                f"{self._who} redirects to {place}, which is not followed because it would carry the key along",
                "ENDPOINT",
                status=response.status,
                hint=HINTS["ENDPOINT"],
            )
        try:
            body = await response.read()
        except LLMError:
            body = b""
        if 200 <= response.status < 300 and not body:
            return LLMError(f"{self._who} sent no body", "EMPTY_RESPONSE", status=response.status)
        return classify(response.status, body, response.headers, who=self._who)


_NOTHING = Learned()


async def _decode(response: Response, who: str) -> AsyncGenerator[Chunk]:
    """Chunks of a 200 reply. Its first bytes tell an event stream from a whole JSON body or a web page."""
    decoder, events = ChatDecoder(who), SSEDecoder()
    silence = _Silence(response.timeouts.idle_s, who)
    piece = b""
    while not _start(piece) and (more := await response.more()):
        piece += more
    if not _start(piece):
        raise LLMError(f"{who} sent an empty body", "EMPTY_RESPONSE")
    if _start(piece) in b"{[<":
        for chunk in decoder.complete_body(_whole(piece + await response.read(), who)):
            yield chunk
        return
    while piece:
        found = events.feed(piece)
        for event in found:
            if _is_done(event):
                for chunk in decoder.end(done=True):
                    yield chunk
                return
            for chunk in _event(event, decoder, who):
                yield chunk
        silence.heard(event_came=bool(found))
        piece = await response.more()
    for event in events.flush():
        # Without its blank line an event may be cut; it counts when it is a whole object.
        if event.data.rstrip().endswith(b"}"):
            for chunk in _event(event, decoder, who):
                yield chunk
    for chunk in decoder.end(done=False):
        yield chunk


class _Silence:
    """Keep-alive comments show that a server lives, but not for ever that a reply comes."""

    def __init__(self, idle_s: float, who: str) -> None:
        self._limit_s = PATIENCE * idle_s
        self._who = who
        self._since = time.monotonic()

    def heard(self, *, event_came: bool) -> None:
        """Called when some bytes are dealt with, so that a slow consumer of events is not counted as silence."""
        now = time.monotonic()
        if event_came:
            self._since = now
        elif now - self._since > self._limit_s:
            raise LLMError(f"{self._who} sent only keep-alives for {self._limit_s:g} s", "TIMEOUT")


def _start(head: bytes) -> bytes:
    """The first byte that is neither a byte-order mark nor blank, or nothing yet."""
    return head.removeprefix(BOM).lstrip()[:1]


def _is_done(event: SSEEvent) -> bool:
    return event.data.strip() == b"[DONE]"


def _event(event: SSEEvent, decoder: ChatDecoder, who: str) -> list[Chunk]:
    if not event.data.strip() or event.data.startswith(b": "):
        return []
    payload = _json(event.data, who)
    if event.event == "error" and isinstance(payload, dict):
        table = cast("dict[str, Any]", payload)
        error = in_band(table if table.get("error") else {"error": table}, who=who)
        raise error or LLMError(f"{who} broke off", "SERVER")
    return decoder.feed(payload)


def _whole(body: bytes, who: str) -> JSON:
    if _start(body) == b"<":
        raise LLMError(
            f"{who} answered with a web page instead of a reply", "ENDPOINT", status=200, hint=HINTS["ENDPOINT"]
        )
    try:
        return json.loads(body.removeprefix(BOM))
    except (ValueError, RecursionError) as error:
        raise LLMError(f"{who} sent a reply that broke off", "STREAM_CLOSED") from error


def _json(data: bytes, who: str) -> JSON:
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LLMError(f"{who} sent something that is no JSON: {text[:120]!r}", "MALFORMED_RESPONSE") from error
