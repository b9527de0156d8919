"""The command line: arguments in, answer and exit code out. What people see while it runs is `terminal.py`'s."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parser(flow: bool) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="run_flow.py" if flow else "main.py")
    p.add_argument("task", nargs="?")
    p.add_argument("--prompt")
    p.add_argument("--agent", default="manus")
    p.add_argument("--config", type=Path)
    p.add_argument("--llm")
    p.add_argument("--model")
    p.add_argument("--workspace")
    p.add_argument("--max-steps", type=int)
    p.add_argument("--max-tokens", type=int)
    p.add_argument("--approve", default="ask")
    p.add_argument("--json", action="store_true")
    p.add_argument("--yes", action="store_true")
    if flow:
        p.add_argument("--agents", default="")
        p.add_argument("--parallel", type=int, default=1)
    return p


def main(argv: Sequence[str], *, flow: bool = False) -> int:
    options = parser(flow).parse_args(argv)
    return asyncio.run(_run(options, flow))


def run() -> None:
    sys.exit(main(sys.argv[1:]))


async def _run(options: argparse.Namespace, flow: bool) -> int:
    from app.build import build_agent, build_app, build_flow
    from app.config.detect import load_or_detect
    from app.llm.adapters.embedded import EmbeddedHooks
    from app.llm.embedded.fetch import consent_given
    from app.schema.run import RunContext
    from app.schema.usage import Ledger

    flags: dict[str, Any] = {"workspace.path": options.workspace}
    if options.llm in ("test", "embedded"):
        flags["llm.default.api_type"] = options.llm
        flags["llm.default.model"] = "scripted" if options.llm == "test" else "qwen2.5-coder-1.5b"
        options.llm = None
    config = await load_or_detect(options.config, env=os.environ, flags=flags)
    hooks = EmbeddedHooks(consent=consent_given) if options.yes else None
    app = build_app(config, approve=options.approve, embedded=hooks, llm=options.llm)
    sink = (lambda r: print(json.dumps(r.to_json(), ensure_ascii=False), flush=True)) if options.json else (lambda r: None)  # noqa: T201
    ctx = RunContext(sink=sink, ledger=Ledger(max_tokens=options.max_tokens))
    task = options.task or options.prompt
    try:
        if flow:
            names = [n for n in options.agents.split(",") if n]
            result = await build_flow(app, agents=names, parallel=options.parallel).run(task, ctx)
        else:
            result = await build_agent(app, options.agent).run(task, ctx)
    finally:
        await app.close()
    if not options.json:
        print(result.answer)  # noqa: T201
    return result.exit_code
