"""What a local server tells about its model before it is asked anything: context window, tools, images, thinking.

Reads `/v1/models` and the one page that the kind of server has beside it. What is told lies over the table of models
and under the user's word (`models.py`); what is done about it is the client's matter.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from app.llm.models import Told
from app.llm.transport import Timeouts, Transport
from app.schema.errors import LLMError
from app.schema.message import JSON

if TYPE_CHECKING:
    from app.llm.adapters.http import Account

PROBE_S = 1.0
"""Longest time for one page; a server that is busy with a prompt still answers them at once."""
_LIMITS = Timeouts(PROBE_S, PROBE_S, PROBE_S, PROBE_S)

Table = dict[str, JSON]

KINDS = {
    "llamacpp": "llama.cpp",
    "library": "ollama",
    "organization_owner": "lm-studio",
    "organization-owner": "lm-studio",
    "vllm": "vllm",
    "sglang": "vllm",
}
"""Which server this is, by the `owned_by` of its list of models; else by the account's label."""


@dataclass(frozen=True, slots=True)
class Trap:
    """A chat template with which a model's calls get lost, although it has a part for tools."""

    model: re.Pattern[str]
    template: re.Pattern[str]
    why: str


TRAPS: tuple[Trap, ...] = (
    Trap(
        re.compile(r"qwen2\.5-coder"),
        re.compile(r"<tool_call>"),
        "its template asks for call tags that this model leaves out",
    ),
    Trap(
        re.compile(r"deepseek-r1(-0528)?[-_:]*(distill|qwen|llama|1\.5b|7b|8b|14b|32b|70b|\Z)"),
        re.compile(r"tool▁call▁begin"),
        "its template shows calls, but not the tools on offer",
    ),
    Trap(
        re.compile(r"phi-?4-mini"),
        re.compile(r"<\|tool\|>"),
        "its template expects the tools in the system message",
    ),
)
"""For small models that people run; measured, or known from the servers' trackers."""


class Prober:
    """Asks each account once for each model, one question at a time; silence is not remembered."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._told: dict[tuple[str, str], Told] = {}
        self._asking = asyncio.Lock()

    async def ask(self, account: Account, model: str) -> Told | None:
        """What the server tells, perhaps nothing; None when it does not answer within a second or two."""
        key = (account.base_url, model)
        async with self._asking:
            if key not in self._told:
                found = await _Questions(self._transport, account, model).ask()
                if found is None:
                    return None
                self._told[key] = found
            return self._told[key]


class _Questions:
    def __init__(self, transport: Transport, account: Account, model: str) -> None:
        self._transport = transport
        self._root = account.base_url.partition("?")[0].rstrip("/").removesuffix("/v1")
        self._label = account.vendor
        self._model = model
        self._headers = {"Accept": "application/json", **account.headers}
        if key := account.api_key.strip():
            self._headers["Authorization"] = f"Bearer {key}"

    async def ask(self) -> Told | None:
        """None when nothing answers at all."""
        try:
            listing = await self._page("GET", "/v1/models")
        except LLMError:
            return None
        entry = self._entry(listing)
        kind = KINDS.get(str(entry.get("owned_by")), self._label)
        try:
            match kind:
                case "llama.cpp":
                    return _from_props(await self._page("GET", "/props"), self._model)
                case "ollama":
                    shown = await self._page("POST", "/api/show", {"model": self._model})
                    return _from_show(shown, self._loaded(await self._page("GET", "/api/ps")))
                case "lm-studio":
                    return _from_lm_studio(self._entry(await self._page("GET", "/api/v0/models")))
                case _:
                    return Told(kind if kind != "local" else "", _count(entry.get("max_model_len")))
        except LLMError:
            return Told()

    async def _page(self, method: str, path: str, body: JSON = None) -> JSON:
        """The JSON of a page, None for a page that the server does not have. Raises `LLMError` for silence."""
        sent = None if body is None else json.dumps(body).encode()
        headers = self._headers if sent is None else {**self._headers, "Content-Type": "application/json"}
        async with self._transport.request(
            method, self._root + path, headers=headers, body=sent, timeouts=_LIMITS
        ) as response:
            answer = await response.read()
        try:
            return json.loads(answer) if response.status == 200 else None
        except (ValueError, RecursionError):
            return None

    def _entry(self, listing: JSON) -> Table:
        """This model's row of a listing; the only row when there is just one, whatever its name."""
        data = _table(listing).get("data")
        rows = [_table(row) for row in cast("list[JSON]", data)] if isinstance(data, list) else []
        named = next((row for row in rows if row.get("id") == self._model), None)
        return named if named is not None else rows[0] if len(rows) == 1 else {}

    def _loaded(self, running: JSON) -> Table:
        models = _table(running).get("models")
        rows = [_table(row) for row in cast("list[JSON]", models)] if isinstance(models, list) else []
        names = (self._model, f"{self._model}:latest")
        found = next((row for row in rows if row.get("name") in names or row.get("model") in names), None)
        return found or {}


