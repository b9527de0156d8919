"""What the model layer costs beside the model: a streamed piece, a request, an import; ours, the bare SDK, a floor.

    python benchmarks/llm.py                     everything, about a minute
    python benchmarks/llm.py --only request      some parts: piece request decode import

Subjects take turns in fresh processes against one server on loopback that answers at once. The floor reads the same
bytes with aiohttp, splits events and parses each with `json.loads`, and does nothing else. Figures are processor time;
only ratios within one run mean something on another machine. The exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.llm.transport import Timeouts, Transport  # noqa: E402
from benchmarks.steps import VENDOR_SDKS, scripted_server  # noqa: E402

MODEL = "gpt-4o-mini"
PIECES = 2000
REQUESTS = 300
TURNS = 5
DECODED = ("chat", "responses", "messages", "gemini", "ollama")
Run = Callable[[], Awaitable[int]]


async def ours(url: str) -> Run:
    """The product's own client: events, retry, budget, assembler and all."""
    from app.config.settings import LLMSettings
    from app.llm.pool import LLMPool

    pool = LLMPool({"main": LLMSettings(name="main", model=MODEL, base_url=url, api_key="sk-none")})  # type: ignore[arg-type]
    client = pool.get("main")

    async def run() -> int:
        return len(await client.ask("hi"))

    return run


async def sdk(url: str) -> Run:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="sk-none", max_retries=0)

    async def run() -> int:
        parts: list[str] = []
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                parts.append(chunk.choices[0].delta.content)
        return len("".join(parts))

    return run


async def floor(url: str) -> Run:
    import aiohttp

    session = aiohttp.ClientSession(read_bufsize=2**18)
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hi"}]}

    async def run() -> int:
        parts: list[str] = []
        async with session.post(f"{url}/chat/completions", data=json.dumps(body)) as response:
            async for event in _events(response.content):
                choices = event["choices"]
                if choices and choices[0]["delta"].get("content"):
                    parts.append(choices[0]["delta"]["content"])
        return len("".join(parts))

    return run


async def _events(content: Any) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n\n")
        for line in lines:
            if line != b"data: [DONE]":
                yield json.loads(line[6:])


SUBJECTS = {"ours": ours, "sdk": sdk, "floor": floor}


async def probe(subject: str, url: str, repeats: int) -> float:
    """Processor seconds of one run, after a warm one."""
    run = await SUBJECTS[subject](url)
    length = await run()
    gc.collect()
    began = time.process_time()
    for _ in range(repeats):
        assert await run() == length
    return (time.process_time() - began) / repeats


async def decode(name: str) -> tuple[float, float]:
    """Processor seconds a piece: one dialect's decoder over its own events, and `json.loads` of the same."""
    from tests.fault_server import reply
    from tests.fault_server.record import Request
    from tests.llm.asking import ask
    from tests.llm.dialects import DIALECTS

    row = next(row for row in DIALECTS if row.name == name)
    adapter: Any = row.adapter(_Nowhere(), Transport(), Timeouts())
    asked = ask("hi")
    sent = adapter.encode(asked)
    path = "/" + adapter.request_url(asked).split("/", 3)[3]
    request = Request(1, 1, 0.0, "POST", path, {}, sent, json.loads(sent))
    text = " word7" * (20 * PIECES)
    events = row.wire().events(reply(text, stream_pieces=6, usage_at="finish"), request)
    payloads = [(event.name or "", event.payload) for event in events]
    decoder = adapter.decoder()
    gc.collect()
    began = time.process_time()
    for event, payload in payloads:
        decoder.feed(json.loads(payload), event)
    decoder.end(done=True)
    decoded = time.process_time()
    for _, payload in payloads:
        json.loads(payload)
    parsed = time.process_time()
    return (decoded - began) / len(payloads), (parsed - decoded) / len(payloads)


class _Nowhere:
    """In the place of a server: an address and nothing behind it."""

    url = "http://127.0.0.1:9/v1"
    root = "http://127.0.0.1:9"


def _measured(*arguments: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, __file__, "--probe", *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return [float(word) for word in done.stdout.split()]


def _medians(names: list[str], measure: Callable[[str], float]) -> dict[str, float]:
    """Subjects take turns, so that a busy moment hits all."""
    seen: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(TURNS):
        for name in names:
            seen[name].append(measure(name))
    return {name: statistics.median(values) for name, values in seen.items()}


def _goal(failed: list[str], what: str, figure: float, limit: float) -> None:
    print(f"  {'PASS' if figure <= limit else 'FAIL'}  {what}: {figure:.3g} (goal {limit:g})", flush=True)
    if figure > limit:
        failed.append(what)


def piece(root: str, failed: list[str]) -> None:
    print(f"\nA streamed piece of text, µs of processor time ({PIECES} pieces a reply)")
    rows = _medians(list(SUBJECTS), lambda name: _measured(name, f"{root}/u{PIECES}/v1", "5")[0] / PIECES * 1e6)
    _table(rows)
    _goal(failed, "a piece, ours / SDK", rows["ours"] / rows["sdk"], 0.5)


def request(root: str, failed: list[str]) -> None:
    print("\nA request with a reply of one piece, ms of processor time")
    rows = _medians(list(SUBJECTS), lambda name: _measured(name, f"{root}/u1/v1", str(REQUESTS))[0] * 1e3)
    _table(rows)
    _goal(failed, "a request, ours / SDK", rows["ours"] / rows["sdk"], 0.5)


def decoding(root: str, failed: list[str]) -> None:
    print("\nDecoding alone, µs a piece of text (json.loads of the same events), and the ratio")
    for name in DECODED:
        turns = [_measured(f"decode:{name}") for _ in range(TURNS)]
        decoded, parsed = (statistics.median(turn[at] for turn in turns) * 1e6 for at in (0, 1))
        print(f"  {name:10} {decoded:7.2f} ({parsed:.2f})   {decoded / parsed:.2f}")
        _goal(failed, f"decoding {name} / json.loads", decoded / parsed, 4)


def imports(root: str, failed: list[str]) -> None:
    print("\nimport app.llm.client, app.llm.pool and every adapter's module that a chat account needs")
    code = "import app.llm.client, app.llm.pool, app.llm.adapters.openai_chat, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()} & VENDOR_SDKS
    _goal(failed, f"vendor SDKs loaded {sorted(loaded) or ''}", len(loaded), 0)


def _table(rows: dict[str, float]) -> None:
    for name, figure in rows.items():
        against = f"   {figure / rows['sdk']:.2f} x SDK" if "sdk" in rows else ""
        print(f"  {name:6} {figure:8.2f}{against}")


PARTS = {"piece": piece, "request": request, "decode": decoding, "import": imports}


def main() -> int:
    if sys.argv[1:2] == ["--probe"]:
        subject, *rest = sys.argv[2:]
        if not rest:
            print(*asyncio.run(decode(subject.partition(":")[2])))
            return 0
        print(asyncio.run(probe(subject, rest[0], int(rest[1]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, by comma")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before the start")
    failed: list[str] = []
    with scripted_server() as root:
        for name in options.only.split(","):
            PARTS[name](root, failed)
    print(f"\n{len(failed)} goals missed" + "".join(f"\n  {what}" for what in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
