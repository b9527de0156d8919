"""Shows a configuration to its owner: what is in force, where it comes from, what looks wrong. Never a secret."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import cast

from pydantic import SecretStr

from app.config.check import settable, table_label
from app.config.settings import Config, LLMSettings, Settings
from app.config.sources import KeyPath, short
from app.config.values import mask_url
from app.config.vendors import vendor_for

AGENTS = frozenset(
    {"manus", "planner", "browser", "coder", "casual", "file", "mcp", "data_analysis", "swe", "summary", "vision"}
)
"""Agents that take the model configuration of their own name, and other work that does."""

_HIDDEN_TABLES = frozenset({"headers", "env"})


def describe(config: Config, *, used_names: Collection[str] = AGENTS) -> str:
    """The text of `config check`: every table and key with value and origin, then the warnings.

    `used_names` are the model configurations that something asks for by name; any other one is called unused
    unless `[agents.<name>] llm` or a `fallback` names it.
    """
    lines = [f"Configuration: {short(config.path) if config.path else 'no file'}"]
    for name, models in (("llm", config.llm), ("agents", config.agents)):
        for key in sorted(models, key=lambda item: (item != "default", item)):
            lines += _table(config, (name, key), cast(Settings, models[key]))
    for name in settable(Config):
        value = getattr(config, name)
        if isinstance(value, Settings):
            lines += _table(config, (name,), value)
    warnings = list(config_warnings(config, used_names=used_names))
    lines += ["", "Warnings:" if warnings else "Warnings: none", *(f"  {warning}" for warning in warnings)]
    return "\n".join(lines)


def config_warnings(config: Config, *, used_names: Collection[str] = AGENTS) -> Iterator[str]:
    """What a user should know, a sentence each: unused tables, placeholder or missing keys, unknown labels."""
    if "default" not in config.llm:
        yield "[llm] names no model; a local server or the embedded model is looked for at the start"
    if config.mcp.servers:
        yield f"MCP servers are not used by this version: {', '.join(config.mcp.servers)}"
    used = {"default", *used_names, *(agent.llm for agent in config.agents.values() if agent.llm)}
    used |= {name.lower() for name in config.agents}
    used |= {other for settings in config.llm.values() for other in settings.fallback}
    for name, settings in config.llm.items():
        if name not in used:
            yield f"{_label(('llm', name))} is used by nothing; name it in [agents.<name>] llm, or remove it"
        yield from _account_warnings(config, name, settings)


def _account_warnings(config: Config, name: str, settings: LLMSettings) -> Iterator[str]:
    label = _label(("llm", name))
    vendor, known = vendor_for(settings.api_type, settings.base_url)
    if not known:
        yield f'{label} api_type "{settings.api_type}" is an unknown label; it is read as "openai"'
    if not settings.model:
        yield f"{label} names no model"
    if settings.api_key.get_secret_value() or (vendor and vendor.local):
        return
    variables = " or ".join(vendor.key_env) if vendor else "DRAGOMAN_API_KEY"
    origin = config.origins.get(f"llm.{name}.api_key", "")
    if origin.startswith("placeholder"):
        yield f"{label} api_key is a {origin}; put your key there or set {variables}"
    elif not (vendor and vendor.name == "aws"):  # Bedrock also takes the usual AWS credentials
        yield f"{label} has no key; set {variables}"


def _table(config: Config, path: KeyPath, settings: Settings) -> Iterator[str]:
    yield ""
    yield _label(path)
    inner: list[tuple[KeyPath, Settings]] = []
    for name in settable(type(settings)):
        value: object = getattr(settings, name)
        if isinstance(value, Settings):
            inner.append(((*path, name), value))
        elif isinstance(value, dict) and value and name == "servers":
            inner += [((*path, name, key), item) for key, item in cast(dict[str, Settings], value).items()]
        else:
            origin = config.origins.get(".".join((*path, name)), "default")
            yield f"  {name} = {_shown(name, cast(object, value), origin)}"
    for inner_path, table in inner:
        yield from _table(config, inner_path, table)


def _shown(name: str, value: object, origin: str) -> str:
    if isinstance(value, SecretStr):
        return f"set ({origin})" if value.get_secret_value() else f"not set{_when_telling(origin)}"
    if value is None:
        return f"not set{_when_telling(origin)}"
    if name in _HIDDEN_TABLES and isinstance(value, dict):
        names = ", ".join(cast(Mapping[str, str], value)) or "none"
        return f"{names} (values hidden; {origin})"
    if name == "args":
        return f"{len(cast(tuple[str, ...], value))} arguments ({origin})"
    shown = mask_url(value) if isinstance(value, str) else value
    return f"{json.dumps(shown, ensure_ascii=False, default=str)} ({origin})"


def _when_telling(origin: str) -> str:
    return "" if origin == "default" else f" ({origin})"


def _label(path: KeyPath) -> str:
    """`[llm]` is how people write `[llm.default]`."""
    return table_label(path[:1] + path[2:] if path[:2] == ("llm", "default") else path)
