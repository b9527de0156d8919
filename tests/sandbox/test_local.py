"""`LocalSandbox` with real processes: output, ends, leftovers, environment, background."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.sandbox.local import LocalSandbox, scrubbed_environment
from app.sandbox.processes import members
from app.schema.errors import SandboxError


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[LocalSandbox]:
    box = LocalSandbox(tmp_path / "ws", capture_limit=1000)
    yield box
    await box.close()


def sh(command: str) -> tuple[str, ...]:
    return ("sh", "-c", command)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


async def pid_in(file: Path) -> int:
    for _ in range(200):
        if file.exists() and file.read_text().strip():
            return int(file.read_text())
        await asyncio.sleep(0.01)
    raise AssertionError("the command never wrote its pid")


async def test_both_streams_exit_code_and_working_folder(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(sh("pwd; echo oops >&2; exit 3"), timeout_s=5)
    assert (result.stdout, result.stderr, result.exit_code) == (f"{sandbox.workspace}\n", "oops\n", 3)
    assert (result.timed_out, result.spill, result.omitted) == (False, None, 0)
    assert (sandbox.name, sandbox.confined) == ("none", False)


async def test_T11_standard_input_is_empty(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(sh("read x; echo $?; cat"), timeout_s=5)
    assert (result.stdout, result.exit_code) == ("1\n", 0)


async def test_B100_a_background_child_does_not_hold_the_call(sandbox: LocalSandbox) -> None:
    begun = time.monotonic()
    result = await sandbox.run(sh("sleep 100 & echo $! > pid; echo started"), timeout_s=20)
    assert time.monotonic() - begun < 2
    assert (result.stdout, result.exit_code) == ("started\n", 0)
    pid = int((sandbox.workspace / "pid").read_text())
    assert alive(pid)
    await sandbox.close()
    assert not alive(pid)


async def test_a_left_child_may_go_on_printing(sandbox: LocalSandbox) -> None:
    await sandbox.run(sh("(sleep 0.15; echo late; echo done > mark) & echo now"), timeout_s=5)
    for _ in range(100):
        if (sandbox.workspace / "mark").exists():
            break
        await asyncio.sleep(0.01)
    assert (sandbox.workspace / "mark").read_text() == "done\n"


async def test_close_finds_children_with_a_session_of_their_own(sandbox: LocalSandbox) -> None:
    await sandbox.run(sh("setsid sh -c 'echo $$ > pid; exec sleep 100' >/dev/null 2>&1 &"), timeout_s=5)
    pid = await pid_in(sandbox.workspace / "pid")
    await sandbox.close()
    assert not alive(pid)


async def test_T12_time_limit_gives_partial_output_and_ends_the_group(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(sh("echo part; sleep 100 & echo $! > pid; wait"), timeout_s=0.1)
    assert (result.stdout, result.exit_code, result.timed_out) == ("part\n", None, True)
    assert not alive(int((sandbox.workspace / "pid").read_text()))
    assert (await sandbox.run(sh("echo next"), timeout_s=5)).stdout == "next\n"


async def test_a_command_that_ignores_TERM_is_killed(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.sandbox.local.TERM_GRACE_S", 0.05)
    result = await sandbox.run(sh("trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done"), timeout_s=0.1)
    assert result.timed_out
    assert not alive(int((sandbox.workspace / "pid").read_text()))


async def test_cancellation_leaves_nothing_alive(sandbox: LocalSandbox) -> None:
    task = asyncio.create_task(sandbox.run(sh("setsid sleep 100 & echo $! > pid; wait"), timeout_s=50))
    pid = await pid_in(sandbox.workspace / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)


async def test_cancellation_while_a_child_holds_the_pipes_ends_the_child(sandbox: LocalSandbox) -> None:
    task = asyncio.create_task(sandbox.run(sh("sleep 100 & echo $! > pid"), timeout_s=50))
    pid = await pid_in(sandbox.workspace / "pid")
    await asyncio.sleep(0.03)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)


async def test_cancellation_in_the_middle_of_the_start_leaves_nothing(sandbox: LocalSandbox) -> None:
    """At each of the loop's steps while the transport is made, with a child that holds the pipes already."""
    for steps in range(1, 9):
        task = asyncio.create_task(sandbox.run(sh("setsid sleep 100 & wait"), timeout_s=50))
        for _ in range(steps):
            await asyncio.sleep(0)
            time.sleep(0.004)
        task.cancel()
        begun = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 5
        assert members(None, sandbox._mark) == set()


async def test_two_cancellations_in_the_middle_of_the_start_are_cleaned_up_by_close(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.sandbox.local.TERM_GRACE_S", 0.02)
    for steps in range(6):
        task = asyncio.create_task(sandbox.run(sh("trap '' TERM; sleep 100 & wait"), timeout_s=50))
        for _ in range(2):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
            time.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.02)
    await sandbox.close()
    assert members(None, sandbox._mark) == set()


