"""Builds the configuration in force: detected model, file, environment, flags, each laid over the one before.

Finding and decoding files is `sources.py`, judging tables is `check.py`, working out the models is `models.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from app.config.check import Findings, check_table, nearest_hint, settable, table_label, unknown_table
from app.config.models import merged, model_names, resolve_models
from app.config.settings import AgentSettings, Config, LLMSettings, McpServerSettings, Settings
from app.config.sources import KeyPath, Place, Source, Table, find_config, find_mcp, read_json, read_toml
from app.config.values import expand_references, is_placeholder

ENVIRONMENT: tuple[tuple[str, KeyPath, type], ...] = (
    ("DRAGOMAN_MODEL", ("llm", "model"), str),
    ("DRAGOMAN_BASE_URL", ("llm", "base_url"), str),
    ("DRAGOMAN_API_KEY", ("llm", "api_key"), str),
    ("DRAGOMAN_API_TYPE", ("llm", "api_type"), str),
    ("DRAGOMAN_MAX_STEPS", ("budget", "max_steps"), int),
    ("DRAGOMAN_MAX_TOKENS", ("budget", "max_tokens"), int),
    ("DRAGOMAN_MAX_COST", ("budget", "max_cost"), float),
    ("DRAGOMAN_MAX_REQUESTS", ("budget", "max_requests"), int),
    ("DRAGOMAN_TIMEOUT", ("budget", "timeout_s"), float),
    ("WORK_DIR", ("workspace", "path"), str),
    ("DRAGOMAN_WORKSPACE", ("workspace", "path"), str),
)
"""Variables that override the file; a later row wins over an earlier one for the same key."""

FLAG_NAMES: Mapping[str, str] = {
    "llm.*.model": "--model",
    "agents.*.llm": "--llm",
    "agents.*.max_steps": "--max-steps",
    "budget.max_steps": "--max-steps",
    "budget.max_tokens": "--max-tokens",
    "budget.max_cost": "--max-cost",
    "budget.max_requests": "--max-requests",
    "budget.timeout_s": "--timeout",
    "workspace.path": "--workspace",
    "sandbox.mode": "--sandbox",
}
"""How people call the flag behind a dotted key."""

_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\t\n\r\b\f]")
_DAYTONA_KEY = ("daytona", "daytona_api_key")
_HINT = "docs/configuration.md and config/config.example.toml show every setting"


def load_config(
    path: Path | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
    detected: LLMSettings | None = None,
) -> Config:
    """The configuration in force: `detected` < file < `env` < `flags` (dotted keys such as `llm.default.model`).

    Without a file only built-in values, `env` and `flags` count; `llm` has no `default` then unless they, or a
    vendor's key in `env`, name an account. A flag whose value is None does not count. Raises `ConfigError` with one
    line per problem, each naming place, table and key; no line ever holds a secret.
    """
    file = find_config(path, env)
    layers = read_toml(file) if file else Source()
    findings = Findings(layers.places)
    _add_mcp_servers(layers, find_mcp(file), findings)
    _expand(layers.tree, (), env, findings)
    _fold_default(layers)
    model_in_file = bool(layers.get(("llm", "model")))
    _apply_environment(layers, env)
    _apply_flags(layers, flags or {}, findings)

    sections = _check_sections(layers.tree, findings)
    models, model_places = resolve_models(layers, env, findings, detected=detected, model_in_file=model_in_file)
    sections["agents"] = _check_agents(layers.tree.get("agents", {}), model_names(layers.table("llm")), findings)
    findings.raise_if_any(_HINT)
    config = Config(llm=models, path=file, **sections)  # pyright: ignore[reportArgumentType]
    return config.model_copy(update={"origins": _origins(config, {**layers.places, **model_places})})


def _add_mcp_servers(layers: Source, path: Path | None, findings: Findings) -> None:
    if path is None:
        return
    source = read_json(path)
    place = source.places[()]
    for key in source.tree.keys() - {"mcpServers"}:
        findings.found.append((place, f'no key "{key}" is known here{nearest_hint(key, ["mcpServers"])}'))
    servers = source.tree.get("mcpServers", {})
    if not isinstance(servers, dict):
        findings.found.append((place, "mcpServers must be a table of servers by name"))
        return
    for name, server in cast(Table, servers).items():
        layers.set(("mcp", "servers", name), server, place)


def _expand(value: object, path: KeyPath, env: Mapping[str, str], findings: Findings) -> object:
    """Replace references in place, and say where a text looks like a Windows path that TOML has already changed."""
    if isinstance(value, dict):
        table = cast(Table, value)
        for key in list(table):
            table[key] = _expand(table[key], (*path, key), env, findings)
        return table
    if isinstance(value, list):
        return [_expand(item, path, env, findings) for item in cast(list[object], value)]
    if not isinstance(value, str):
        return value
    subject = f"{table_label(path[:-1])} {path[-1]}" if path else ""
    if _WINDOWS_PATH.match(value):
        findings.add(path, f"{subject} is a Windows path in double quotes, where \\t or \\n is no longer a backslash")
    text, problems = expand_references(value, env)
    for problem in problems:
        findings.add(path, f"{subject} {problem}")
    return text


def _fold_default(layers: Source) -> None:
    """`[llm.default]` says the same as `[llm]`."""
    llm = layers.table("llm")
    if isinstance(llm.get("default"), dict):
        layers.tree["llm"] = merged(llm, cast(Table, llm.pop("default")))
        moved = {path: place for path, place in layers.places.items() if path[:2] == ("llm", "default")}
        layers.places.update({("llm", *path[2:]): place for path, place in moved.items()})


def _apply_environment(layers: Source, env: Mapping[str, str]) -> None:
    for variable, path, kind in ENVIRONMENT:
        if text := env.get(variable, "").strip():
            _override(layers, path, _parsed(text, kind), Place(f"env {variable}"))
    key = layers.get(_DAYTONA_KEY)
    if isinstance(key, str) and (not key or is_placeholder(key)):
        layers.remove(_DAYTONA_KEY)
    if env.get("DAYTONA_API_KEY") and not layers.get(_DAYTONA_KEY):
        layers.set(_DAYTONA_KEY, env["DAYTONA_API_KEY"], Place("env DAYTONA_API_KEY"))


def _apply_flags(layers: Source, flags: Mapping[str, object], findings: Findings) -> None:
    for dotted, value in flags.items():
        if value is None:
            continue
        first, *middle, last = dotted.split(".")
        general = f"{first}.*.{last}" if middle else dotted
        place = Place(f"flag {FLAG_NAMES.get(general, dotted)}")
        name = ".".join(middle)
        known = model_names(layers.table("llm"))
        if first == "llm" and name not in known:
            findings.found.append((place, f"there is no {table_label(('llm', name))}{nearest_hint(name, known)}"))
            continue
        inner = () if not middle or (first == "llm" and name == "default") else (name,)
        _override(layers, (first, *inner, last), value, place)


def _override(layers: Source, path: KeyPath, value: object, place: Place) -> None:
    layers.set(path, value, place)
    if path == ("budget", "max_steps"):  # a later layer wins over an agent's own limit in the file
        for agent in layers.table("agents"):
            layers.remove(("agents", agent, "max_steps"))


def _parsed(text: str, kind: type) -> object:
    """A number where one is wanted; other text stays as it is, and the check says what is wrong with it."""
    try:
        return kind(text)
    except ValueError:
        return text


def _check_sections(tree: Table, findings: Findings) -> dict[str, object]:
    known = settable(Config)
    for name in tree.keys() - set(known):
        unknown_table(name, tree[name], findings)
    sections: dict[str, object] = {}
    for name in tree.keys() & (set(known) - {"llm", "agents"}):
        model = cast(type[Settings], Config.model_fields[name].annotation)
        sections[name] = check_table(model, tree[name], (name,), findings)
    mcp = sections.get("mcp")
    if isinstance(mcp, Settings):
        servers = cast(Mapping[str, McpServerSettings], getattr(mcp, "servers"))  # noqa: B009
        typed = {name: _typed_server(name, server, findings) for name, server in servers.items()}
        sections["mcp"] = mcp.model_copy(update={"servers": typed})
    return sections


def _typed_server(name: str, server: McpServerSettings, findings: Findings) -> McpServerSettings:
    """The server with its type: a command runs on stdio, an address ending in /sse speaks SSE, another one HTTP."""
    path = ("mcp", "servers", name)
    by_url = "sse" if (server.url or "").split("?")[0].rstrip("/").endswith("/sse") else "http"
    kind = server.type or ("stdio" if server.command else by_url)
    needed = "command" if kind == "stdio" else "url"
    if not server.command and not server.url:
        findings.add(path, f'the MCP server "{name}" needs a command or a url')
    elif not getattr(server, needed):
        findings.add(path, f'the MCP server "{name}" of type {kind} needs a {needed}')
    return server.model_copy(update={"type": kind})


def _check_agents(raw: object, models: list[str], findings: Findings) -> dict[str, AgentSettings]:
    if not isinstance(raw, dict):
        findings.add(("agents",), "[agents] must be a table of agents by name")
        return {}
    agents: dict[str, AgentSettings] = {}
    for name, table in cast(Table, raw).items():
        path = ("agents", name)
        agent = check_table(AgentSettings, table, path, findings)
        if agent is not None:
            agents[name] = agent
        model = cast(Table, table).get("llm") if isinstance(table, dict) else None
        if isinstance(model, str) and model and model not in models:
            missing = f"there is no {table_label(('llm', model))}{nearest_hint(model, models)}"
            findings.add((*path, "llm"), f'{table_label(path)} llm names "{model}", but {missing}')
    return agents


def _origins(config: Config, places: Mapping[KeyPath, Place]) -> dict[str, str]:
    return {".".join(path): str(places.get(path, "default")) for path in _leaves(config, ())}


def _leaves(value: object, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(value, Settings):
        for name in settable(type(value)):
            yield from _leaves(getattr(value, name), (*path, name))
    elif isinstance(value, dict) and all(isinstance(item, Settings) for item in cast(Table, value).values()):
        for name, item in cast(Table, value).items():
            yield from _leaves(item, (*path, name))
    else:
        yield path
