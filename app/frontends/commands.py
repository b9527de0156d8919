"""The sub-commands that run no agent: what is configured, what is reachable, what there is. Output is their answer."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.frontends.front import Front
from app.schema.errors import UsageError

if TYPE_CHECKING:
    pass

Command = Callable[[Front, argparse.Namespace], Coroutine[Any, Any, int]]


def run_command(front: Front, options: argparse.Namespace) -> int:
    """Run the sub-command of these options; returns the exit code. Raises `DragomanError`."""
    name = f"{options.command} {options.action}" if options.command == "config" else options.command
    return asyncio.run(COMMANDS[name](front, options))


async def _serve(front: Front, options: argparse.Namespace) -> int:
    raise UsageError("this version does not serve over HTTP", hint="run tasks with: python main.py PROMPT --json")


async def _sessions(front: Front, options: argparse.Namespace) -> int:
    from app.frontends.sessions import run_sessions

    return run_sessions(front, options)


async def _doctor(front: Front, options: argparse.Namespace) -> int:
    from app.frontends.doctor import examine

    sound = True
    async for finding in examine(options):
        sound = sound and finding.ok is not False
        front.say(str(finding))
    return 0 if sound else 1


async def _models(front: Front, options: argparse.Namespace) -> int:
    from app.frontends.models import run_models

    return await run_models(front, options)


async def _tools(front: Front, options: argparse.Namespace) -> int:
    from app.build import build_app
    from app.config.load import load_config

    app = build_app(load_config(_path(options), env=os.environ, flags={"workspace.path": options.workspace}))
    try:
        _table(front, ((tool.name, tool.description.splitlines()[0]) for tool in app.default_tools()))
    finally:
        await app.close()
    return 0


async def _config_check(front: Front, options: argparse.Namespace) -> int:
    from app.config.load import load_config
    from app.config.report import describe

    config = load_config(_path(options), env=os.environ)
    front.redactor.learn(config)
    front.say(describe(config))
    return 0


async def _config_import(front: Front, options: argparse.Namespace) -> int:
    return _import(front, options)


def _import(front: Front, options: argparse.Namespace) -> int:
    from app.config.convert import convert_ini

    try:
        text = Path(options.file).expanduser().read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise UsageError(f"{options.file} cannot be read: {error.strerror or error}", hint="check the path") from None
    converted = convert_ini(text)
    if options.output is None:
        front.write(converted)
        return 0
    try:
        with Path(options.output).expanduser().open("x", encoding="utf-8") as file:
            file.write(converted)
    except FileExistsError:
        raise UsageError(f"{options.output} exists already", hint="remove it or choose another name for -o") from None
    except OSError as error:
        raise UsageError(f"{options.output} cannot be written: {error.strerror or error}") from None
    front.tell(f"wrote {options.output}")
    return 0


def _path(options: argparse.Namespace) -> Path | None:
    return Path(options.config) if options.config else None


def _table(front: Front, rows: Iterable[tuple[str, str]]) -> None:
    known = list(rows)
    width = max(len(name) for name, _ in known)
    for name, words in known:
        front.say(f"{name:<{width}}  {words}")


COMMANDS: dict[str, Command] = {
    "serve": _serve,
    "doctor": _doctor,
    "sessions": _sessions,
    "models": _models,
    "tools": _tools,
    "config check": _config_check,
    "config import": _config_import,
}
