"""`doctor`: looks at this machine and says what works and what is missing; changes nothing, sends no text anywhere."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app import __version__, paths
from app.config.detect import LOCAL_PORTS, detect_model
from app.config.load import load_config
from app.config.settings import Config
from app.config.vendors import VENDORS, key_from_env
from app.llm.embedded.catalog import find_model
from app.schema.errors import ConfigError

OLDEST_PYTHON = (3, 11)
ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `ok` is False for what stops a run, None for what is merely not there."""

    ok: bool | None
    subject: str
    words: str

    def __str__(self) -> str:
        mark = {True: "✓", False: "✗", None: "-"}[self.ok]
        return f"{mark} {self.subject:<15} {self.words}"


async def examine(options: argparse.Namespace, env: Mapping[str, str] = os.environ) -> AsyncIterator[Finding]:
    """Everything that is looked at, in the order of a first start."""
    version = platform.python_version()
    yield Finding(sys.version_info >= OLDEST_PYTHON, "python", f"{version} ({sys.executable}), dragoman {__version__}")
    try:
        config = load_config(
            Path(options.config) if options.config else None, env=env, flags={"workspace.path": options.workspace}
        )
    except ConfigError as error:
        yield Finding(False, "configuration", "; ".join(error.message.splitlines()))
        config = Config()
    else:
        yield Finding(True if config.path else None, "configuration", str(config.path or "no file; that is fine"))
    keys = [vendor.label for vendor in VENDORS.values() if key_from_env(vendor, env)]
    yield Finding(True if keys else None, "keys", f"set for {', '.join(keys)}" if keys else "no vendor's key is set")
    servers = [finding async for finding in _servers()]
    for finding in servers:
        yield finding
    embedded = _embedded()
    yield embedded
    yield _model(config, usable=bool(keys) or any(server.ok for server in servers) or embedded.ok is not None)
    for finding in _folders(config):
        yield finding
    yield _sandbox()
    yield _terminal(env)


async def _servers() -> AsyncIterator[Finding]:
    """The local model servers, all asked at once."""
    asked = [detect_model({}, timeout_s=ASK_S, ports={name: port}) for name, port in LOCAL_PORTS.items()]
    for (name, port), found in zip(LOCAL_PORTS.items(), await asyncio.gather(*asked), strict=True):
        # Without a server the search goes on to the embedded model, which is another line's matter.
        here = found is not None and found.api_type == name
        words = f"answers on port {port} with {found.model}" if here and found else f"nothing answers on port {port}"
        yield Finding(True if here else None, VENDORS[name].label, words)


def _embedded() -> Finding:
    if importlib.util.find_spec("xllamacpp") is None:
        return Finding(None, "embedded model", "not installed; pip install 'dragoman[embedded]'")
    model = find_model(VENDORS["embedded"].default_model)
    here = (paths.runtime_home() / "models" / model.file).is_file()
    return Finding(True, "embedded model", f"{model.name}, " + ("on this machine" if here else "not downloaded yet"))


def _model(config: Config, *, usable: bool) -> Finding:
    default = config.llm.get("default")
    if default is not None:
        return Finding(True, "model", f"{default.model or '(no model named)'} ([llm], {default.api_type})")
    if usable:
        return Finding(True, "model", "none is configured; one of the above is used")
    return Finding(False, "model", "none; set a key, start a local server, or configure [llm] (docs/configuration.md)")


def _folders(config: Config) -> Iterator[Finding]:
    try:
        folder = paths.prepare_workspace(paths.workspace_dir(config.workspace.path or None))
        yield Finding(True, "workspace", f"{folder} can be written")
    except ConfigError as error:
        yield Finding(False, "workspace", error.message)
    home = paths.runtime_home()
    place = next(parent for parent in (home, *home.parents) if parent.exists())
    writable = os.access(place, os.W_OK) and place.is_dir()
    yield Finding(writable or None, "runtime home", f"{home} {'can' if writable else 'cannot'} be written")


def _sandbox() -> Finding:
    found = [name for name in ("bwrap", "docker") if shutil.which(name)]
    return Finding(
        True if found else None, "sandbox tools", ", ".join(found) or "neither bwrap nor docker is installed"
    )


def _terminal(env: Mapping[str, str]) -> Finding:
    if not sys.stderr.isatty():
        return Finding(None, "terminal", "standard error is no terminal; progress comes as plain lines")
    size = shutil.get_terminal_size()
    dumb = env.get("TERM", "") in ("", "dumb")
    colour = "no colour" if dumb or env.get("NO_COLOR") else "colour"
    return Finding(True, "terminal", f"{size.columns} × {size.lines}, {'plain' if dumb else 'full'}, {colour}")
