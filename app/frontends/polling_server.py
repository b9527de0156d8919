"""Serves a configured model by agenticSeek's three-step protocol, for programs that speak nothing else.

`python -m app.frontends.polling_server [--llm NAME] [--port 3333]`; `llm/adapters/polling.py` says what the steps are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from app.config.detect import load_or_detect
from app.config.values import is_private_host
from app.frontends.front import Front
from app.llm.pool import LLMPool
from app.schema.errors import ConfigError, DragomanError, LLMError, UsageError
from app.schema.event import EventRecord, Retrying, TextStreamed
from app.schema.message import Message, assistant_message, user_message
from app.schema.run import RunContext

if TYPE_CHECKING:
    from aiohttp.web import Application, Request, StreamResponse

UNASKED_S = 60.0
"""A reply for which nobody has asked this long is stopped: the protocol has no other way to say that a client left."""
MAX_BODY_BYTES = 32 * 1024 * 1024
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(slots=True)
class Generation:
    """The one reply that is made now, or was made last."""

    sentence: str = ""
    complete: bool = True
    error: str = ""
    asked_at: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None


class PollingServer:
    """The protocol over a pool. One reply at a time, as its clients expect; a second one is refused with 409."""

    def __init__(self, pool: LLMPool, names: Sequence[str], *, default: str, token: str = "") -> None:
        self._pool = pool
        self._names = names
        self._chosen = default
        self._token = token
        self._now = Generation()

    def application(self) -> Application:
        from aiohttp import web

        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/setup", self._setup),
                web.post("/generate", self._generate),
                web.get("/get_updated_sentence", self._sentence),
            ]
        )
        app.on_cleanup.append(self._close)
        return app

    @property
    def _guard(self) -> Any:
        """No page in a browser may use this server: neither across origins nor by a name that it bound to us."""
        from aiohttp import web

        @web.middleware
        async def guard(request: Request, handler: Callable[[Request], Awaitable[StreamResponse]]) -> StreamResponse:
            host = request.host.rsplit(":", 1)[0].strip("[]")
            if "Origin" in request.headers or not is_private_host(host):
                return web.json_response({"error": "requests of web pages are not answered"}, status=403)
            shown = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            if self._token and not hmac.compare_digest(shown.encode(), self._token.encode()):
                return web.json_response({"error": "send the token as a bearer authorization"}, status=401)
            try:
                return await handler(request)
            except UsageError as error:
                return web.json_response({"error": error.message}, status=400)

        return guard

    async def _health(self, request: Request) -> StreamResponse:
        from aiohttp import web

        return web.json_response({"status": "healthy", "model": self._chosen})

    async def _setup(self, request: Request) -> StreamResponse:
        """Choose a model: the name of a configuration, or the model of one."""
        from aiohttp import web

        model = (await _object(request)).get("model")
        if not isinstance(model, str) or not model.strip():
            raise UsageError('send {"model": name}')
        found = [name for name in self._names if model in (name, self._pool.get(name).settings.model)]
        if not found:
            raise UsageError(f"there is no model {model!r}; known are: {', '.join(self._names)}")
        self._chosen = found[0]
        return web.json_response({"message": "Model set", "model": self._pool.get(found[0]).settings.model})

    async def _generate(self, request: Request) -> StreamResponse:
        from aiohttp import web

        system, messages = _read_messages((await _object(request)).get("messages"))
        if not self._now.complete:
            return web.json_response({"error": "Generation already in progress"}, status=409)
        self._now = now = Generation(complete=False)
        now.task = asyncio.create_task(self._make(now, system, messages))
        return web.json_response({"message": "Generation started"}, status=202)

    async def _sentence(self, request: Request) -> StreamResponse:
        from aiohttp import web

        now = self._now
        now.asked_at = time.monotonic()
        if now.error:
            return web.json_response({"error": now.error})
        return web.json_response({"sentence": now.sentence, "is_complete": now.complete})

    async def _make(self, now: Generation, system: str, messages: list[Message]) -> None:
        def watch(record: EventRecord) -> None:
            match record.event:
                case TextStreamed(text):
                    now.sentence += text
                case Retrying():
                    now.sentence = ""
                case _:
                    pass

        reply = asyncio.create_task(
            self._pool.get(self._chosen).ask(messages, system=system, ctx=RunContext(sink=watch))
        )
        try:
            while not reply.done():
                await asyncio.wait({reply}, timeout=1.0)
                if time.monotonic() - now.asked_at > UNASKED_S:
                    raise LLMError("nobody asked for the reply any more", "ABORTED")
            now.sentence = reply.result()
        except DragomanError as error:
            now.error = f"{error.message} ({error.hint})" if error.hint else error.message
        finally:
            now.complete = True
            reply.cancel()
            await asyncio.gather(reply, return_exceptions=True)

    async def _close(self, app: Application) -> None:
        if self._now.task is not None:
            self._now.task.cancel()
            await asyncio.gather(self._now.task, return_exceptions=True)
        await self._pool.close()


async def _object(request: Request) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise UsageError("send JSON, with the content type application/json")
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise UsageError("the body is no JSON") from None
    if not isinstance(body, dict):
        raise UsageError("the body must be a JSON object")
    return cast("dict[str, Any]", body)


def _read_messages(given: object) -> tuple[str, list[Message]]:
    """(system text, messages) of `[{"role", "content"}]`."""
    system: list[str] = []
    messages: list[Message] = []
    for position, entry in enumerate(cast("list[Any]", given) if isinstance(given, list) else ()):
        table = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        role, content = table.get("role"), table.get("content")
        if not isinstance(content, str):
            raise UsageError(f"messages.{position}.content must be a text")
        match role:
            case "system":
                system.append(content)
            case "user":
                messages.append(user_message(content))
            case "assistant":
                messages.append(assistant_message(content, provider="client", model="unknown"))
            case _:
                raise UsageError(f"messages.{position}.role must be system, user or assistant")
    if not messages:
        raise UsageError("messages must be a list with at least one message of a user")
    return "\n\n".join(system), messages


async def serve(options: argparse.Namespace, front: Front) -> None:
    """Serve until cancelled. Raises `ConfigError` for an unknown model, and where the port cannot be had."""
    from aiohttp import web

    config = await load_or_detect(Path(options.config) if options.config else None)
    if not config.llm:
        raise ConfigError("no model is configured", hint="set a key, start a local server, or configure [llm]")
    if options.llm not in config.llm:
        raise ConfigError(f"there is no [llm.{options.llm}]", hint=f"known: {', '.join(sorted(config.llm))}")
    server = PollingServer(LLMPool(config.llm), sorted(config.llm), default=options.llm, token=options.token)
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {options.host}:{options.port}: {error.strerror}", hint="choose another --port"
            ) from error
        host, port = runner.addresses[0][:2]
        front.tell(f"serving [{options.llm}] at http://{host}:{port}; Ctrl+C ends it")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m app.frontends.polling_server",
        description="Serve a configured model by agenticSeek's protocol: /setup, /generate, /get_updated_sentence.",
    )
    parser.add_argument("--config", metavar="PATH", help="configuration file")
    parser.add_argument("--llm", metavar="NAME", default="default", help="model configuration (default: [llm])")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=3333, help="port (default: 3333; 0 = any)")
    parser.add_argument(
        "--token",
        default=os.environ.get("DRAGOMAN_SERVER_TOKEN", ""),
        help="what clients must send as a bearer authorization (default: the variable DRAGOMAN_SERVER_TOKEN)",
    )
    options = parser.parse_args(argv)
    front = Front()

    def run() -> int:
        if options.host not in LOOPBACK and not options.token:
            raise UsageError("without --token only this machine may be served", hint="set --token, or leave --host out")
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(serve(options, front))
        return 0

    return front.guarded(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
