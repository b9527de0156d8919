"""HTTP for adapters: one aiohttp session for the process, time limits, and every transport fault as an `LLMError`.

No retry, no redirect (a key would leak), no decoding of what a reply means.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app import __version__
from app.schema.errors import LLMError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, ClientTimeout

USER_AGENT = f"dragoman/{__version__}"
MAX_BODY_BYTES = 64 * 1024 * 1024
DRAIN_S = 0.05
"""How long to wait for the last bytes of a body after its end marker."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `idle_s` bounds each silence inside a body, `total_s` one whole attempt (None = unbounded)."""

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    idle_s: float = 120.0
    total_s: float | None = None


class Response:
    """A reply whose headers have arrived; header names are lower-case."""

    def __init__(self, response: ClientResponse, where: str, timeouts: Timeouts) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}
        self.timeouts = timeouts
        self._content = response.content
        self._where = where

    async def more(self) -> bytes:
        """The next bytes of the body, nothing at its end. A silence over `idle_s` is `TIMEOUT`."""
        content = self._content
        idle = self.timeouts.idle_s
        try:
            if chunk := content.read_nowait():
                return chunk
            async with asyncio.timeout(idle):
                return await content.readany()
        except TimeoutError:
            raise LLMError(
                f"{self._where} sent nothing for {idle:g} s", "TIMEOUT", hint="raise timeout.idle_s of this model"
            ) from None
        except _faults() as error:
            raise transport_error(error, self._where) from error

    async def read(self) -> bytes:
        """The whole body, at most 64 MiB."""
        parts: list[bytes] = []
        size = 0
        while chunk := await self.more():
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise LLMError(f"{self._where} sent more than 64 MiB", "MALFORMED_RESPONSE")
        return b"".join(parts)

    async def drain(self) -> None:
        """Take what little is left of a body, so that its connection can serve the next request."""
        if self._content.at_eof():
            return
        with contextlib.suppress(TimeoutError, *_faults()):
            async with asyncio.timeout(DRAIN_S):
                while not self._content.at_eof():
                    await self._content.readany()


class _ConnectionUse:
    """Whether a request went out on a connection that had served before."""

    reused = False


