"""One measurement in a process of its own: `python probe.py SUBJECT PART JSON`, figures as JSON on the last line.

The parent (`steps.py`) starts it; every part but `first` warms up with one short run, so that imports and connections
are not counted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from subjects import MODEL, SUBJECTS, Deeds  # noqa: E402

PAGE = os.sysconf("SC_PAGE_SIZE")


def address(root: str, steps: int, *, delay: int = 0, calls: int = 1, hold: int = 0, pieces: int = 0) -> str:
    return f"{root}/n{steps}-d{delay}-k{calls}-h{hold}-x{pieces}/v1"


async def _opened(name: str, root: str, **script: int) -> Any:
    """A subject whose imports, connection and caches are warm, then pointed at its script."""
    if name == "ours":
        # Loaded once a process, when a conversation has grown long enough that its size matters.
        from app.llm.tokens import encoding, encoding_for

        encoding(encoding_for(MODEL))
    warm = SUBJECTS[name]()
    await warm.open(address(root, 3))
    await warm.run(Deeds().note)
    await warm.close()
    subject = SUBJECTS[name]()
    await subject.open(address(root, **script))
    return subject


async def cpu(name: str, root: str, steps: int) -> dict[str, float]:
    """Processor and wall milliseconds per model call of one agent; short runs are repeated, the median counts."""
    subject = await _opened(name, root, steps=steps)
    figures: list[tuple[float, float]] = []
    for _ in range(max(1, 200 // steps)):
        gc.collect()
        wall, busy = time.perf_counter(), time.process_time()
        await subject.run(Deeds().note)
        figures.append((time.process_time() - busy, time.perf_counter() - wall))
    await subject.close()
    scale = 1000 / (steps + 1)
    return {
        "cpu": statistics.median(f[0] for f in figures) * scale,
        "wall": statistics.median(f[1] for f in figures) * scale,
    }


async def agents(name: str, root: str, count: int, steps: int, delay: int) -> dict[str, float]:
    """Seconds until `count` agents that start together have ended, and how many of them failed."""
    subject = await _opened(name, root, steps=steps, delay=delay)
    deeds = Deeds()
    wall, busy = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*(subject.run(deeds.note) for _ in range(count)), return_exceptions=True)
    figures = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - busy}
    await subject.close()
    failed = [each for each in results if isinstance(each, BaseException)]
    if failed:
        print(f"{name}: {failed[0]!r}", file=sys.stderr)
    return {**figures, "failed": len(failed), "missing": count * steps - deeds.done}


async def memory(name: str, root: str, count: int, steps: int) -> dict[str, float]:
    """KB a live agent: resident memory while all wait for the reply after their last step, less that before them."""
    subject = await _opened(name, root, steps=steps, hold=3000)
    deeds = Deeds()
    before = _resident()
    runs = [asyncio.ensure_future(subject.run(deeds.note)) for _ in range(count)]
    while deeds.done < count * steps:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    held = sum(not run.done() for run in runs)
    figure = (_resident() - before) / count / 1000
    await asyncio.gather(*runs)
    await subject.close()
    return {"kb": figure, "held": held}


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def tools(name: str, root: str, blocking: int) -> dict[str, float]:
    """Milliseconds of a whole run (two model calls) whose first reply has 8 calls of 100 ms; median of 5."""
    subject = await _opened(name, root, steps=1, calls=8)
    deeds = Deeds()
    walls: list[float] = []
    for _ in range(5):
        wall = time.perf_counter()
        await subject.run(deeds.note_blocking if blocking else deeds.note_slowly)
        walls.append((time.perf_counter() - wall) * 1000)
    await subject.close()
    return {"first": walls[0], "wall": statistics.median(walls)}


async def lag(name: str, root: str, pieces: int) -> dict[str, float]:
    """Milliseconds from the server's write of a piece of text to the callback that shows it."""
    subject = await _opened(name, root, steps=0, pieces=pieces)
    lags: list[float] = []
    await subject.run(Deeds().note, lambda text: lags.append((time.monotonic_ns() - int(text)) / 1e6))
    await subject.close()
    return {"median": statistics.median(lags), "pieces": len(lags)}


async def first(name: str, root: str) -> dict[str, float]:
    """When the first request of this process reached the server."""
    subject = SUBJECTS[name]()
    await subject.open(address(root, 0))
    arrived = int(await subject.run(Deeds().note))
    await subject.close()
    return {"arrived": arrived}


PARTS: dict[str, Callable[..., Awaitable[dict[str, float]]]] = {
    "cpu": cpu,
    "agents": agents,
    "memory": memory,
    "tools": tools,
    "lag": lag,
    "first": first,
}


def main(subject: str, part: str, options: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures = asyncio.run(PARTS[part](subject, **json.loads(options)))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
