"""The fault server by hand: prints its address and serves until interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from tests.llm.dialects import DIALECTS

from . import behaviours
from .server import FaultServer, Script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fault_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--text", default="Hello from the fault server.", help="the answer when there is no script")
    parser.add_argument("--script", type=Path, help='JSON: [["reply", {"text": "hi"}], ["status", {"code": 429}], …]')
    parser.add_argument("--repeat", action="store_true", help="start the script again at its end")
    parser.add_argument("--model", action="append", default=[], help="a name for /v1/models; repeatable")
    parser.add_argument("--dialect", default="chat", help="a name of tests/llm/dialects.py: chat, responses, …")
    parser.add_argument("--accept-reasoning", action="store_true", help="reasoning may come back in the history")
    parser.add_argument("--no-strict", action="store_true", help="accept invalid requests")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


async def _serve(arguments: argparse.Namespace) -> None:
    wires = {row.name: row.wire for row in DIALECTS}
    server = FaultServer(
        _script(arguments),
        dialect=None if arguments.dialect == "chat" else wires[arguments.dialect](),
        port=arguments.port,
        strict=not arguments.no_strict,
        accept_reasoning=arguments.accept_reasoning,
        models=arguments.model or ["test-model"],
    )
    async with server:
        print(server.url, flush=True)  # noqa: T201
        await asyncio.Event().wait()


def _script(arguments: argparse.Namespace) -> Script:
    if not arguments.script:
        return lambda _: behaviours.reply(arguments.text)
    script = [_behaviour(*row) for row in json.loads(arguments.script.read_text(encoding="utf-8"))]
    endless = itertools.cycle(script)
    return (lambda _: next(endless)) if arguments.repeat else script


def _behaviour(name: str, options: dict[str, Any]) -> behaviours.Behaviour:
    """The constructor of this name; a behaviour to spoil (`of`) is written the same way."""
    if "of" in options:
        options = options | {"of": _behaviour(*options["of"])}
    return getattr(behaviours, name)(**options)


if __name__ == "__main__":
    main()