async def _note_reuse(session: object, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.reused = True


class Transport:
    """Connections shared by all adapters of a pool; made on first use, for the running event loop."""

    def __init__(self) -> None:
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proxies: dict[str, str | None] = {}
        self._client_timeouts: dict[float, ClientTimeout] = {}

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None, timeouts: Timeouts
    ) -> AsyncGenerator[Response]:
        """Send one request; the connection is freed when the context ends, also in the middle of the body."""
        where = _where(url)
        try:
            async with asyncio.timeout(timeouts.total_s):
                response = await self._open(method, url, headers, body, timeouts, where)
                try:
                    reply = Response(response, where, timeouts)
                    yield reply
                    await reply.drain()
                finally:
                    # Gives a connection that was read to its end back for reuse, and drops any other.
                    response.close()
        except TimeoutError as error:
            raise LLMError(
                f"{where} did not finish within {timeouts.total_s:g} s", "TIMEOUT", hint="raise timeout.total_s"
            ) from error

    async def _open(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeouts: Timeouts, where: str
    ) -> ClientResponse:
        import aiohttp
        from yarl import URL

        session = self._get_session()
        use = _ConnectionUse()
        try:
            # As it is written: yarl would decode what a signature covers.
            target = URL(url, encoded=url.isascii())
            async with asyncio.timeout(timeouts.first_byte_s):
                while True:
                    use.reused = False
                    try:
                        return await session.request(
                            method,
                            target,
                            data=body,
                            headers=headers,
                            allow_redirects=False,
                            proxy=self._proxy_for(url),
                            timeout=self._client_timeout(timeouts.connect_s),
                            trace_request_ctx=use,
                        )
                    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                        # A kept connection that the server had closed meanwhile (llama.cpp does so after each
                        # stream) says nothing about the server: the request goes out again on another one.
                        if not use.reused:
                            raise
        except aiohttp.ConnectionTimeoutError as error:
            raise LLMError(f"{where} did not accept a connection within {timeouts.connect_s:g} s", "TIMEOUT") from error
        except TimeoutError as error:
            raise LLMError(
                f"{where} did not answer within {timeouts.first_byte_s:g} s",
                "TIMEOUT",
                hint="raise timeout.first_byte_s of this model; slow local models need minutes",
            ) from error
        except _faults() as error:
            raise transport_error(error, where) from error

    def _get_session(self) -> ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            import aiohttp

            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_reuse)
            self._loop = loop
            self._session = aiohttp.ClientSession(
                trace_configs=[trace],
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
                headers={"User-Agent": USER_AGENT},
                skip_auto_headers=("Accept-Encoding",),
                read_bufsize=2**18,
            )
        return self._session

    def _client_timeout(self, connect_s: float) -> ClientTimeout:
        if connect_s not in self._client_timeouts:
            from aiohttp import ClientTimeout

            self._client_timeouts[connect_s] = ClientTimeout(total=None, connect=connect_s)
        return self._client_timeouts[connect_s]

    def _proxy_for(self, url: str) -> str | None:
        # Looked up once a host: reading the environment at each request costs more than the request.
        parts = urlsplit(url)
        key = f"{parts.scheme}://{parts.netloc}"
        if key not in self._proxies:
            host = parts.hostname or ""
            bypass = host in ("localhost", "::1") or host.startswith("127.") or bool(urllib.request.proxy_bypass(host))
            proxy = None if bypass else urllib.request.getproxies().get(parts.scheme)
            # HTTPS_PROXY=host:port is customary; curl and others take it as http, too.
            self._proxies[key] = f"http://{proxy}" if proxy and "://" not in proxy else proxy
        return self._proxies[key]

    async def close(self) -> None:
        if self._session is not None and self._loop is asyncio.get_running_loop():
            await self._session.close()
        self._session = None


def _where(url: str) -> str:
    """Scheme, host and port of an address, without a password in it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the configured address"
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}"


def _faults() -> tuple[type[Exception], ...]:
    """What aiohttp and the operating system raise for a broken exchange; anything else is a fault of the program."""
    from aiohttp import ClientError
    from aiohttp.http_exceptions import HttpProcessingError

    return ClientError, HttpProcessingError, OSError, ValueError


def transport_error(error: Exception, where: str) -> LLMError:
    """The `LLMError` of an aiohttp or operating-system fault."""
    import aiohttp
    from aiohttp.http_exceptions import ContentEncodingError

    detail = str(error) or type(error).__name__
    match error:
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return LLMError(
                f"the TLS set-up of {where} was refused: {detail}",
                "TLS",
                hint="check the address, or the CA bundle (SSL_CERT_FILE)",
            )
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return LLMError(
                f"the proxy on the way to {where} failed", "TRANSPORT", hint="check HTTPS_PROXY and NO_PROXY"
            )
        case aiohttp.ClientConnectorDNSError():
            return LLMError(
                f"the host of {where} cannot be found: {detail}", "TRANSPORT", hint="check base_url and the network"
            )
        case aiohttp.ClientConnectorError():
            return LLMError(
                f"cannot connect to {where}: {error.os_error.strerror or detail}",
                "TRANSPORT",
                hint=f"is a server running at {where}? check base_url",
            )
        case aiohttp.ClientPayloadError(__cause__=ContentEncodingError()):
            return LLMError(f"{where} sent a body that is not in its declared encoding", "MALFORMED_RESPONSE")
        case aiohttp.ClientPayloadError() if "ConnectionResetError" in detail:
            return LLMError(f"{where} reset the connection in the middle of its reply", "TRANSPORT")
        case aiohttp.ClientPayloadError():
            return LLMError(f"{where} broke off in the middle of its reply", "STREAM_CLOSED")
        case aiohttp.InvalidURL():
            return LLMError(f"{where} is not an address", "TRANSPORT", hint="check base_url")
        case _:
            return LLMError(f"the connection to {where} broke: {detail}", "TRANSPORT")
