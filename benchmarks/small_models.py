"""How often small local models finish small tasks, through the product's own command lines; not a test.

    python benchmarks/small_models.py                        the embedded model, 10 tries of each task
    python benchmarks/small_models.py --through server       the same file behind a server of its own, by base_url
    python benchmarks/small_models.py --base-url URL         any OpenAI-compatible server that runs already

The embedded model's file is downloaded into DRAGOMAN_HOME when it is missing. Every try gets a fresh workspace and a
fresh process; what counts is the files it leaves and its exit code. Times include everything after the first step
began, on this machine, with whatever else it is doing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app import paths  # noqa: E402
from app.llm.downloads import consent_given  # noqa: E402
from app.llm.embedded.catalog import DEFAULT_MODEL, find_model  # noqa: E402
from app.llm.embedded.fetch import ensure_model  # noqa: E402
from app.llm.embedded.server import EmbeddedServer  # noqa: E402


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    script: str
    prompt: str
    check: Callable[[Path], str]
    """Says what is wrong with the workspace; "" when it is right."""


@dataclass(frozen=True, slots=True)
class Try:
    problem: str
    seconds: float
    steps: int
    step_seconds: float | None


def read(workspace: Path, name: str) -> str:
    path = workspace / name
    return path.read_text(errors="replace") if path.is_file() else ""


def check_hello(workspace: Path) -> str:
    text = read(workspace, "hello.txt")
    return "" if text.removesuffix("\n") == "Hello, Dragoman!" else f"hello.txt is {text!r}"


def check_product(workspace: Path) -> str:
    text = read(workspace, "answer.txt")
    return "" if "391" in text else f"answer.txt is {text!r}"


def check_primes(workspace: Path) -> str:
    primes, total = read(workspace, "primes.txt"), read(workspace, "sum.txt")
    if [int(number) for number in re.findall(r"\d+", primes)] != [2, 3, 5, 7, 11]:
        return f"primes.txt is {primes!r}"
    return "" if re.findall(r"\d+", total)[-1:] == ["28"] else f"sum.txt is {total!r}"


TASKS = (
    Task("hello", "main.py", "Create a file hello.txt with exactly the text: Hello, Dragoman!", check_hello),
    Task("product", "main.py", "Compute 17*23 with Python, write the result to answer.txt, and answer.", check_product),
    Task(
        "primes",
        "run_flow.py",
        "Make a plan of two steps and carry it out: 1. write the first five primes to primes.txt;"
        " 2. write their sum, 28, to sum.txt.",
        check_primes,
    ),
)


async def try_once(task: Task, config: Path, options: argparse.Namespace, log: Path) -> Try:
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        began = time.monotonic()
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(ROOT / task.script)),
                *("--config", str(config), "--llm", "embedded", "--approve", "auto", "--json"),
                *("--workspace", folder, "--max-steps", str(options.max_steps), task.prompt),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
            try:
                output, _ = await asyncio.wait_for(process.communicate(), options.timeout)
            except TimeoutError:
                process.terminate()
                await process.wait()
                output = b""
        events = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
        log.with_suffix(".jsonl").write_bytes(output)
        problem = task.check(Path(folder)) or exit_problem(process.returncode, events)
        steps = int(events[-1].get("steps") or 0) if events else 0
        return Try(problem, time.monotonic() - began, steps, step_seconds(events, steps))


def exit_problem(code: int | None, events: list[dict[str, Any]]) -> str:
    if code == 0:
        return ""
    last = events[-1] if events else {}
    error = last.get("error") or {}
    return f"exit {code}: {last.get('stop_reason')} {error.get('code', '')} {error.get('message', '')}".strip()


def step_seconds(events: list[dict[str, Any]], steps: int) -> float | None:
    """Seconds from the first step to the end, for each step; None when there was none."""
    times = [datetime.fromisoformat(event["time"]) for event in events if event["type"] == "step_started"]
    if not times or not steps:
        return None
    return (datetime.fromisoformat(events[-1]["time"]) - times[0]).total_seconds() / steps


def report(task: Task, tries: list[Try]) -> float:
    passed = sum(not one.problem for one in tries)
    pace = [one.step_seconds for one in tries if one.step_seconds is not None]
    print(
        f"| {task.name} | {passed}/{len(tries)} | {passed / len(tries):.0%}"
        f" | {statistics.median(one.steps for one in tries):g}"
        f" | {f'{statistics.median(pace):.1f}' if pace else '-'}"
        f" | {statistics.median(one.seconds for one in tries):.1f} |",
        flush=True,
    )
    return passed / len(tries)


def write_config(folder: Path, **settings: str) -> Path:
    path = folder / "config.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**settings, "temperature": 0}.items()]
    path.write_text("\n".join(["[llm]", *lines, "", "[llm.embedded]", *lines, ""]))
    return path


def log_folder(wanted: str | None) -> Path:
    folder = Path(wanted or tempfile.mkdtemp(prefix="dragoman-bench-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def measure(options: argparse.Namespace) -> bool:
    folder = log_folder(options.keep)
    server: EmbeddedServer | None = None
    if options.base_url:
        key = options.api_key or "none"
        config = write_config(folder, api_type="openai", model=options.model, base_url=options.base_url, api_key=key)
    else:
        row = find_model(options.model)
        path = await ensure_model(row, paths.runtime_home(), consent=consent_given, progress=show)
        config = write_config(folder, api_type="embedded", model=options.model)
        if options.through == "server":
            server = EmbeddedServer(path, row, progress=show)
            url = await server.start()
            config = write_config(folder, api_type="openai", model=row.name, base_url=url, api_key=server.api_key)
    print(f"logs: {folder}", file=sys.stderr)
    print("| task | passed | rate | steps | s/step | s/run |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    try:
        rates = [report(task, await tries_of(task, config, options, folder)) for task in chosen(options)]
    finally:
        if server is not None:
            await server.close()
    return min(rates) >= options.require


async def tries_of(task: Task, config: Path, options: argparse.Namespace, folder: Path) -> list[Try]:
    tries: list[Try] = []
    for number in range(1, options.tries + 1):
        one = await try_once(task, config, options, folder / f"{task.name}-{number}.log")
        print(f"{task.name} {number}: {one.problem or 'ok'} ({one.seconds:.0f} s)", file=sys.stderr, flush=True)
        tries.append(one)
    return tries


def chosen(options: argparse.Namespace) -> list[Task]:
    return [task for task in TASKS if not options.task or task.name in options.task]


def show(progress: Any) -> None:
    print(f"\r{progress.text}   ", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="success rate and pace of small local models")
    parser.add_argument("--tries", type=int, default=10, metavar="N")
    parser.add_argument("--task", action="append", choices=[task.name for task in TASKS])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--through", choices=["embedded", "server"], default="embedded")
    parser.add_argument("--base-url", metavar="URL")
    parser.add_argument("--api-key", metavar="KEY")
    parser.add_argument("--max-steps", type=int, default=12, metavar="N")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of one try")
    parser.add_argument("--require", type=float, default=0.0, metavar="RATE", help="exit 1 below this success rate")
    parser.add_argument("--keep", metavar="DIR", help="where logs and event streams go")
    return 0 if asyncio.run(measure(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(main())
