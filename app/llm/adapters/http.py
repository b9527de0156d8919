"""What every dialect over HTTP shares: the account, its headers, refusals, corrections, and the way of a reply's bytes.

A dialect adds an address, an encoder and a decoder (`openai_chat.py` is the model to follow). Speaks the wire itself
over aiohttp; why not through the SDKs stands in `docs/decisions/0002-own-wire.md`.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol
from urllib.parse import quote, urlsplit

from app.llm.adapters.accounts import DEFAULT, Quirks
from app.llm.adapters.base import LLMAdapter, ModelInfo, ProviderInfo, ReasoningInfo
from app.llm.adapters.corrections import Corrections
from app.llm.adapters.wire import as_items, as_table, as_text, loads
from app.llm.failures import HINTS, classify, in_band
from app.llm.governor import report
from app.llm.models import ModelFacts
from app.llm.sse import MAX_EVENT_BYTES, SSEDecoder
from app.llm.transport import USER_AGENT, Response, Timeouts, Transport
from app.schema.errors import LLMError
from app.schema.message import JSON
from app.schema.request import ModelRequest
from app.schema.stream import Chunk

PATIENCE = 5
"""Keep-alives may stand in for events for this many idle limits."""
BOM = b"\xef\xbb\xbf"
_RESERVED_HEADERS = frozenset(
    {"user-agent", "content-type", "authorization", "api-key", "x-api-key", "x-goog-api-key", "host", "content-length"}
)


@dataclass(frozen=True, slots=True)
class Account:
    """Where and as whom to speak. `base_url` ends before the dialect's own path; `azure_version` marks Azure's form."""

    vendor: str
    label: str
    base_url: str
    api_key: str = field(default="", repr=False)
    local: bool = False
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeouts: Timeouts = field(default_factory=Timeouts)
    quirks: Quirks = DEFAULT
    azure_version: str | None = None
    region: str = ""
    key_hint: str = ""

    def url(self, path: str, *, model: str = "") -> str:
        """The address of `path`. Azure names the deployment in the path unless base_url already does, where a model
        is given (Azure OpenAI REST reference, data plane), and has OpenAI's own paths under `/openai/v1`.
        """
        base, _, query = self.base_url.partition("?")
        if self.azure_version is None or base.endswith("/openai/v1"):
            return f"{base}/{path}" + (f"?{query}" if query else "")
        if "/deployments/" not in base:
            base = f"{base.removesuffix('/openai')}/openai"
            base = f"{base}/deployments/{quote(model, safe='')}" if model else base
        return f"{base}/{path}?api-version={quote(self.azure_version)}"


class Decoder(Protocol):
    """A dialect's reading side; one serves one reply. No input or output of its own."""

    @property
    def done(self) -> bool:
        """True once the dialect's own end marker has come; whatever follows is not read."""
        ...

    def feed(self, payload: JSON, event: str = "") -> list[Chunk]:
        """The chunks of one event (`event` is its SSE name). Raises `LLMError` for an error inside the stream."""
        ...

    def end(self, *, done: bool) -> list[Chunk]:
        """Close the reply: block ends, usage, finish. `done`: the server marked the end of its stream.

        Raises `STREAM_CLOSED` when nothing proves that the reply is complete.
        """
        ...

    def complete_body(self, payload: JSON) -> list[Chunk]:
        """All chunks of a whole, unstreamed reply."""
        ...


