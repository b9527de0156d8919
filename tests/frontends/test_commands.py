"""The sub-commands: what they say, where they say it, and that they show no key."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from app.config.load import load_config
from tests.fault_server import fault_server_thread, reply, status
from tests.frontends.conftest import Program

KEY = "sk-Vq3zTB7fGk29PmXcLw84"


def test_tools_lists_the_tools_of_the_general_agent(here) -> None:
    outcome = here("tools")
    assert outcome.code == 0
    lines = {line.split()[0]: line for line in outcome.out.splitlines()}
    assert lines.keys() >= {"bash", "python_execute", "str_replace_editor", "ask_human", "planning", "terminate"}
    assert lines["bash"] == (
        "bash                Run a shell command in the workspace. Each call is a new shell; standard input is empty."
    )


def test_models_lists_what_each_account_offers_or_one_line_why_not(here, program: Program) -> None:
    with fault_server_thread(models=("small", "large")) as server, fault_server_thread() as refusing:
        refusing.routes["/v1/models"] = status(401, message=f"bad key {KEY}")
        with fault_server_thread() as gone:
            pass
        program.configure(
            f'[llm]\nbase_url = "{server.url}"\nmodel = "small"\napi_key = "{KEY}"\n'
            f'[llm.b]\nbase_url = "{refusing.url}"\n[llm.c]\nbase_url = "{gone.url}"\n[llm.d]\napi_type = "aws"\n'
        )
        outcome = here("models")
    assert outcome.code == 0
    assert KEY not in outcome.out
    lines = outcome.out.splitlines()
    assert lines[:4] == ["[llm]  small  at local", "    small", "    large", "[llm.b]  small  at local"]
    assert lines[4].startswith("    error: ")
    assert "bad key ***" in lines[4]
    assert "→ check api_key" in lines[4]
    assert lines[6].startswith(f"    error: cannot connect to http://{gone.host}: Connect")
    assert lines[8].startswith("    error: ")
    assert len(lines) == 9


def test_config_check_shows_origins_and_no_key(here, program: Program) -> None:
    program.configure(f'[llm]\nmodel = "m"\napi_key = "{KEY}"\n')
    outcome = here("config", "check")
    assert outcome.code == 0
    assert '  model = "m" (' in outcome.out
    assert KEY not in outcome.out
    other = program.folder / "other.toml"
    other.write_text("[llm]\nmodel = 1\n", encoding="utf-8")
    outcome = here("config", "check", "--config", str(other))
    assert outcome.code == 2
    assert "[llm] model must be a text" in outcome.err


def test_config_import_prints_or_writes_what_loads(here, tmp_path: Path) -> None:
    source = tmp_path / "config.ini"
    source.write_text("[MAIN]\nis_local = True\nprovider_name = ollama\nprovider_model = qwen3:8b\n", encoding="utf-8")
    printed = here("config", "import", str(source))
    assert (printed.code, printed.err) == (0, "")
    target = tmp_path / "new.toml"
    written = here("config", "import", str(source), "-o", str(target))
    assert (written.code, written.out, written.err) == (0, "", f"wrote {target}\n")
    assert target.read_text(encoding="utf-8") == printed.out
    assert load_config(target, env={}).llm["default"].model == "qwen3:8b"
    again = here("config", "import", str(source), "-o", str(target))
    assert again.code == 2
    assert "exists already" in again.err
    source.write_text("model = x", encoding="utf-8")
    broken = here("config", "import", str(source))
    assert broken.code == 2
    assert broken.err.startswith("error: line 1: a key stands before the first [section]\n→ ")


def test_doctor_tells_what_works(here, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)
    monkeypatch.setattr("app.frontends.doctor.LOCAL_PORTS", {})
    program.configure('[llm]\napi_type = "test"\n')
    outcome = here("doctor")
    assert outcome.code == 0
    assert KEY not in outcome.out
    lines = {line[2:17].strip(): (line[0], line[18:]) for line in outcome.out.splitlines()}
    assert lines["python"][0] == "✓"
    assert lines["configuration"] == ("✓", str(program.config))
    assert lines["keys"] == ("✓", "set for DeepSeek")
    assert lines["model"] == ("✓", "scripted ([llm], test)")
    assert lines["workspace"] == ("✓", f"{program.workspace} can be written")
    assert lines["terminal"][0] == "-"


def test_doctor_tells_what_is_missing(here, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with fault_server_thread() as gone:
        port = int(gone.host.rpartition(":")[2])
    monkeypatch.setattr("app.frontends.doctor.LOCAL_PORTS", {"ollama": port})
    program.configure("[llm]\nmodle = 1\n")
    outcome = here("doctor", "--workspace", str(program.config / "below"))
    assert outcome.code == 1
    lines = {line[2:17].strip(): (line[0], line[18:]) for line in outcome.out.splitlines()}
    assert lines["configuration"][0] == "✗"
    assert 'has no key "modle"' in lines["configuration"][1]
    assert lines["Ollama"] == ("-", f"nothing answers on port {port}")
    assert lines["embedded model"] == ("-", "not installed; pip install 'dragoman[embedded]'")
    assert lines["model"][0] == "✗"


def test_doctor_finds_a_local_server(here, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_server_thread(models=("llama-3",)) as server:
        port = int(server.host.rpartition(":")[2])
        monkeypatch.setattr("app.frontends.doctor.LOCAL_PORTS", {"vllm": port})
        outcome = here("doctor")
    assert f"✓ vLLM            answers on port {port} with llama-3\n" in outcome.out


def test_a_local_server_is_a_model_by_its_name(here, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_server_thread([reply("from here")], models=("llama-3",)) as server:
        port = int(server.host.rpartition(":")[2])
        monkeypatch.setattr("app.frontends.launch.LOCAL_PORTS", {"vllm": port})
        outcome = here("--llm", "vllm", "go")
        assert (outcome.code, outcome.out) == (0, "from here\n")
        assert server.chats[0].json["model"] == "llama-3"


def test_the_embedded_model_is_not_downloaded_without_a_yes(here) -> None:
    outcome = here("--llm", "embedded", "--json", "x")
    assert outcome.code == 2
    error = outcome.events[-1]["error"]
    assert error["code"] == "CONFIG"
    assert "run again with --yes" in error["hint"]
    assert not (Path(os.environ["DRAGOMAN_HOME"]) / "models").exists()
