"""What a person sees and types, at a real pseudo-terminal."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.frontends.conftest import Program, Terminal

Open = Callable[..., Terminal]


def bash(command: str, **more: object) -> dict[str, object]:
    return {"calls": [{"name": "bash", "arguments": {"command": command}}], **more}


def test_a_run_at_a_terminal(program: Program, terminal: Open) -> None:
    program.script(
        bash("touch made; seq 1 9", reasoning="Hm, " * 9, text="I make a file."),
        {"text": "All is 完成.", "delay_s": 0.3},
    )
    screen = terminal("go")
    shown = screen.until(r"Run it\? \[y\]es, \[N\]o, \[a\]lways bash in this run: ")
    assert "manus · scripted, local ([llm]) · no sandbox · " in shown
    assert "· thought briefly\nI make a file.\n" in shown
    assert "? bash asks for your approval: it runs a shell command that no sandbox confines\n" in shown
    assert "  │ touch made; seq 1 9\n" in shown
    assert not (program.workspace / "made").exists()
    screen.type("y\r")
    shown = screen.until(r"✓ done · 2 steps · 2 requests · 20 \+ 10 tokens · \$0 · ")
    assert re.search(r"✓ bash  touch made; seq 1 9  \d\.\d s\n    1\n    2\n    3\n    … 6 more lines\n", shown)
    assert "⠋ thinking" in shown or "⠙ thinking" in shown
    assert shown.count("All is 完成.") == 1
    assert screen.wait() == 0
    assert (program.workspace / "made").exists()


def test_a_no_an_always_and_a_question(program: Program, terminal: Open) -> None:
    program.script(
        bash("touch one"),
        bash("touch two"),
        bash("touch three"),
        {"calls": [{"name": "ask_human", "arguments": {"question": "Which \x1b[2Jcolour?"}}]},
        {"text": "done"},
    )
    screen = terminal("go")
    screen.until("Run it")
    screen.type("\r")
    screen.until(r"error: not run: it runs a shell command that no sandbox confines\.\s+the\s+user\s+said\s+no")
    screen.until("Run it")
    screen.type("perhaps\r")
    screen.until("Run it")
    screen.type("a\r")
    screen.until(r"✓ bash  touch three")
    assert "Which colour?" in screen.until("your answer: ")
    screen.type("深蓝\r")
    screen.until("done")
    assert screen.wait() == 0
    assert sorted(path.name for path in program.workspace.iterdir() if path.is_file()) == ["three", "two"]


def test_what_is_approved_hides_nothing(program: Program, terminal: Open) -> None:
    program.script(bash("echo nice; \x1b[1A\x1b[2Krm -rf x\u202e"), {"text": "end \x1b]0;owned\x07."})
    screen = terminal("go")
    screen.until(r"│ echo nice; \\u001b\[1A\\u001b\[2Krm -rf x\\u202e\n")
    screen.type("n\r")
    assert screen.wait() == 0
    assert "\x1b]0;" not in screen.raw
    assert "\x1b[1A" not in screen.raw
    assert "end ." in screen.text


def test_the_answer_goes_to_a_pipe_and_the_rest_to_the_terminal(program: Program, terminal: Open) -> None:
    program.script({"text": "An \x1b[31manswer\x1b[0m."})
    screen = terminal("go", stdout=subprocess.PIPE)
    assert screen.wait() == 0
    assert screen.process.stdout is not None
    assert screen.process.stdout.read() == b"An \x1b[31manswer\x1b[0m.\n"
    assert "An answer." in screen.text
    screen.process.stdout.close()


@pytest.mark.parametrize(("columns", "env"), [(40, {}), (80, {"TERM": "dumb"}), (80, {"NO_COLOR": "1"})])
def test_narrow_dumb_and_colourless_terminals(
    program: Program, terminal: Open, columns: int, env: dict[str, str]
) -> None:
    long = "一个很长的名字" * 12
    program.script(bash(f"ls {long}"), {"text": "done", "delay_s": 0.15})
    screen = terminal("--approve", "never", "--debug", "go", columns=columns, env=env)
    assert screen.wait() == 0
    if env:
        # Colours are CSI … m; a dumb terminal gets no command at all.
        assert not re.search(r"\x1b\[[0-9;]*3[0-7][0-9;]*m" if "NO_COLOR" in env else "\x1b", screen.raw)
    if columns == 40:
        line = next(line for line in screen.text.splitlines() if line.startswith("✗ bash"))
        assert re.fullmatch(r"✗ bash  ls 一个很长的名字一个很.?…  \d+\.\d s", line)
    assert "✓ done · 2 steps" in screen.text.replace("\n", " ")


def test_control_c_during_a_question_ends_the_run(program: Program, terminal: Open) -> None:
    program.script(bash("touch x"))
    screen = terminal("go")
    screen.until("Run it")
    screen.type("\x03")
    screen.until("■ interrupted · 1 step")
    assert screen.wait() == 130


def test_a_conversation(program: Program, terminal: Open) -> None:
    program.script({"text": "Bonjour."}, bash("sleep 30"), {"text": "Still here."})
    screen = terminal()
    assert "dragoman 0.1.0 · /help lists commands, Ctrl+D leaves" in screen.until("you>")
    screen.type("说你好\r")
    screen.until("Bonjour.")
    screen.until("✓ done")
    screen.until("you>")
    screen.type("/nope\r")
    screen.until("error: there is no command /nope\n→ known: /help, /model, /cost, /compact, /quit")
    screen.type("/model nowhere\r")
    screen.until(r"error: there is no \[llm.nowhere\]")
    screen.type("/model\r")
    screen.until(r"scripted at test \(\[llm\]\)")
    screen.type("wait\r")
    screen.until("Run it")
    screen.type("y\r")
    screen.until("bash  sleep 30")
    screen.type("\x03")
    screen.until("■ interrupted")
    screen.until("you>")
    screen.type("more\r")
    screen.until("Still here.")
    screen.until("you>")
    screen.type("/cost\r")
    screen.until(r"3 turns · 30 \+ 15 tokens · \$0.0000")
    screen.type("/compact\r")
    screen.until("there is nothing that could be left out|tokens\n")
    screen.until("you>")
    screen.type("half a line\x03")
    screen.until("Ctrl.C once more leaves")
    screen.until("you>")
    screen.type("\x04")
    assert screen.wait() == 0
    history = program.folder / "home" / "history"
    assert "+说你好" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_leaving_a_conversation_with_control_c(program: Program, terminal: Open, term: str) -> None:
    screen = terminal("--llm", "test", env={"TERM": term})
    screen.until("you>")
    screen.type("\x03")
    screen.until("once more leaves")
    screen.until("you>")
    screen.type("\x03")
    assert screen.wait() == 130


def test_json_at_a_terminal_wants_a_prompt_and_asks_nobody(program: Program, terminal: Open) -> None:
    screen = terminal("--llm", "test", "--json")
    assert screen.wait() == 2
    assert '"code": "USAGE"' in screen.text
    program.script(bash("touch x"), {"text": "end"})
    screen = terminal("--json", "go")
    assert screen.wait() == 0
    assert "no person is there to approve" in screen.text
