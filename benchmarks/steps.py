"""What a step costs beside the model: our agent against a bare SDK loop and a floor, on one scripted server.

    python benchmarks/steps.py                       everything, several minutes
    python benchmarks/steps.py --quick               fewer repetitions, no long SDK runs
    python benchmarks/steps.py --only cpu,tools      some parts: cpu agents many memory tools lag cold help

Every figure comes from a fresh process, and subjects take turns. Processor time, lag and memory are medians; a wall
time that is held against a fixed limit is the best of its repetitions, because a busy machine can only add to it.
Only ratios within one run mean something on another machine. Each goal is printed with PASS or FAIL; the exit code is
1 when one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SPEED = ROOT / "benchmarks" / "speed"
SIZES = (20, 50, 100, 200, 400)
VENDOR_SDKS = frozenset({"openai", "anthropic", "boto3", "botocore", "litellm", "google"})
SETTINGS = re.compile(r".*_PROXY|.*_API_KEY|.*_BASE_URL|DRAGOMAN_.*", re.IGNORECASE)
"""Variables that would send a subject elsewhere."""
WORST = frozenset({"failed", "missing"})
"""Figures of which the largest counts."""

Figures = dict[str, float]
Pick = Callable[[Iterable[float]], float]


@dataclass(slots=True)
class Bench:
    """One run: where the server is, how often to repeat, and which goals failed."""

    root: str
    quick: bool
    failed: list[str] = field(default_factory=list)

    def probe(self, subject: str, part: str, **options: Any) -> Figures:
        """One measurement in a fresh process."""
        arguments = json.dumps({"root": self.root, **options})
        return json.loads(_output([str(SPEED / "probe.py"), subject, part, arguments]).splitlines()[-1])

    def measure(
        self, subjects: Sequence[str], times: int, part: str, *, pick: Pick = statistics.median, **options: Any
    ) -> dict[str, Figures]:
        """One figure of each kind by subject; subjects take turns, so that a busy moment hits all."""
        seen: dict[str, list[Figures]] = {subject: [] for subject in subjects}
        for _ in range(times):
            for subject in subjects:
                seen[subject].append(self.probe(subject, part, **options))
        return {
            subject: {name: (max if name in WORST else pick)(row[name] for row in rows) for name in rows[0]}
            for subject, rows in seen.items()
        }

    def goal(self, what: str, figure: float, limit: float, unit: str = "x", *, stretch: float | None = None) -> None:
        met = figure <= limit
        more = "" if stretch is None else f", stretch {stretch:g}{unit} {'met' if figure <= stretch else 'missed'}"
        print(f"  {'PASS' if met else 'FAIL'}  {what}: {figure:.3g}{unit} (goal {limit:g}{unit}{more})", flush=True)
        if not met:
            self.failed.append(what)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not SETTINGS.fullmatch(name)}


def _output(arguments: list[str], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=_environment() | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


@contextmanager
def scripted_server() -> Iterator[str]:
    command = [sys.executable, str(SPEED / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        server.communicate()


def cpu(bench: Bench) -> None:
    print("\nCPU and wall ms a model call, one agent, no server delay")
    print(f"{'steps':>7} {'ours':>15} {'floor':>15} {'SDK':>15} {'SDK, whole':>15} {'ours/SDK':>9} {'ours/floor':>10}")
    ours: dict[int, float] = {}
    against: dict[int, float] = {}
    for steps in SIZES:
        rows = bench.measure(("ours", "floor"), 3 if bench.quick else 7, "cpu", steps=steps)
        if steps <= 50 or not bench.quick:
            # The SDK's cost grows with the square of the steps; its long runs are measured once.
            rows |= bench.measure(("sdk", "sdk-json"), 3 if steps <= 50 else 1, "cpu", steps=steps)
        elif steps <= 200:
            rows |= bench.measure(("sdk",), 1, "cpu", steps=steps)
        ours[steps] = rows["ours"]["cpu"]
        ratio = f"{ours[steps] / rows['floor']['cpu']:10.2f}"
        if "sdk" in rows:
            against[steps] = ours[steps] / rows["sdk"]["cpu"]
        cells = [_pair(rows.get(name)) for name in ("ours", "floor", "sdk", "sdk-json")]
        share = f"{against[steps]:9.3f}" if steps in against else f"{'':>9}"
        print(f"{steps:>7} {' '.join(cells)} {share} {ratio}", flush=True)
    bench.goal("CPU a call at 20 steps / SDK", against[20], 0.25, stretch=0.15)
    bench.goal("CPU a call at 200 steps / SDK", against[200], 0.05, stretch=0.03)
    bench.goal("CPU a call at 400 steps / at 100", ours[400] / ours[100], 1.5)


def _pair(figures: Figures | None) -> str:
    return f"{figures['cpu']:7.2f} {figures['wall']:7.2f}" if figures else " " * 15


def agents(bench: Bench) -> None:
    ideal = 21 * 0.05
    print(f"\n100 agents x 20 steps, replies after 50 ms (ideal {ideal:.2f} s): best wall s, CPU s")
    subjects = ("ours", "floor") if bench.quick else ("ours", "floor", "sdk")
    rows = bench.measure(subjects[:2], 5, "agents", pick=min, count=100, steps=20, delay=50)
    rows |= bench.measure(subjects[2:], 1, "agents", count=100, steps=20, delay=50)
    _print_agents(rows)
    print(f"  CPU ours / floor: {rows['ours']['cpu'] / rows['floor']['cpu']:.2f}x")
    bench.goal("100 agents x 20 steps, wall / ideal", rows["ours"]["wall"] / ideal, 2, stretch=1.3)


def many(bench: Bench) -> None:
    print("\n1000 agents x 20 steps, replies after 50 ms: wall s, CPU s")
    rows = bench.measure(("ours", "floor"), 1, "agents", count=1000, steps=20, delay=50)
    _print_agents(rows)
    bench.goal("1000 agents x 20 steps, failed", rows["ours"]["failed"] + rows["ours"]["missing"], 0, "")


def _print_agents(rows: dict[str, Figures]) -> None:
    for name, row in rows.items():
        print(f"  {name:6} {row['wall']:7.2f} {row['cpu']:7.2f}   failed {row['failed']:g}", flush=True)


def memory(bench: Bench) -> None:
    print("\nMemory of a live agent at 20 steps (200 agents in one process), KB")
    rows = bench.measure(("ours", "floor"), 3, "memory", count=200, steps=20)
    for name, row in rows.items():
        print(f"  {name:6} {row['kb']:7.0f}   held {row['held']:g}")
    bench.goal("a live agent", rows["ours"]["kb"], 200, " KB")


def tools(bench: Bench) -> None:
    print("\n8 tool calls of 100 ms in one reply, the whole run of two model calls, best ms (first run in brackets)")
    for kind, blocking, limit in (("async", 0, 115), ("blocking", 1, 125)):
        row = bench.measure(("ours",), 3 if bench.quick else 5, "tools", pick=min, blocking=blocking)["ours"]
        print(f"  {kind:8} {row['wall']:7.1f}   ({row['first']:.1f})")
        bench.goal(f"8 {kind} calls", row["wall"], limit, " ms")


def lag(bench: Bench) -> None:
    print("\nFrom the server's write of a piece of text to the callback, median ms")
    rows = bench.measure(("ours", "sdk", "floor"), 3 if bench.quick else 5, "lag", pieces=300)
    for name, row in rows.items():
        print(f"  {name:6} {row['median']:7.3f}   {row['pieces']:g} pieces")
    bench.goal("lag / SDK", rows["ours"]["median"] / rows["sdk"]["median"], 1.2)


def cold(bench: Bench) -> None:
    print("\nProcess start to the first request, median ms")
    with tempfile.TemporaryDirectory() as folder:
        starts: dict[str, Callable[[], int]] = {
            "ours": lambda: int(bench.probe("ours", "first")["arrived"]),
            "main.py": _command_line(bench, Path(folder)),
            "sdk": lambda: int(bench.probe("sdk", "first")["arrived"]),
            "floor": lambda: int(bench.probe("floor", "first")["arrived"]),
        }
        seen: dict[str, list[float]] = {name: [] for name in starts}
        for turn in range(4 if bench.quick else 8):
            for name, start in starts.items():
                began = time.monotonic_ns()
                arrived = start()
                if turn:  # the first turn fills the file cache
                    seen[name].append((arrived - began) / 1e6)
    medians = {name: statistics.median(values) for name, values in seen.items()}
    for name, figure in medians.items():
        print(f"  {name:8} {figure:7.0f}")
    bench.goal("cold start of a script / SDK script", medians["ours"] / medians["sdk"], 1.1)
    bench.goal("cold start of main.py / SDK script", medians["main.py"] / medians["sdk"], 1.1)


def _command_line(bench: Bench, folder: Path) -> Callable[[], int]:
    """`main.py` with a task, which answers with the time at which the server was reached."""
    url = f"{bench.root}/n0-d0-k1-h0-x0/v1"
    config = folder / "config.toml"
    config.write_text(f'[llm]\napi_type = "openai"\nmodel = "gpt-4o-mini"\nbase_url = "{url}"\napi_key = "sk-none"\n')
    arguments = ["main.py", "--config", str(config), "--workspace", str(folder / "workspace"), "say the time"]

    def start() -> int:
        found = re.search(r"\d{9,}", _output(arguments, DRAGOMAN_HOME=str(folder / "home")))
        assert found is not None
        return int(found[0])

    return start


def help_text(bench: Bench) -> None:
    print("\npython main.py --help, best of 11, ms")
    walls: list[float] = []
    for _ in range(11):
        began = time.perf_counter()
        _output(["main.py", "--help"])
        walls.append((time.perf_counter() - began) * 1000)
    listing = subprocess.run(
        [sys.executable, "-X", "importtime", "main.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in listing.stderr.splitlines()}
    bench.goal("--help", min(walls), 150, " ms")
    bench.goal("vendor SDKs imported by --help", len(modules & VENDOR_SDKS), 0, "")


PARTS: dict[str, Callable[[Bench], None]] = {
    "cpu": cpu,
    "agents": agents,
    "many": many,
    "memory": memory,
    "tools": tools,
    "lag": lag,
    "cold": cold,
    "help": help_text,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, by comma")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, no long SDK runs")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before the start")
    with scripted_server() as root:
        bench = Bench(root, options.quick)
        for name in options.only.split(","):
            PARTS[name](bench)
    print(f"\n{len(bench.failed)} goals missed" + "".join(f"\n  {what}" for what in bench.failed))
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