class HTTPAdapter(LLMAdapter):
    """One dialect for one account. Raises `LLMError` for every fault; see `LLMAdapter` for the contract."""

    framing: ClassVar[Literal["sse", "lines"]] = "sse"
    """`lines`: a JSON value a line (NDJSON) instead of server-sent events."""
    option_fields: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Options (keys of `failures.OPTIONS`) that the dialect sends under other names than their own."""
    efforts: tuple[str, ...] = ()
    """The reasoning efforts a user may name; which of them a model has, its vendor says."""

    def __init__(self, account: Account, transport: Transport, *, route: str, facts: ModelFacts) -> None:
        self.account = account
        self.route = route
        self.facts = facts
        self.who = account.label
        self.corrections = Corrections(self.option_fields)
        self._transport = transport
        self._headers: dict[str, str] | None = None

    @abstractmethod
    def request_url(self, request: ModelRequest) -> str: ...

    @abstractmethod
    def encode(self, request: ModelRequest) -> bytes:
        """The bytes of a request as they go on the wire."""

    @abstractmethod
    def decoder(self) -> Decoder: ...

    @classmethod
    def limits(cls, facts: ModelFacts) -> ModelFacts:
        """The facts of a model as far as this dialect can carry them."""
        return facts

    def models_url(self) -> str:
        return self.account.url("models")

    def read_models(self, payload: JSON) -> Iterable[ModelInfo]:
        """The models of a listing; as most vendors write it: `{"data": [{"id"}]}` or the bare list."""
        table = as_table(payload)
        entries: JSON = table.get("data") if table is not None else payload
        if not isinstance(entries, list):
            raise LLMError(f"{self.who} gave no list of models", "ENDPOINT", hint=HINTS["ENDPOINT"])
        for row in map(as_table, as_items(entries)):
            if row is not None and (name := as_text(row.get("id"))):
                yield ModelInfo(self.route, name, name)

    def key_headers(self, key: str) -> dict[str, str]:
        """How the key is shown; Bearer authorization unless the account has a header of its own."""
        name = self.account.quirks.key_header
        return {name: key} if name else {"Authorization": f"Bearer {key}"}

    def framer(self) -> Framing:
        """What finds the events in a reply's bytes; one serves one reply."""
        return SSEFraming(self.who) if self.framing == "sse" else LineFraming(self.who)

    async def prepare(self) -> None:
        """Whatever must be known before an address can be built; called before each request."""

    async def headers_for(self, method: str, url: str, body: bytes | None) -> Mapping[str, str]:
        """The headers of one request; a dialect that signs its requests needs all of it."""
        return self.request_headers()

    def own_headers(self) -> dict[str, str]:
        """Headers that the dialect demands of every request, such as its version."""
        return {}

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, self.account.label, self.account.vendor, self.account.local)

    async def resolve_model(self, route: str, model: str) -> ModelInfo:
        """Facts of the table. A model that may reason takes every effort its vendor names; the vendor decides which."""
        may_reason = self.facts.reasoning is not False and bool(self.efforts)
        reasoning = ReasoningInfo(tuple((name, name) for name in self.efforts)) if may_reason else None
        return ModelInfo(route, model, model, context_window=self.facts.context_window, reasoning=reasoning)

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        await self.prepare()
        payload = await self.exchange("GET", self.models_url())
        return tuple({info.id: info for info in self.read_models(payload)}.values())

    async def exchange(self, method: str, url: str, body: bytes | None = None) -> JSON:
        """The JSON of one question and its whole answer; any status but 2xx is raised as the error it stands for."""
        headers = await self.headers_for(method, url, body)
        async with self._transport.request(
            method, url, headers=headers, body=body, timeouts=self.account.timeouts
        ) as response:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            answer = await response.read()
        if not _start(answer):
            raise LLMError(f"{self.who} sent an empty body", "EMPTY_RESPONSE")
        _check_no_page(answer, self.who)
        return loads(answer, self.who)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        await self.prepare()
        url, body = self.request_url(request), self.encode(request)
        headers = await self.headers_for("POST", url, body)
        async with self._transport.request(
            "POST", url, headers=headers, body=body, timeouts=self.account.timeouts
        ) as response:
            report(response.headers, refused=response.status == 429)
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            async with aclosing(self.decode(response)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def correct(self, error: LLMError, request: ModelRequest) -> str | None:
        """Learn from a refused option; returns what to tell the user, or None when there is nothing new to learn."""
        sent = self.sent_fields(request)
        if request.system:
            sent.add("system")
        return self.corrections.learn(error, request.config.model, sent)

    def sent_fields(self, request: ModelRequest) -> set[str]:
        """The names under which this request's options stand in its body."""
        body: dict[str, JSON] = as_table(json.loads(self.encode(request))) or {}
        return set(body)

    def takes(self, option: str, model: str) -> bool:
        """False once the server has refused this option for this model."""
        return self.corrections.takes(option, model)

    def request_headers(self) -> dict[str, str]:
        if self._headers is None:
            extra = {
                name: value for name, value in self.account.headers.items() if name.lower() not in _RESERVED_HEADERS
            }
            self._headers = {
                "User-Agent": USER_AGENT,
                "Content-Type": "application/json",
                **self.own_headers(),
                **extra,
                **self._checked_key_headers(),
            }
        return self._headers

    def _checked_key_headers(self) -> dict[str, str]:
        key = self.account.api_key.strip()
        if not key:
            if self.account.local:
                return {}
            raise LLMError(f"no key is set for {self.who}", "MISSING_CREDENTIAL", hint=self.account.key_hint)
        if not all("!" <= char <= "~" for char in key):
            raise LLMError(
                f"the key for {self.who} has characters that no key has (spaces, quotes or letters beyond ASCII)",
                "INVALID_CREDENTIAL",
                hint="copy the key again",
            )
        return self.key_headers(key)

    async def _refusal(self, response: Response) -> LLMError:
        if 300 <= response.status < 400:
            target = urlsplit(response.headers.get("location", ""))
            place = f"{target.scheme}://{target.netloc}" if target.netloc else "another path"
            return LLMError(
                f"{self.who} redirects to {place}, which is not followed because it would carry the key along",
                "ENDPOINT",
                status=response.status,
                hint=HINTS["ENDPOINT"],
            )
        try:
            body = await response.read()
        except LLMError:
            body = b""
        return classify(response.status, body, response.headers, who=self.who)

    async def decode(self, response: Response) -> AsyncGenerator[Chunk]:
        """Chunks of a 200 reply. Its first bytes tell an event stream from a whole JSON body or a web page."""
        decoder, silence = self.decoder(), _Silence(response.timeouts.idle_s, self.who)
        events = self.framer()
        piece = b""
        while not _start(piece) and (more := await response.more()):
            piece += more
        start = _start(piece)
        if not start:
            raise LLMError(f"{self.who} sent an empty body", "EMPTY_RESPONSE")
        if start in b"[<" or (start == b"{" and self.framing == "sse"):
            for chunk in decoder.complete_body(_whole(piece + await response.read(), self.who)):
                yield chunk
            return
        while piece:
            event_came = False
            for name, payload in events.feed(piece):
                event_came = True
                if payload is not DONE:
                    for chunk in _fed(decoder, name, payload, self.who):
                        yield chunk
                if payload is DONE or decoder.done:
                    for chunk in decoder.end(done=True):
                        yield chunk
                    return
            silence.heard(event_came=event_came)
            piece = await response.more()
        for name, payload in events.flush():
            for chunk in _fed(decoder, name, payload, self.who):
                yield chunk
        for chunk in decoder.end(done=decoder.done):
            yield chunk


DONE: Any = object()
"""Stands for the `[DONE]` that ends many event streams."""

Events = Iterator[tuple[str, JSON]]
"""(event name, payload), parsed one by one: what stands before a broken event is still delivered."""


class Framing(Protocol):
    def feed(self, piece: bytes) -> Events: ...
    def flush(self) -> Events: ...


class SSEFraming:
    def __init__(self, who: str) -> None:
        self._who = who
        self._decoder = SSEDecoder()

    def feed(self, piece: bytes) -> Events:
        for event in self._decoder.feed(piece):
            data = event.data
            if data.strip() == b"[DONE]":
                yield event.event, DONE
            elif data.strip() and not data.startswith(b": "):
                yield event.event, loads(data, self._who)

    def flush(self) -> Events:
        """Without its blank line an event may be cut; it counts when it is a whole object."""
        for event in self._decoder.flush():
            if event.data.rstrip().endswith(b"}"):
                yield event.event, loads(event.data, self._who)


class LineFraming:
    """One JSON value a line; the last line may lack its line break."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Events:
        self._rest += piece
        if len(self._rest) > MAX_EVENT_BYTES:
            raise LLMError(f"{self._who} sent a line of more than 16 MiB", "MALFORMED_RESPONSE")
        if b"\n" not in piece:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.strip():
                yield "", loads(bytes(line).removeprefix(BOM), self._who)

    def flush(self) -> Events:
        rest = bytes(self._rest).strip()
        if rest.endswith(b"}"):
            yield "", loads(rest, self._who)


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


def _fed(decoder: Decoder, name: str, payload: JSON, who: str) -> list[Chunk]:
    table = as_table(payload)
    if name == "error" and table is not None:
        error = in_band(table if table.get("error") else {"error": table}, who=who)
        raise error or LLMError(f"{who} broke off", "SERVER")
    return decoder.feed(payload, name)


def _start(head: bytes) -> bytes:
    """The first byte that is neither a byte-order mark nor blank, or nothing yet."""
    return head.removeprefix(BOM).lstrip()[:1]


def _check_no_page(body: bytes, who: str) -> None:
    if _start(body) == b"<":
        raise LLMError(
            f"{who} answered with a web page instead of a reply", "ENDPOINT", status=200, hint=HINTS["ENDPOINT"]
        )


def _whole(body: bytes, who: str) -> JSON:
    _check_no_page(body, who)
    try:
        return json.loads(body.removeprefix(BOM))
    except (ValueError, RecursionError) as error:
        raise LLMError(f"{who} sent a reply that broke off", "STREAM_CLOSED") from error
