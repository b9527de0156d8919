"""The LiteLLM library inside the process, in front of the fault server: replies, and what its errors become."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from app.config.settings import LLMSettings
from app.llm.adapters.litellm import LiteLLMAdapter
from app.llm.adapters.openai_chat import OpenAIChatAdapter
from app.llm.models import DEFAULTS
from app.llm.pool import LLMPool
from app.llm.transport import Timeouts
from app.schema.errors import LLMError
from app.schema.message import ToolCallBlock, assistant_message, tool_result_message, user_message
from tests.conftest import MakeServer
from tests.fault_server import (
    Behaviour,
    FaultServer,
    call,
    cut_after,
    in_band_error,
    reply,
    reset_before_headers,
    status,
)
from tests.llm.asking import BASH, ask, chunks_of, shorts
from tests.llm.dialects import account

MODEL = "openai/test-model"


@pytest.fixture(autouse=True)
async def close() -> AsyncIterator[None]:
    """The library's connections end with each test."""
    yield
    await adapter(FaultServer([])).close()


def adapter(server: FaultServer) -> LiteLLMAdapter:
    return LiteLLMAdapter(account(server, Timeouts()), route="main", facts=DEFAULTS)


async def test_thinking_text_calls_and_usage_come_through(fault_server: MakeServer) -> None:
    answer = reply("Hello there", reasoning="hm", tool_calls=[call("bash", {"command": "ls"}, id="c1")])
    server = await fault_server([answer])
    made = ToolCallBlock("c0", "bash", '{"command":"pwd"}')
    history = (
        user_message("Where are we?"),
        assistant_message((made,), provider="main", model=MODEL),
        tool_result_message("c0", "/here"),
    )
    lines = shorts(await chunks_of(adapter(server), ask(*history, model=MODEL, system="Be brief.", tools=(BASH,))))
    assert [line for line in lines if line[0] == "E"] == ["E0 hm", "E1 Hello there", 'E2 c1 bash {"command": "ls"}']
    assert lines[-1] == "F tool-calls"
    assert any(line.startswith("U ") for line in lines)
    sent = server.chats[0].json
    assert [entry["role"] for entry in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assert server.chats[0].headers["authorization"] == "Bearer sk-test"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(lambda: status(401), "AUTH", id="401"),
        pytest.param(lambda: status(429, message="slow down"), "RATE_LIMIT", id="429"),
        pytest.param(lambda: status(500), "SERVER", id="500"),
        pytest.param(
            lambda: status(400, message="prompt is too long: 210000 tokens > 200000 maximum"),
            "CONTEXT_WINDOW_EXCEEDED",
            id="overflow",
        ),
        pytest.param(lambda: cut_after(reply("a b c d e f", stream_pieces=2), events=3), "STREAM_CLOSED", id="cut"),
        pytest.param(
            lambda: cut_after(reply("a b c d e f", stream_pieces=2), events=3, clean=True), "STREAM_CLOSED", id="ended"
        ),
        pytest.param(lambda: in_band_error(after=2), "STREAM_CLOSED", id="error in the stream"),
        pytest.param(reset_before_headers, "TRANSPORT", id="reset"),
    ],
)
async def test_its_errors(fault: Callable[[], Behaviour], code: str, fault_server: MakeServer) -> None:
    server = await fault_server([fault()])
    with pytest.raises(LLMError) as caught:
        await chunks_of(adapter(server), ask(model=MODEL))
    assert caught.value.code == code
    assert "sk-test" not in str(caught.value)
    assert len(server.chats) == 1, "its own retries are off"


async def test_the_address_decides_between_library_and_proxy() -> None:
    pool = LLMPool(
        {
            "inside": LLMSettings(name="inside", model="anthropic/claude-sonnet-5-5", api_type="litellm"),
            "proxy": LLMSettings(name="proxy", model="m", api_type="litellm", base_url="http://127.0.0.1:4000/v1"),
        }
    )
    kinds = [type(pool.service.adapter(pool.get(name).name)) for name in ("inside", "proxy")]
    assert kinds == [LiteLLMAdapter, OpenAIChatAdapter]
    assert pool.get("inside").facts.context_window == 1_000_000
    await pool.close()