def _table(value: JSON) -> Table:
    return cast(Table, value) if isinstance(value, dict) else {}


def _count(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _flag(value: JSON) -> bool | None:
    return value if isinstance(value, bool) else None


def _from_props(page: JSON, model: str) -> Told:
    """llama.cpp (tools/server/README.md, `GET /props`); older servers have the template and no summary of it."""
    props = _table(page)
    if not props:
        return Told("llama.cpp", json_schema=True)
    template = str(props.get("chat_template") or "")
    tools = _flag(_table(props.get("chat_template_caps")).get("supports_tools"))
    if tools is None and template:
        tools = bool(re.search(r"\btools\b", template)) or bool(props.get("chat_template_tool_use"))
    why = "" if tools is not False else "its chat template has no part for tools"
    for trap in TRAPS:
        if tools and trap.model.search(model.lower()) and trap.template.search(template):
            tools, why = False, trap.why
    return Told(
        "llama.cpp",
        _count(_table(props.get("default_generation_settings")).get("n_ctx")),
        images=_flag(_table(props.get("modalities")).get("vision")),
        tools=tools,
        json_schema=True,
        why_no_tools=why,
    )


def _from_show(page: JSON, loaded: Table) -> Told:
    """Ollama (docs/api.md, "Show Model Information"). The window is the one in force, else the model's own."""
    shown = _table(page)
    if not shown:
        return Told("Ollama", json_schema=True)
    info, listed = _table(shown.get("model_info")), shown.get("capabilities")
    can = {str(word) for word in cast("list[JSON]", listed)} if isinstance(listed, list) else None
    stated = re.search(r"^\s*num_ctx\s+(\d+)", str(shown.get("parameters") or ""), re.M)
    own = _count(info.get(f"{info.get('general.architecture')}.context_length"))
    return Told(
        "Ollama",
        _count(loaded.get("context_length")) or (int(stated[1]) if stated else own),
        images=None if can is None else "vision" in can,
        tools=None if can is None else "tools" in can,
        reasoning=None if can is None else "thinking" in can,
        json_schema=True,
        why_no_tools="its chat template has no part for tools" if can is not None and "tools" not in can else "",
    )


def _from_lm_studio(entry: Table) -> Told:
    """LM Studio (REST API v0). A model without `tool_use` is prompted by the server itself, so tools stay unknown."""
    listed = entry.get("capabilities")
    can = {str(word) for word in cast("list[JSON]", listed)} if isinstance(listed, list) else set[str]()
    kind = entry.get("type")
    return Told(
        "LM Studio",
        _count(entry.get("loaded_context_length")) or _count(entry.get("max_context_length")),
        images={"vlm": True, "llm": False}.get(str(kind)),
        tools=True if "tool_use" in can else None,
        json_schema=True,
    )
