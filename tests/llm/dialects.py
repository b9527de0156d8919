"""Every wire dialect as one row: how to make its adapter against a fault server, and how that server speaks it.

`test_hazards.py` and the other tables over all dialects run on these rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from app.llm.adapters.accounts import quirks_of
from app.llm.adapters.anthropic import AnthropicAdapter
from app.llm.adapters.base import LLMAdapter
from app.llm.adapters.bedrock import BedrockAdapter
from app.llm.adapters.gemini import GeminiAdapter
from app.llm.adapters.http import Account
from app.llm.adapters.ollama import OllamaAdapter
from app.llm.adapters.openai_chat import OpenAIChatAdapter
from app.llm.adapters.polling import PollingAdapter
from app.llm.adapters.responses import ResponsesAdapter
from app.llm.models import DEFAULTS
from app.llm.transport import Timeouts, Transport
from tests.fault_server import FaultServer
from tests.fault_server.bedrock import Bedrock
from tests.fault_server.gemini import Gemini
from tests.fault_server.messages import Messages
from tests.fault_server.ollama import Ollama
from tests.fault_server.openai_chat import OpenAIChat
from tests.fault_server.polling import Polling
from tests.fault_server.render import Dialect
from tests.fault_server.responses import Responses

MakeDialectAdapter = Callable[[FaultServer, Transport, Timeouts], LLMAdapter]


@dataclass(frozen=True)
class DialectRow:
    """`api_type` is the label a user writes. `lacks` names hazards that the wire cannot express, with the reason."""

    name: str
    api_type: str
    adapter: MakeDialectAdapter
    wire: Callable[[], Dialect]
    lacks: tuple[tuple[str, str], ...] = ()
    own_framing: bool = True
    """False where no stream is decoded by us: there is none, or the vendor's SDK frames it."""


def account(server: FaultServer, timeouts: Timeouts, *, vendor: str = "openai", root: bool = False) -> Account:
    """An account at the fault server; `root` for dialects whose base address has no `/v1`."""
    base_url = server.root if root else server.url
    options: dict[str, Any] = {"quirks": quirks_of(vendor), "timeouts": timeouts}
    return Account(vendor, "the server", base_url, "sk-test", **options)


def _chat(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    return OpenAIChatAdapter(account(server, timeouts), transport, route="main", facts=DEFAULTS)


def _responses(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    return ResponsesAdapter(account(server, timeouts), transport, route="main", facts=DEFAULTS)


def _messages(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    return AnthropicAdapter(account(server, timeouts, vendor="anthropic"), transport, route="main", facts=DEFAULTS)


def _gemini(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    base = replace(account(server, timeouts, vendor="google", root=True), base_url=f"{server.root}/v1beta")
    return GeminiAdapter(base, transport, route="main", facts=DEFAULTS)


def _ollama(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    base = account(server, timeouts, vendor="ollama", root=True)
    return OllamaAdapter(base, transport, route="main", facts=DEFAULTS)


def _bedrock(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    at_root = account(server, timeouts, vendor="aws", root=True)
    return BedrockAdapter(at_root, transport, route="main", facts=DEFAULTS)


def _polling(server: FaultServer, transport: Transport, timeouts: Timeouts) -> LLMAdapter:
    return PollingAdapter(account(server, timeouts, root=True), transport, route="main", facts=DEFAULTS)


_NO_STREAM = "a reply is asked for piece by piece, each a document of its own"
_KEPT = "a kept connection that dies is replaced by a new one"
_POLLING_LACKS = (
    ("reset before headers", _KEPT),
    ("closed before headers", _KEPT),
    ("cut in the middle", _NO_STREAM),
    ("ended in the middle", _NO_STREAM),
    ("reset in the middle", _NO_STREAM),
    ("silence in the middle", _NO_STREAM),
    ("17 MiB in one event", _NO_STREAM),
    ("calls", "text only; tools are offered in words"),
    ("output limit", "the protocol names no reason for an end"),
)

_BINARY = "events are binary frames"
_BEDROCK_LACKS = (("byte-order mark", _BINARY), ("keep-alives", _BINARY))

DIALECTS: tuple[DialectRow, ...] = (
    DialectRow("chat", "openai", _chat, OpenAIChat),
    DialectRow("responses", "openai_responses", _responses, Responses),
    DialectRow("messages", "anthropic", _messages, Messages),
    DialectRow("gemini", "google", _gemini, Gemini),
    DialectRow("ollama", "ollama", _ollama, Ollama, (("keep-alives", "lines have no comments"),)),
    DialectRow("bedrock", "aws", _bedrock, Bedrock, _BEDROCK_LACKS, own_framing=False),
    DialectRow("polling", "server", _polling, Polling, _POLLING_LACKS, own_framing=False),
)
