"""Stopping from outside: the run ends at once, its commands with it, and the last line is still the right one."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from app.sandbox.processes import members
from tests.frontends.conftest import Program
from tests.frontends.test_streams import assert_contract


def sleeping(program: Program, *flags: str, command: str = "echo $$ > pid; sleep 60 & sleep 60"):
    """A run in the middle of a command, and the command's process id."""
    program.script(
        {"text": "I wait.", "calls": [{"name": "bash", "arguments": {"command": command}}]}, {"text": "late"}
    )
    process = program.start(*flags, "--approve", "auto", "wait", stdin=subprocess.DEVNULL)
    pid_file = program.workspace / "pid"
    end = time.monotonic() + 10
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return process, int(pid_file.read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_its_commands(program: Program, number: int, code: int) -> None:
    process, pid = sleeping(program, "--json")
    with process:
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
        seconds = time.monotonic() - began
    assert process.returncode == code
    assert err == b""
    assert members(pid, "no such mark") == set()
    events = [json.loads(line) for line in out.decode().splitlines()]
    assert_contract(events)
    assert (events[-1]["stop_reason"], events[-1]["error"]["code"]) == ("cancelled", "ABORTED")
    assert events[-2]["type"] == "tool_finished"
    assert seconds < 1.5


def test_people_see_that_it_was_interrupted(program: Program) -> None:
    process, _ = sleeping(program)
    with process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1].startswith("■ interrupted · 1 step · ")
    assert "Traceback" not in err.decode()


def test_the_second_signal_leaves_at_once(program: Program) -> None:
    """A command that ignores the polite signal would take the grace time; nothing of it is left behind all the same."""
    stubborn = "trap '' TERM; echo $$ > pid; sleep 60 & while true; do sleep 0.05; done"
    process, pid = sleeping(program, "--json", command=stubborn)
    with process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert time.monotonic() - began < 1.2
    assert process.returncode == 130
    assert err == b""
    assert members(pid, "no such mark") == set()
    events = [json.loads(line) for line in out.decode().splitlines()]
    assert_contract(events)
    assert events[-1]["stop_reason"] == "cancelled"


def test_a_signal_before_the_run_is_no_traceback(program: Program) -> None:
    """While standard input is read, Python's own handler is in force."""
    process = program.start("--llm", "test", "-")
    with process:
        end = time.monotonic() + 3
        while "pipe" not in _waits_in(process.pid) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err.decode() == "■ interrupted\n"


def _waits_in(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""


def test_handlers_are_restored(here) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert here("--llm", "test", "x").code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
