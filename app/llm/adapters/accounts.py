"""What differs between look-alike vendors of the chat-completions dialect, one row an account. No code paths here.

Addresses, key variables and default models stand in `config/vendors.py`; this table holds only wire quirks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EffortStyle = Literal["openai", "deepseek", "openrouter"]


@dataclass(frozen=True, slots=True)
class Quirks:
    """How an account departs from OpenAI's own chat completions; the defaults are OpenAI's behaviour.

    `reasoning_replay`: thinking goes back with the assistant turn that has it (the vendor answers 400 otherwise).
    `token_field` None = the model's own. `key_header`: where the key goes; Bearer authorization unless named.
    """

    stream_usage: bool = True
    reasoning_replay: bool = False
    effort_style: EffortStyle = "openai"
    token_field: Literal["max_tokens", "max_completion_tokens"] | None = "max_tokens"
    key_header: str | None = None
    parallel_tool_calls: bool = False
    """True when the account knows the request field of that name."""
    short_ids: bool = False
    """True when the ids of calls must be nine letters or digits (Mistral API reference, tool calls)."""
    empty_parameters: bool = True
    """False when a tool without parameters must not describe them (Gemini refuses an object without properties)."""
    empty_text: bool = True
    """False when an empty text beside a call is refused (Zhipu, code 1214): null goes there, which DeepSeek refuses."""


DEFAULT = Quirks()

QUIRKS: dict[str, Quirks] = {
    "openai": Quirks(token_field=None, parallel_tool_calls=True),
    "azure": Quirks(token_field=None, key_header="api-key", parallel_tool_calls=True),
    "deepseek": Quirks(reasoning_replay=True, effort_style="deepseek"),
    "moonshot": Quirks(reasoning_replay=True),
    "zhipu": Quirks(reasoning_replay=True, effort_style="deepseek", empty_text=False),
    "openrouter": Quirks(effort_style="openrouter"),
    "google": Quirks(empty_parameters=False),
    "groq": Quirks(token_field="max_completion_tokens", parallel_tool_calls=True),
    "llama.cpp": Quirks(parallel_tool_calls=True),
    "embedded": Quirks(parallel_tool_calls=True),
    "mistral": Quirks(stream_usage=False, short_ids=True),
}


def quirks_of(vendor: str) -> Quirks:
    """The quirks of a vendor by its name in `config/vendors.py`; unlisted vendors behave like OpenAI's old wire."""
    return QUIRKS.get(vendor, DEFAULT)
