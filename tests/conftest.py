"""What every test gets: loopback only, an environment without the developer's keys, and shared fixtures."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.schema.event import EventRecord
from app.schema.run import RunContext
from tests.fault_server import FaultServer, Script

FOREIGN_VARIABLES = re.compile(
    r"DRAGOMAN_.*|COLUMNS|LINES|WORK_DIR|AGENT_RUNTIME_DIR|.*_PROXY|.*_API_KEY|.*_(BASE_URL|API_BASE|ENDPOINT)|AWS_.*|AZURE_.*"
    r"|OLLAMA_.*|DOCKER_INTERNAL_URL|(HF|GITHUB|GH|HUGGINGFACE\w*|REPLICATE\w*)_TOKEN|GOOGLE_.*|VERTEX_.*|CLOUDFLARE_.*|WATSONX_.*",
    re.IGNORECASE,
)
"""Variables of a developer's machine that would change what a test sees."""

MakeServer = Callable[..., Awaitable[FaultServer]]

_attempts: list[str] = []


class LeftLoopback(AssertionError):
    """A test reached for the network; not an `OSError`, so that no connection handling mistakes it for a fault."""


def _is_loopback(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else str(host)
    if text == "localhost":
        return True
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_numeric(host: object) -> bool:
    try:
        ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return True


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not event.startswith("socket."):
        return
    match event, arguments:
        case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (socket.socket() as sock, address)):
            internet = sock.family in (socket.AF_INET, socket.AF_INET6)
            host = address[0] if internet and address else None
            allowed = host is None or _is_loopback(host)
        # Reading a number as an address asks nobody; only its use leaves the machine.
        case (("socket.getaddrinfo" | "socket.gethostbyname" | "socket.gethostbyaddr"), (host, *_)):
            allowed = not host or _is_loopback(host) or (event == "socket.getaddrinfo" and _is_numeric(host))
        case _:
            return
    if not allowed:
        _attempts.append(f"{event} {host!r}")
        raise LeftLoopback(f"{event} to {host!r}: tests stay on loopback")


# An audit hook sees every road: asyncio, C extensions, and names bound before a patch could reach them.
sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def network_attempts() -> Iterator[list[str]]:
    """What this test tried to reach beyond loopback; anything left in the list fails it, swallowed errors included."""
    _attempts.clear()
    yield _attempts
    left = _attempts.copy()
    _attempts.clear()
    if left:
        pytest.fail(f"left loopback: {', '.join(left)}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runtime home of this test (not created yet), in an environment free of keys, proxies and our variables."""
    for name in list(os.environ):
        if FOREIGN_VARIABLES.fullmatch(name):
            monkeypatch.delenv(name)
    # The machine that runs the tests may be a container, whose loopback addresses are its own all the same.
    monkeypatch.setattr("app.llm.container.MARKS", ())
    folder = tmp_path / "home"
    monkeypatch.setenv("DRAGOMAN_HOME", str(folder))
    return folder


@pytest.fixture
async def fault_server() -> AsyncIterator[MakeServer]:
    """Starts servers: `server = await fault_server([reply("hi")], **options)`; complaints left at the end
    fail the test. A test that provokes complaints looks at them and calls `server.forgive()`.
    """
    servers: list[FaultServer] = []
    async with AsyncExitStack() as stack:

        async def start(script: Script = (), **options: Any) -> FaultServer:
            servers.append(await stack.enter_async_context(FaultServer(script, **options)))
            return servers[-1]

        yield start
    if complaints := [each for server in servers for each in server.complaints()]:
        pytest.fail(f"fault server: {'; '.join(complaints)}")


@pytest.fixture
def events() -> list[EventRecord]:
    """The events of `ctx`, in order."""
    return []


@pytest.fixture
def ctx(events: list[EventRecord]) -> RunContext:
    return RunContext(sink=events.append)
