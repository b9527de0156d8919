"""Standard output is the answer or JSON lines and nothing else; standard error is everything else."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.frontends.conftest import ROOT, Program

HEAVY = {"pydantic", "aiohttp", "rich", "prompt_toolkit", "openai", "jinja2", "tiktoken", "asyncio", "tenacity"}
USAGE = {
    "input_tokens": int,
    "cache_read_tokens": int,
    "cache_write_tokens": int,
    "output_tokens": int,
    "reasoning_tokens": int,
    "estimated": bool,
}
MAYBE_TEXT = (str, type(None))
CONTRACT = {
    "run_started": {
        "task": str,
        "agent": str,
        "llm": {"config": str, "provider": str, "model": str, "local": bool},
        "session": MAYBE_TEXT,
        "sandbox": str,
        "workspace": str,
    },
    "step_started": {"step": int},
    "text_delta": {"text": str, "attempt": int},
    "reasoning_delta": {"text": str, "attempt": int},
    "model_replied": {
        "text": str,
        "tool_calls": [{"id": str, "name": str, "arguments": str}],
        "finish": str,
        "usage": USAGE,
    },
    "retrying": {"attempt": int, "delay_s": float, "code": str, "message": str},
    "tool_started": {"call": str, "name": str, "arguments": dict},
    "tool_finished": {"call": str, "name": str, "ok": bool, "content": str, "seconds": float, "truncated": bool},
    "notice": {"code": str, "message": str},
    "plan_changed": {
        "plan": {
            "id": str,
            "title": str,
            "steps": [
                {
                    "id": str,
                    "text": str,
                    "agent": MAYBE_TEXT,
                    "needs": [str],
                    "status": str,
                    "result": MAYBE_TEXT,
                }
            ],
        }
    },
    "run_finished": {
        "stop_reason": str,
        "answer": str,
        "error": (type(None), {"code": str, "message": str, "hint": str}),
        "usage": USAGE,
        "cost_usd": (float, type(None)),
        "steps": int,
        "requests": int,
        "session": MAYBE_TEXT,
    },
}
HEAD = {"type": str, "seq": int, "time": str, "run": str, "span": str, "parent": MAYBE_TEXT}


def fits(value: object, shape: object) -> bool:
    match shape:
        case dict():
            return (
                isinstance(value, dict)
                and value.keys() == shape.keys()
                and all(fits(value[key], inner) for key, inner in shape.items())
            )
        case [inner]:
            return isinstance(value, list) and all(fits(item, inner) for item in value)
        case tuple():
            return any(fits(value, inner) for inner in shape)
        case type():
            return type(value) is shape
    raise AssertionError(shape)


def assert_contract(events: list[dict]) -> None:
    for event in events:
        shape = HEAD | CONTRACT[event["type"]]
        assert fits(event, shape), (event, shape)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events].count("run_finished") == 1
    assert events[-1]["type"] == "run_finished"
    assert len({event["run"] for event in events}) == 1


def test_d01_the_answer_alone_is_on_standard_output(program: Program) -> None:
    outcome = program("--llm", "test", "greet me")
    assert outcome.code == 0
    assert outcome.out == "greeting.txt is written; it says: Hello from Dragoman.\n"
    lines = outcome.err.splitlines()
    assert lines[0] == f"manus · scripted, local (--llm test) · no sandbox · {program.workspace}"
    assert lines[1:5] == [
        "I will plan, write a file and look at it.",
        "plan: Demonstration",
        "  [ ] 1. Write greeting.txt",
        "  [ ] 2. Check it",
    ]
    assert lines[5].startswith("✓ str_replace_editor  create greeting.txt  ")
    assert lines[-1].startswith("✓ done · 5 steps · 5 requests · 50 + 25 tokens · $0 · ")
    assert "\x1b" not in outcome.err
    assert (program.workspace / "greeting.txt").read_text() == "Hello from Dragoman.\n"


def test_json_lines_keep_the_contract(program: Program) -> None:
    program.script(
        {
            "reasoning": "Hm.",
            "text": "第一步",
            "calls": [{"name": "planning", "arguments": {"command": "create", "title": "t", "steps": ["a"]}}],
        },
        {"calls": [{"name": "bash", "arguments": {"command": "echo hi"}}]},
        {"error": {"code": "SERVER", "message": "busy"}},
        {"text": "完成 🎉"},
    )
    outcome = program("--json", "go", env={"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": ""})
    assert outcome.code == 0
    assert outcome.err == ""
    events = outcome.events
    assert_contract(events)
    assert {event["type"] for event in events} >= {
        "run_started", "step_started", "text_delta", "reasoning_delta", "model_replied",
        "retrying", "tool_started", "tool_finished", "plan_changed", "notice",
    }  # fmt: skip
    assert events[-1]["answer"] == "完成 🎉"
    assert [event["code"] for event in events if event["type"] == "notice"] == ["LLM_CHOSEN"]


def test_a_flow_nests_its_agents_and_reports(program: Program) -> None:
    outcome = program("--llm", "test", "--json", "greet me", main="run_flow.py")
    assert outcome.code == 0
    assert_contract(outcome.events)
    assert outcome.events[0]["agent"] == "flow"
    root = outcome.events[0]["span"]
    spans = {event["span"]: event["parent"] for event in outcome.events}
    workers = {event["span"] for event in outcome.of("step_started")}
    assert len(workers) == 2
    assert {spans[worker] for worker in workers} == {root}
    assert outcome.events[-1]["answer"] == "Both steps are done: greeting.txt is written and checked."


def test_quiet_leaves_standard_error_empty(program: Program) -> None:
    outcome = program("--llm", "test", "--quiet", "--prompt", "doctor")
    assert (outcome.code, outcome.out, outcome.err) == (
        0,
        "greeting.txt is written; it says: Hello from Dragoman.\n",
        "",
    )


def test_standard_input_is_the_prompt(program: Program) -> None:
    program.script({"text": "read"})
    outcome = program("--json", stdin="\ufeffsag 你好\n".encode())
    assert outcome.of("run_started")[0]["task"] == "sag 你好"
    outcome = program("--json", "-", stdin=b"broken \xff byte")
    assert outcome.of("run_started")[0]["task"] == "broken \ufffd byte"


def test_a_reader_who_leaves_ends_the_run_quietly(program: Program) -> None:
    program.script(
        {"calls": [{"name": "python_execute", "arguments": {"code": "print(1)"}}]},
        {"delay_s": 30, "text": "never"},
    )
    with program.start("--json", "--approve", "auto", "go", stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(10) == 130
        assert process.stderr.read() == b""


def test_help_is_instant_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from app.frontends.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        f"print(sorted({HEAVY} & sys.modules.keys()), file=sys.stderr)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert outcome.stderr == "[]\n"
    for word in (
        "--max-tokens",
        "--approve {ask,auto,never}",
        "--resume",
        "doctor",
        "config import FILE",
        "exit codes:",
    ):
        assert word in outcome.stdout


def test_an_answer_that_cannot_be_written_is_a_failure(program: Program) -> None:
    with open("/dev/full", "wb") as full, program.start("--llm", "test", "--quiet", "x", stdout=full) as process:
        _, err = process.communicate(b"", timeout=15)
    assert process.returncode == 1
    assert err.decode() == (
        "error: standard output cannot be written: No space left on device\n→ free some space there\n"
    )


def test_without_standard_streams(program: Program) -> None:
    for closed, code, out in (
        ("<&-", 2, b""),
        ("2>&-", 0, b"greeting.txt is written; it says: Hello from Dragoman.\n"),
    ):
        prompt = "x" if code == 0 else ""
        command = f"{sys.executable} {ROOT / 'main.py'} --llm test {prompt} {closed}"
        outcome = subprocess.run(
            command, shell=True, cwd=program.folder, env={**os.environ, **program.env}, capture_output=True
        )
        assert (outcome.returncode, outcome.stdout) == (code, out), outcome
