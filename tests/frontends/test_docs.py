"""What the guides say about the command line and the scripted model is what the program does."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from app.frontends.arguments import COMMANDS, _run_parser
from tests.frontends.conftest import ROOT, Program
from tests.frontends.test_streams import CONTRACT


def guide(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def block(text: str, language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[-1]


def test_every_flag_command_and_event_is_in_the_guide() -> None:
    text = guide("command-line.md")
    flags = {option for action in _run_parser(flow=True)._actions for option in action.option_strings}
    assert [flag for flag in sorted(flags - {"-h", "--help", "--version"}) if f"`{flag}" not in text] == []
    assert [name for name in COMMANDS if f"`{name}" not in text] == []
    for kind, keys in CONTRACT.items():
        row = next(line for line in text.splitlines() if f"`{kind}`" in line.partition(" | ")[0])
        assert [key for key in keys if f"`{key}`" not in row] == []


def test_the_script_of_the_guide_plays(here, program: Program) -> None:
    turns = json.loads(block(guide("scripted.md"), "json"))
    program.script(*turns)
    outcome = here("--json", "x")
    assert outcome.code == 0
    assert outcome.events[-1]["answer"] == "The folder is empty."
    assert [event["code"] for event in outcome.of("retrying")] == ["SERVER"]


async def test_the_python_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAGOMAN_WORKSPACE", str(tmp_path))
    code = block(guide("scripted.md"), "python")
    names: dict[str, object] = {}
    exec(f"async def example():\n{textwrap.indent(code, '    ')}    return result\n", names)
    result = await names["example"]()  # type: ignore[operator]
    assert result.answer == "done"
    assert "ToolSpec(name='bash'" in capsys.readouterr().out
