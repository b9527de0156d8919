"""What local servers tell of their models, laid between the table and the user's word; and what is done without."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from app.config.settings import CapabilitySettings, LLMSettings
from app.llm.models import as_told, facts_for
from app.llm.pool import LLMPool
from app.schema.event import EventRecord, Notice
from app.schema.run import RunContext
from tests.conftest import MakeServer
from tests.fault_server import FaultServer
from tests.fault_server.behaviours import reply, status
from tests.llm.asking import BASH

CALL = '{"name": "bash", "arguments": {"command": "ls"}}'
TEMPLATE = "{% if tools %}{{ tools }}{% endif %}"


def listed(owner: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "small", "owned_by": owner, **more}]}


LLAMA = {"default_generation_settings": {"n_ctx": 4096}, "modalities": {"vision": True, "audio": False}}
SHOWN = {
    "capabilities": ["completion", "vision", "thinking"],
    "model_info": {"general.architecture": "gemma3", "gemma3.context_length": 131072},
    "parameters": "stop  x\nnum_ctx   8192\n",
}


@pytest.mark.parametrize(
    ("routes", "facts"),
    [
        pytest.param(
            {"/v1/models": listed("llamacpp"), "/props": LLAMA | {"chat_template_caps": {"supports_tools": True}}},
            (4096, True, True, None, True),
            id="llama.cpp",
        ),
        pytest.param(
            {"/v1/models": listed("llamacpp"), "/props": LLAMA | {"chat_template_caps": {"supports_tools": False}}},
            (4096, True, False, None, True),
            id="llama.cpp, no tools in the template",
        ),
        pytest.param(
            {"/v1/models": listed("llamacpp"), "/props": {"chat_template": "{{ messages }}"}},
            (None, None, False, None, True),
            id="an older llama.cpp, no tools in the template",
        ),
        pytest.param(
            {"/v1/models": listed("llamacpp"), "/props": {"chat_template": TEMPLATE}},
            (None, None, True, None, True),
            id="an older llama.cpp",
        ),
        pytest.param({"/v1/models": listed("llamacpp")}, (None, None, None, None, True), id="llama.cpp, no props"),
        pytest.param(
            {"/v1/models": listed("library"), "/api/show": SHOWN, "/api/ps": {"models": []}},
            (8192, True, False, True, True),
            id="Ollama, num_ctx",
        ),
        pytest.param(
            {
                "/v1/models": listed("library"),
                "/api/show": SHOWN | {"parameters": "", "capabilities": ["completion", "tools"]},
                "/api/ps": {"models": [{"name": "small:latest", "context_length": 16384}]},
            },
            (16384, False, True, False, True),
            id="Ollama, loaded",
        ),
        pytest.param(
            {"/v1/models": listed("library"), "/api/show": {"model_info": SHOWN["model_info"]}, "/api/ps": {}},
            (131072, None, None, None, True),
            id="an older Ollama",
        ),
        pytest.param(
            {
                "/v1/models": listed("organization_owner"),
                "/api/v0/models": {
                    "data": [{"id": "small", "type": "vlm", "max_context_length": 32768, "loaded_context_length": 4096,
                              "capabilities": ["tool_use"]}]
                },
            },
            (4096, True, True, None, True),
            id="LM Studio",
        ),
        pytest.param({"/v1/models": listed("vllm", max_model_len=6553)}, (6553, None, None, None, None), id="vLLM"),
        pytest.param({"/v1/models": listed("somebody")}, (None, None, None, None, None), id="nobody knows it"),
        pytest.param({"/v1/models": [1]}, (None, None, None, None, None), id="no list"),
        pytest.param({}, (None, None, None, None, None), id="no page"),
    ],
)  # fmt: skip
async def test_what_a_server_tells(
    routes: dict[str, Any],
    facts: tuple[Any, ...],
    fault_server: MakeServer,
    make_pool: Callable[..., LLMPool],
) -> None:
    llm, server = await told_llm(fault_server, make_pool, routes, [reply("hi"), reply("hi")])
    assert await llm.ask("hello") == "hi"
    found = llm.facts
    assert (found.context_window, found.images, found.tools, found.reasoning, found.json_schema) == facts
    asked = len(server.requests)
    await llm.ask("again")
    assert len(server.requests) == asked + 1, "asked once"
    assert llm._why_text == ("" if facts[2] is not False else "its chat template has no part for tools")


async def told_llm(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], routes: dict[str, Any], script: Any, **settings: Any
) -> tuple[Any, FaultServer]:
    server = await fault_server(script, strict=False)
    server.routes.clear()
    server.routes.update(routes)
    options = {"model": "small", "base_url": server.url, "api_key": "sk-test"} | settings
    return make_pool(main=LLMSettings(name="main", **options)).get("main"), server


def told_as_text(events: list[EventRecord]) -> list[str]:
    notices = [record.event for record in events if isinstance(record.event, Notice)]
    return [notice.message for notice in notices if notice.code == "TOOLS_AS_TEXT"]


NO_TOOLS = {"/v1/models": listed("llamacpp"), "/props": LLAMA | {"chat_template_caps": {"supports_tools": False}}}


async def test_a_template_without_tools_makes_tools_words_with_one_notice(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool], ctx: RunContext, events: list[EventRecord]
) -> None:
    llm, server = await told_llm(fault_server, make_pool, NO_TOOLS, [reply(CALL), reply(CALL)])
    for _ in range(2):
        (call,) = (await llm.ask_tool("list the files", tools=(BASH,), ctx=ctx)).message.tool_calls
        assert (call.name, call.arguments) == ("bash", '{"command":"ls"}')
    body = server.chats[0].json
    assert "tools" not in body
    assert body["response_format"]["type"] == "json_schema"
    told = told_as_text(events)
    assert told == [
        "tools are offered to small as text, and its calls read from text: its chat template has no part for tools"
    ]


async def test_what_the_user_says_wins_over_the_server(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool]
) -> None:
    llm, server = await told_llm(
        fault_server,
        make_pool,
        NO_TOOLS,
        [reply("hi")],
        capabilities=CapabilitySettings(tools=True, images=False),
        context_window=2048,
    )
    await llm.ask_tool("hello", tools=(BASH,))
    assert (llm.facts.tools, llm.facts.images, llm.facts.context_window) == (True, False, 2048)
    assert server.chats[0].json["tools"][0]["function"]["name"] == "bash"


async def test_a_silent_server_is_asked_again(make_pool: Callable[..., LLMPool]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    nobody = LLMSettings(name="main", model="small", base_url=f"http://127.0.0.1:{port}/v1")
    llm = make_pool(main=nobody).get("main")
    assert llm._probe is not None
    assert await llm._probe() is None
    await llm.learn_facts()
    assert llm._probe is not None
    assert llm.facts == facts_for("small")


async def test_a_cloud_account_is_not_probed(make_pool: Callable[..., LLMPool]) -> None:
    cloud = LLMSettings(name="main", model="gpt-4o", base_url="https://api.openai.com/v1", api_key="sk-test")
    assert make_pool(main=cloud).get("main")._probe is None


def test_a_template_that_asks_for_tags_is_a_trap_for_qwen_coder() -> None:
    from app.llm.probe import _from_props

    props = LLAMA | {
        "chat_template_caps": {"supports_tools": True},
        "chat_template": "{% if tools %}<tool_call>{% endif %}",
    }
    told = _from_props(props, "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf")
    assert (told.tools, told.why_no_tools) == (False, "its template asks for call tags that this model leaves out")
    assert _from_props(props, "Qwen3-8B").tools is True
    facts = as_told(facts_for("qwen2.5-coder-1.5b"), told, CapabilitySettings())
    assert (facts.tools, facts.json_schema, facts.max_tools) == (False, True, 5)


REFUSALS = [
    "registry.ollama.ai/library/small:latest does not support tools",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "tools param requires --jinja flag",
    "Unable to generate parser for this template. Automatic parser generation failed",
    "Unsupported parameter: 'tools' is not supported with this model.",
    "Unrecognized request argument supplied: tools",
    "`tool calling` is not supported with this model",
    "This model doesn't support function calling",
    "No endpoints found that support tool use. To learn more about provider routing",
    "该模型不支持工具调用",
]


@pytest.mark.parametrize("words", REFUSALS)
async def test_a_refusal_of_tools_makes_them_words_for_good(
    words: str,
    fault_server: MakeServer,
    make_pool: Callable[..., LLMPool],
    ctx: RunContext,
    events: list[EventRecord],
) -> None:
    script = [status(400, message=words), reply(CALL), reply(CALL)]
    llm, server = await told_llm(fault_server, make_pool, {}, script)
    for _ in range(2):
        (call,) = (await llm.ask_tool("list the files", tools=(BASH,), ctx=ctx)).message.tool_calls
        assert json.loads(call.arguments) == {"command": "ls"}
    assert ["tools" in request.json for request in server.chats] == [True, False, False]
    (told,) = told_as_text(events)
    assert words[:30] in told


@pytest.mark.parametrize(
    "words",
    ["parallel tool calls are not supported", "tool_choice 'required' is not supported", "your tools are invalid JSON"],
)
async def test_other_words_about_tools_are_no_such_refusal(
    words: str, fault_server: MakeServer, make_pool: Callable[..., LLMPool]
) -> None:
    from app.llm.failures import classify_code

    assert classify_code(400, words) == "INVALID_REQUEST"


async def test_native_tools_that_are_refused_end_with_the_setting_to_change(
    fault_server: MakeServer, make_pool: Callable[..., LLMPool]
) -> None:
    from app.schema.errors import LLMError

    script = [status(400, message="small does not support tools")]
    llm, _ = await told_llm(fault_server, make_pool, {}, script, tools="native")
    with pytest.raises(LLMError) as caught:
        await llm.ask_tool("list the files", tools=(BASH,))
    assert caught.value.code == "UNSUPPORTED_TOOLS"
    assert caught.value.hint == 'set tools = "auto" under [llm], or use a model that calls tools'
