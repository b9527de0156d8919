"""What keeping a session costs: its size against the raw text, opening it against bare SQLite, forking, recording.

    python -m benchmarks.sessions [--turns 1000] [--json]

A turn is a task, a call, a result of about two kilobytes and an answer. Everything is measured in this run, in a folder
of its own; ratios are what matters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from app.memory.memory import Memory
from app.memory.sessions import Session, Sessions
from app.schema.message import Message, ToolCallBlock, assistant_message, tool_result_message, user_message

WORDS = [f"{random.Random(n).choice('bcdfgklmnprst')}{random.Random(n + 1).choice('aeiou')}{n:x}" for n in range(4000)]


def prose(chance: random.Random, characters: int) -> str:
    words: list[str] = []
    while sum(map(len, words)) + len(words) < characters:
        words.append(chance.choice(WORDS))
    return " ".join(words)


def turn(chance: random.Random, number: int) -> list[Message]:
    call = ToolCallBlock(f"call-{number}", "bash", json.dumps({"command": prose(chance, 120)}))
    return [
        user_message(prose(chance, 200)),
        assistant_message([call], provider="test", model="m"),
        tool_result_message(call.id, prose(chance, 2000)),
        assistant_message(prose(chance, 500), provider="test", model="m"),
    ]


def raw_bytes(messages: list[Message]) -> int:
    """The text that a person or a model wrote, and nothing else."""
    total = 0
    for message in messages:
        texts = [message.text, *(result.text for result in message.tool_results)]
        texts += [f"{call.name}{call.arguments}" for call in message.tool_calls]
        total += sum(len(text.encode()) for text in texts)
    return total


async def fill(session: Session, turns: int) -> tuple[list[Message], list[float]]:
    """Record as an agent does; returns the messages and the seconds that the loop was held up by each."""
    memory, chance = Memory(), random.Random(7)
    session.attach(memory)
    held: list[float] = []
    for number in range(turns):
        for message in turn(chance, number):
            began = time.perf_counter()
            memory.add(message)
            held.append(time.perf_counter() - began)
            for call in memory.open_calls:
                await memory.starting(call, "once")
            await memory.settled()
    return list(memory.messages), held


def best(work: Callable[[], object], times: int = 5) -> float:
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def open_it(folder: Path) -> None:
    with closing(Sessions(folder)) as sessions:
        session = sessions.resume("last")
        session.attach(Memory())
        session.close()


def read_bare(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "sessions.db")) as db:
        db.execute("SELECT id, seq, time, kind, thread, data FROM event").fetchall()
        db.execute("SELECT hash, data FROM body").fetchall()


def measure(turns: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        large, small = Path(place) / "large", Path(place) / "small"
        with closing(Sessions(large)) as sessions:
            session = sessions.create()
            began = time.perf_counter()
            messages, held = asyncio.run(fill(session, turns))
            filled = time.perf_counter() - began
            session.close()
        size = sum(path.stat().st_size for path in large.iterdir() if path.is_file())
        opened, bare = best(lambda: open_it(large)), best(lambda: read_bare(large))
        with closing(Sessions(large)) as sessions:
            fork_large = statistics.median(best(lambda: sessions.fork("last"), 1) for _ in range(20))
        with closing(Sessions(small)) as sessions:
            session = sessions.create()
            asyncio.run(fill(session, 10))
            session.close()
            fork_small = statistics.median(best(lambda: sessions.fork("last"), 1) for _ in range(20))
    return {
        "turns": turns,
        "raw_mb": raw_bytes(messages) / 1e6,
        "size_ratio": size / raw_bytes(messages),
        "open_s": opened,
        "open_ratio": opened / bare,
        "fork_10_ms": fork_small * 1e3,
        f"fork_{turns}_ms": fork_large * 1e3,
        "fork_ratio": fork_large / fork_small,
        "message_ms": filled / len(messages) * 1e3,
        "loop_held_us": statistics.median(held) * 1e6,
        "loop_held_worst_ms": max(held) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.turns)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<20} {value:10.3f}")


if __name__ == "__main__":
    main()
