"""Detection: keys in their order, then servers on this machine, then the embedded model."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from aiohttp import web

from app.config.detect import LOCAL_PORTS, NO_MODEL_HELP, detect_model, load_or_detect
from app.config.settings import LLMSettings
from app.config.vendors import DETECTION_ORDER, VENDORS
from tests.config.conftest import Lab

Serve = Callable[[object], "asyncio.Future[int]"]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., object]]:
    """Starts a server on a free port that answers `/v1/models` with JSON, a response, or what a function makes."""
    runners: list[web.AppRunner] = []

    async def start(answer: object) -> int:
        async def handle(request: web.Request) -> web.StreamResponse:
            if isinstance(answer, web.Response):
                return answer
            return await answer(request) if callable(answer) else web.json_response(answer)

        app = web.Application()
        app.router.add_get("/v1/models", handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1]

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(autouse=True)
def embedded(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether the embedded engine can be imported; no, unless a test says so."""
    real = importlib.util.find_spec

    def set_to(present: bool) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: present or None if name == "xllamacpp" else real(name)
        )

    set_to(False)
    return set_to


def models(*names: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


async def test_keys_in_the_environment_come_first_in_the_documented_order() -> None:
    env = {VENDORS[name].key_env[0]: f"key-of-{name}" for name in DETECTION_ORDER}
    for name in DETECTION_ORDER:
        found = await detect_model(env, ports={})
        assert found is not None
        vendor = VENDORS[name]
        assert (found.api_type, found.model, found.base_url) == (name, vendor.default_model, vendor.base_url)
        assert found.api_key.get_secret_value() == f"key-of-{name}"
        del env[vendor.key_env[0]]
    assert await detect_model(env, ports={}) is None


async def test_a_key_with_its_own_address() -> None:
    found = await detect_model({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://h/v1"}, ports={})
    assert found is not None
    assert found.base_url == "http://h/v1"


def test_the_documentation_names_the_order_and_the_ports() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    positions = [page.rindex(f"`{VENDORS[name].key_env[0]}`") for name in DETECTION_ORDER]
    assert positions == sorted(positions)
    assert all(str(port) in page for port in LOCAL_PORTS.values())


@pytest.mark.parametrize(
    ("name", "path"), [("ollama", ""), ("lm-studio", "/v1"), ("llama.cpp", "/v1"), ("vllm", "/v1")]
)
async def test_a_local_server_is_found(serve: Serve, closed_port: int, name: str, path: str) -> None:
    port = await serve(models("text-embedding-nomic-embed-text-v1.5", "bge-m3", "qwen3:8b", "other"))
    found = await detect_model({}, timeout_s=5, ports={**dict.fromkeys(LOCAL_PORTS, closed_port), name: port})
    assert found == LLMSettings(api_type=name, base_url=f"http://127.0.0.1:{port}{path}", model="qwen3:8b")


async def test_of_several_servers_the_first_of_the_order_that_has_a_model_is_taken(serve: Serve) -> None:
    ports = {
        "ollama": await serve(models()),
        "lm-studio": await serve(models("nomic-embed-text")),
        "llama.cpp": await serve(models("b")),
        "vllm": await serve(models("c")),
    }
    found = await detect_model({}, timeout_s=5, ports=ports)
    assert found is not None
    assert (found.api_type, found.model) == ("llama.cpp", "b")


@pytest.mark.parametrize(
    "answer",
    [
        {"models": []}, [], "text", None, {"data": None}, {"data": {}}, {"data": [1, {"id": 3}, {"id": ""}, {}]},
        web.Response(text="<html>hello</html>", content_type="text/html"),
        web.Response(text="{", content_type="application/json"),
        web.Response(body=b"\xff\xfe", content_type="application/json"),
        web.Response(text="[" * 100_000, content_type="application/json"),
        web.Response(status=404), web.Response(status=500, text='{"data": [{"id": "m"}]}'),
        web.Response(status=302, headers={"Location": "http://192.0.2.1/"}),
    ],
)  # fmt: skip
async def test_other_services_on_these_ports_are_no_model_servers(serve: Serve, answer: object) -> None:
    assert await detect_model({}, timeout_s=5, ports={"ollama": await serve(answer)}) is None


async def test_something_that_is_no_web_server_is_none(closed_port: int) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await detect_model({}, timeout_s=5, ports={"ollama": port, "vllm": closed_port}) is None


async def test_silent_servers_cost_the_time_limit_once(serve: Serve) -> None:
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]  # connects, and never answers
    names = ("ollama", "lm-studio", "llama.cpp")
    ports = {name: server.getsockname()[1] for name, server in zip(names, silent, strict=True)}
    ports["vllm"] = await serve(models("m"))
    started = time.perf_counter()
    found = await detect_model({}, timeout_s=0.2, ports=ports)
    assert found is not None
    assert found.api_type == "vllm"
    assert time.perf_counter() - started < 0.5  # one limit, not three
    for server in silent:
        server.close()


async def test_the_embedded_model_is_the_last_resort(serve: Serve, embedded: Callable[[bool], None]) -> None:
    embedded(True)
    found = await detect_model({}, ports={})
    assert found == LLMSettings(api_type="embedded", model=VENDORS["embedded"].default_model)
    found = await detect_model({}, timeout_s=5, ports={"vllm": await serve(models("m"))})
    assert found is not None
    assert found.api_type == "vllm"


async def test_a_configured_model_is_not_searched_for(lab: Lab, serve: Serve) -> None:
    asked: list[str] = []

    async def ask(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response(models("m"))

    ports: Mapping[str, int] = {"vllm": await serve(ask)}
    lab.write('[llm]\nmodel = "mine"')
    config = await load_or_detect(env=lab.env(), timeout_s=5, ports=ports)
    assert (config.llm["default"].model, asked) == ("mine", [])


async def test_a_detected_model_keeps_settings_and_flags(lab: Lab, serve: Serve) -> None:
    lab.write("[llm]\ntemperature = 0.5\n[llm.coder]\nmodel = 'big'")
    port = await serve(models("m"))
    config = await load_or_detect(env=lab.env(), flags={"llm.default.max_tokens": 7}, timeout_s=5, ports={"vllm": port})
    default, coder = config.llm["default"], config.llm["coder"]
    assert (default.model, default.temperature, default.max_tokens) == ("m", 0.5, 7)
    assert (coder.model, coder.base_url) == ("big", f"http://127.0.0.1:{port}/v1")
    assert config.origins["llm.default.model"] == "detected"


async def test_defect_35_nothing_found_leaves_no_default(lab: Lab) -> None:
    config = await load_or_detect(env=lab.env(), ports={})
    assert config.llm == {}
    assert len(NO_MODEL_HELP.split("\n")) == 3
