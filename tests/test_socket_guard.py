"""The guard of `conftest.py` stops every road out of loopback, and lets loopback pass."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from app import paths
from app.config.vendors import VENDORS
from tests.conftest import FOREIGN_VARIABLES, LeftLoopback
from tests.fault_server import FaultServer

PUBLIC = "93.184.216.34"


@pytest.fixture(autouse=True)
def provoked(network_attempts: list[str]):
    yield
    network_attempts.clear()


@pytest.mark.parametrize("address", [(PUBLIC, 80), ("10.0.0.1", 80), ("169.254.169.254", 80), ("0.0.0.0", 80)])
def test_connecting_elsewhere_is_stopped(address: tuple[str, int], network_attempts: list[str]):
    with socket.socket() as sock, pytest.raises(LeftLoopback):
        sock.connect(address)
    assert network_attempts == [f"socket.connect {address[0]!r}"]


def test_other_kinds_of_sockets_are_stopped():
    with socket.socket() as sock, pytest.raises(LeftLoopback):
        sock.connect_ex((PUBLIC, 80))
    with socket.socket(type=socket.SOCK_DGRAM) as sock, pytest.raises(LeftLoopback):
        sock.sendto(b"x", (PUBLIC, 53))
    with socket.socket(socket.AF_INET6) as sock, pytest.raises(LeftLoopback):
        sock.connect(("2001:db8::1", 80))


def test_names_are_not_looked_up():
    with pytest.raises(LeftLoopback):
        socket.getaddrinfo("example.com", 443)
    with pytest.raises(LeftLoopback):
        socket.gethostbyname("example.com")
    assert socket.getaddrinfo(PUBLIC, 443)[0][4][0] == PUBLIC


async def test_asyncio_is_stopped():
    with pytest.raises(LeftLoopback):
        await asyncio.open_connection(PUBLIC, 443)
    with pytest.raises(LeftLoopback):
        await asyncio.open_connection("example.com", 443)


async def test_aiohttp_is_stopped():
    async with aiohttp.ClientSession() as session:
        with pytest.raises(LeftLoopback):
            await session.get("http://example.com/")
        with pytest.raises(LeftLoopback):
            await session.get(f"http://{PUBLIC}/")


async def test_loopback_passes(tmp_path: Path, network_attempts: list[str]):
    async with FaultServer() as server, aiohttp.ClientSession() as session:
        for host in ("127.0.0.1", "localhost"):
            async with session.get(server.url.replace("127.0.0.1", host) + "/models") as answer:
                assert answer.status == 200
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as sock:
        listener.bind(path)
        listener.listen()
        sock.connect(path)
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.255.255.254", 1))
    assert network_attempts == []


INNER = f"""
import contextlib, os, socket

def test_quiet():
    with socket.socket() as sock, contextlib.suppress(BaseException):
        sock.connect(({PUBLIC!r}, 80))

def test_variables():
    assert not {{"DEEPSEEK_API_KEY", "WORK_DIR", "https_proxy"}} & os.environ.keys()
    assert "UNRELATED" in os.environ
"""


def test_a_swallowed_error_fails_the_test_and_foreign_variables_are_gone(tmp_path: Path):
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(inner)]
    foreign = {"DEEPSEEK_API_KEY": "x", "WORK_DIR": "/x", "https_proxy": "http://x", "UNRELATED": "x"}
    root = Path(__file__).parent.parent
    outcome = subprocess.run(
        command, cwd=root, env=os.environ | foreign, capture_output=True, text=True, timeout=60, check=False
    )
    assert f"left loopback: socket.connect '{PUBLIC}'" in outcome.stdout
    assert "2 passed, 1 error" in outcome.stdout


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "OPENAI_BASE_URL", "AWS_REGION", "DRAGOMAN_CONFIG", "AGENT_RUNTIME_DIR", "no_proxy"]
)
def test_the_developers_variables_are_known(name: str):
    assert FOREIGN_VARIABLES.fullmatch(name)


def test_every_vendors_variables_are_known():
    names = {name for vendor in VENDORS.values() for name in (*vendor.key_env, *vendor.base_url_env)}
    assert {name for name in names if not FOREIGN_VARIABLES.fullmatch(name)} == set()


def test_the_runtime_home_is_the_tests_own(home: Path, tmp_path: Path):
    assert paths.runtime_home() == home == tmp_path / "home"
    assert not home.exists()
