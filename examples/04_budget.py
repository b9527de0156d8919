"""Limits of a run: tokens, time and steps. A limit that is hit is an ordinary result, with what was achieved."""

import asyncio
import tempfile
import time

from app.build import build_agent, build_app
from app.config.settings import Config
from app.llm.adapters.scripted import ScriptedAdapter, Turn, call
from app.schema.request import ModelRequest
from app.schema.run import RunContext
from app.schema.usage import Ledger, Usage


def never_done(request: ModelRequest) -> Turn:
    usage = Usage(input_tokens=1_500, output_tokens=20)
    return call("bash", {"command": f"echo step {len(request.messages)}"}, usage=usage)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = build_app(Config(), workspace=folder, adapters={"default": ScriptedAdapter(never_done)})
        ctx = RunContext(ledger=Ledger(max_tokens=5_000), deadline=time.monotonic() + 60)
        result = await build_agent(app).run("Go on for ever", ctx)
        assert result.stop_reason == "budget" and result.error is not None
        print(f"stopped by {result.stop_reason} after {result.steps} steps: {result.error.message}")
        await app.close()


asyncio.run(main())