async def test_a_second_cancellation_kills_at_once(sandbox: LocalSandbox) -> None:
    task = asyncio.create_task(
        sandbox.run(sh("trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done"), timeout_s=50)
    )
    pid = await pid_in(sandbox.workspace / "pid")
    task.cancel()
    await asyncio.sleep(0.03)
    begun = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begun < 1
    await asyncio.sleep(0.02)
    assert not alive(pid)


async def test_defect_79_much_output_is_read_and_kept_whole_in_a_file(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(sh("echo first; head -c 2000000 /dev/zero | tr '\\0' x; echo; echo last"), timeout_s=20)
    assert result.exit_code == 0
    assert result.stdout.startswith("first\nxxx")
    assert result.stdout.endswith("xxx\nlast\n")
    assert result.omitted == 2_000_012 - 1000
    assert result.spill == sandbox.workspace / ".dragoman/outputs/command.txt"
    assert f"[... {result.omitted} bytes left out; full output in .dragoman/outputs/command.txt ...]" in result.stdout
    assert result.spill.read_bytes() == b"first\n" + b"x" * 2_000_000 + b"\nlast\n"
    assert (sandbox.workspace / ".dragoman/.gitignore").read_text() == "*\n"


async def test_the_output_file_is_bounded(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.sandbox.capture.SPILL_LIMIT", 5000)
    result = await sandbox.run(sh("yes | head -c 300000"), timeout_s=20)
    assert result.spill is not None
    assert result.spill.stat().st_size == 5000


async def test_defect_83_split_and_invalid_characters_are_replaced(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(sh(r"printf '\346\227'; sleep 0.02; printf '\245|\377|ok'"), timeout_s=5)
    assert result.stdout == "日|\ufffd|ok"


async def test_a_character_on_the_cut_is_not_broken(sandbox: LocalSandbox) -> None:
    (sandbox.workspace / "text").parent.mkdir(exist_ok=True)
    (sandbox.workspace / "text").write_text("日" * 1000, encoding="utf-8")
    result = await sandbox.run(sh("cat text"), timeout_s=5)
    head, _, rest = result.stdout.partition("\n")
    tail = rest.partition("\n")[2]
    assert (set(head), set(tail)) == ({"日"}, {"日"})


async def test_secrets_do_not_reach_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_API_KEY", "my_token", "DB_PASSWORD", "CLIENT_SECRET", "X_CREDENTIALS", "PLAIN"):
        monkeypatch.setenv(name, "v")
    box = LocalSandbox(tmp_path, env_passthrough=("DB_PASSWORD",))
    result = await box.run(sh("env"), timeout_s=5, env={"EXTRA": "1"})
    names = {line.partition("=")[0] for line in result.stdout.splitlines()}
    assert {"PLAIN", "DB_PASSWORD", "EXTRA", "PATH"} <= names
    assert not names & {"MY_API_KEY", "my_token", "CLIENT_SECRET", "X_CREDENTIALS"}
    assert "MY_API_KEY" not in scrubbed_environment()


@pytest.mark.parametrize("argv", [("no-such-program-here",), ("echo", "a\0b"), ("/etc/passwd",)])
async def test_what_cannot_start_is_a_sandbox_error(sandbox: LocalSandbox, argv: tuple[str, ...]) -> None:
    with pytest.raises(SandboxError):
        await sandbox.run(argv, timeout_s=5)


async def test_background_start_log_and_stop(sandbox: LocalSandbox) -> None:
    process = await sandbox.start(sh("echo up; echo err >&2; echo $$ > pid; exec sleep 100"))
    assert await pid_in(sandbox.workspace / "pid") == process.pid
    assert process.running
    assert process.log.read_text() == "up\nerr\n"
    await process.stop()
    assert not alive(process.pid)
    other = await sandbox.start(sh("exec sleep 100"))
    assert other.log == sandbox.workspace / ".dragoman/outputs/background-2.log"
    await sandbox.close()
    assert not alive(other.pid)


async def test_outputs_never_follow_a_link_out_of_the_workspace(sandbox: LocalSandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    sandbox.workspace.mkdir(exist_ok=True)
    (sandbox.workspace / ".dragoman").symlink_to(outside)
    with pytest.raises(SandboxError, match="outside the workspace"):
        await sandbox.start(sh("true"))
    assert list(outside.iterdir()) == []
    # A command's own output is then cut without a file.
    result = await sandbox.run(sh("yes | head -c 5000"), timeout_s=5)
    assert (result.exit_code, result.spill, result.omitted) == (0, None, 4000)
    assert list(outside.iterdir()) == []
