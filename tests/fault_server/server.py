"""The engine: asyncio sockets, a small HTTP/1.1 of its own, the script; it knows neither dialects nor faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Self

from .behaviours import Behaviour, Events, Raw, Reply, Status, status
from .openai_chat import OpenAIChat
from .record import Request
from .render import Action, Dialect, Finish, Pause, Send, render

Script = Behaviour | Iterable[Behaviour] | Callable[[Request], Behaviour]


class FaultServer:
    """A provider on loopback that does what its script says, one behaviour per model request.

    `async with FaultServer([...]) as server:` serves at `server.url` (ends in `/v1`). A callable script answers
    without end. `routes` maps a path to the answer of a GET: a JSON value, a `Behaviour` or a callable on the request.

    `requests` has every request, `chats` those that ask a model; `disconnects` counts clients that left before their
    answer was complete; `violations` are what a strict provider refuses, each answered by 400 without taking a
    behaviour (`strict=False` lets all pass). `exhausted` turns true when a request came after the script's end.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        strict: bool = True,
        accept_reasoning: bool = False,
        strict_arguments: bool = True,
        extra_keys: Iterable[str] = (),
        models: Iterable[str] = ("test-model",),
        dialect: Dialect | None = None,
        port: int = 0,
    ) -> None:
        if isinstance(script, Reply | Events | Status | Raw):
            script = (script,)
        self._answer = script if callable(script) else None
        self._script: deque[Behaviour] = deque(() if callable(script) else script)
        self._strict = strict
        self._dialect: Dialect = dialect or OpenAIChat(
            accept_reasoning=accept_reasoning, strict_arguments=strict_arguments, extra_keys=frozenset(extra_keys)
        )
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self._connection_count = 0
        self.routes: dict[str, Any] = dict(self._dialect.routes(tuple(models)))
        self.requests: list[Request] = []
        self.chats: list[Request] = []
        self.disconnects = 0
        self.violations: list[str] = []
        self.exhausted = False
        self.own_failures: list[str] = []

    @property
    def host(self) -> str:
        """`127.0.0.1:<port>`"""
        return f"127.0.0.1:{self._port}"

    @property
    def root(self) -> str:
        return f"http://{self.host}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def add(self, *behaviours: Behaviour) -> None:
        self._script.extend(behaviours)

    def complaints(self) -> list[str]:
        """What went wrong so far: refused requests, a script that ended too early, errors of the server itself."""
        ended = ["the script was exhausted: more requests than behaviours"] if self.exhausted else []
        return [*self.violations, *ended, *self.own_failures]

    def forgive(self) -> None:
        """Forget the complaints, for a test that provoked them."""
        self.violations.clear()
        self.own_failures.clear()
        self.exhausted = False

    def assert_done(self) -> None:
        """Fail unless every behaviour was used and nothing is complained of."""
        left = [f"{len(self._script)} behaviours left, next: {self._script[0]!r}"] if self._script else []
        if problems := self.complaints() + left:
            raise AssertionError("fault server: " + "; ".join(problems))

    async def until(self, condition: Callable[[FaultServer], bool], *, timeout_s: float = 5) -> None:
        """Wait until the condition on this server holds; `TimeoutError` when it does not come true."""
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                await asyncio.sleep(0.002)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, limit=1 << 26)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._connection_count += 1
        try:
            await self._converse(_Inbox(reader), writer, self._connection_count)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left between two answers, or the server is closing
        except Exception as error:
            self.own_failures.append(f"the fault server itself failed: {error!r}")
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _converse(self, inbox: _Inbox, writer: asyncio.StreamWriter, connection: int) -> None:
        stays = True
        while stays:
            request = await inbox.request(writer, len(self.requests) + 1, connection)
            self.requests.append(request)
            actions = render(self._choose(request), request, self._dialect)
            stays = await self._answer_while_connected(actions, inbox, writer)
            stays = stays and request.headers.get("connection", "").lower() != "close"

    def _choose(self, request: Request) -> Behaviour:
        if not self._dialect.claims(request):
            return self._route(request)
        self.chats.append(request)
        if self._strict and (problems := self._dialect.check(request.json)):
            self.violations += [f"request {request.number}: {problem}" for problem in problems]
            return status(400, message="; ".join(problems))
        if self._answer:
            return self._answer(request)
        if self._script:
            return self._script.popleft()
        self.exhausted = True
        return status(500, message="FAULT SERVER: THE SCRIPT IS EXHAUSTED, this request was not expected")

    def _route(self, request: Request) -> Behaviour:
        path = request.path.partition("?")[0]
        if path not in self.routes:
            return status(404, message=f"Unknown request URL: {request.method} {request.path}")
        answer = self.routes[path]
        answer = answer(request) if callable(answer) else answer
        return answer if isinstance(answer, Reply | Events | Status | Raw) else status(200, answer)

    async def _answer_while_connected(
        self, actions: Iterator[Action], inbox: _Inbox, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection can take another request."""
        delivery = asyncio.ensure_future(_perform(actions, writer))
        gone = asyncio.ensure_future(inbox.closed())
        try:
            await asyncio.wait({delivery, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not delivery.done():
                self.disconnects += 1
                return False
            return delivery.result()
        except ConnectionError:
            self.disconnects += 1
            return False
        finally:
            await _stop(delivery, gone)


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _perform(actions: Iterator[Action], writer: asyncio.StreamWriter) -> bool:
    for action in actions:
        match action:
            case Send(data):
                writer.write(data)
                await writer.drain()
            case Pause(0):
                # A client in the same loop needs two turns to take a piece before the next one follows.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Finish("end"):
                return True
            case Finish("close"):
                return False
            case Finish("reset"):
                _reset(writer)
                return False
            case Finish("stall", ping, ping_s):
                await _stall(writer, ping, ping_s)
    raise AssertionError("actions without a Finish")


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _stall(writer: asyncio.StreamWriter, ping: bytes, ping_s: float | None) -> None:
    while ping_s is not None:
        await asyncio.sleep(ping_s)
        writer.write(ping)
        await writer.drain()
    await asyncio.Event().wait()


class _Inbox:
    """The reading side of a connection, with one byte of look-ahead for noticing that the client left."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._ahead = b""

    async def closed(self) -> None:
        """Return when the client closes; wait for ever when it sends on."""
        with contextlib.suppress(ConnectionError):
            while not self._ahead:
                self._ahead = await self._reader.read(1)
                if not self._ahead:
                    return
            await asyncio.Event().wait()

    async def request(self, writer: asyncio.StreamWriter, number: int, connection: int) -> Request:
        head = self._ahead + await self._reader.readuntil(b"\r\n\r\n")
        self._ahead = b""
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await self._body(headers)
        parsed = None
        with contextlib.suppress(ValueError):
            parsed = json.loads(body) if body else None
        return Request(number, connection, time.monotonic(), method, path, headers, body, parsed)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        while (await self._reader.readline()).strip():
            pass
        return body


@contextlib.contextmanager
def fault_server_thread(script: Script = (), **options: Any) -> Iterator[FaultServer]:
    """A server on a loop of its own in a thread, for synchronous tests that start subprocesses."""
    server = FaultServer(script, **options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault-server", daemon=True)
    thread.start()

    def on_loop(work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(10)

    try:
        on_loop(server.__aenter__())
        try:
            yield server
        finally:
            on_loop(server.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
