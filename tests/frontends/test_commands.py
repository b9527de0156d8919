"""The sub-commands: what they say, where they say it, and that they show no key."""

from __future__ import annotations

import json
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


def test_models_lists_what_each_account_offers_or_one_line_why_not(
    here, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        fault_server_thread(models=("small", "gpt-4o")) as server,
        fault_server_thread() as refusing,
        fault_server_thread(models=("llama-3.1-8b",)) as local,
    ):
        refusing.routes["/v1/models"] = status(401, message=f"bad key {KEY}")
        local.routes["/v1/models"]["data"][0]["owned_by"] = "llamacpp"
        local.routes["/props"] = {
            "default_generation_settings": {"n_ctx": 4096},
            "chat_template_caps": {"supports_tools": False},
        }
        with fault_server_thread() as gone:
            pass
        ports = {"vllm": int(local.host.rpartition(":")[2]), "ollama": int(gone.host.rpartition(":")[2])}
        monkeypatch.setattr("app.frontends.models.LOCAL_PORTS", ports)
        program.configure(
            f'[llm]\nbase_url = "{server.url}"\nmodel = "small"\napi_key = "{KEY}"\n'
            f'[llm.b]\nbase_url = "{refusing.url}"\n[llm.c]\nbase_url = "{gone.url}"\n[llm.d]\napi_type = "aws"\n'
        )
        outcome = here("models")
        objects = [json.loads(line) for line in here("models", "list", "--json").out.splitlines()]
    assert outcome.code == 0
    assert KEY not in outcome.out
    lines = outcome.out.splitlines()
    unknown = "    small: nothing is known of it; its abilities are tried"
    assert lines[:5] == [
        "[llm]  small  at local",
        unknown,
        "    gpt-4o: window 128,000, output 16,384, tools, images, free",
        "[llm.b]  small  at local",
        unknown,
    ]
    assert lines[5].startswith("    error: ")
    assert "bad key ***" in lines[5]
    assert "→ check api_key" in lines[5]
    assert lines[8].startswith(f"    error: cannot connect to http://{gone.host}: Connect")
    assert lines[10].startswith("    error: ") or lines[11].startswith("    error: ")
    servers = lines[lines.index("Servers on this machine") + 1 :]
    assert servers[0] == "    vLLM llama-3.1-8b: window 4,096, output 8,192, tools as text, no images, free"
    assert servers[1] == f"    Ollama: nothing answers on port {ports['ollama']}"
    assert servers[2].startswith("Embedded models (fetched by `python main.py models pull NAME`")
    assert servers[3].startswith(
        "    qwen2.5-coder-1.5b (the default): 1.1 GB to fetch, 2.1 GB of memory, 5 to 20 s a step"
    )
    known = {row["model"]: row for row in objects}
    assert known["gpt-4o"]["context_window"] == 128_000
    assert known["llama-3.1-8b"]["tools"] is False
    assert known["smollm2-135m"]["bytes"] == 98_362_432


def test_models_pull_needs_a_yes_and_a_known_name(here) -> None:
    outcome = here("models", "pull", "smollm2-135m")
    assert outcome.code == 2
    assert "run again with --yes to download it" in outcome.err
    assert "0.1 GB" in outcome.err
    outcome = here("models", "pull", "nope", "--yes")
    assert outcome.code == 2
    assert "known models: qwen2.5-coder-1.5b" in outcome.err


def test_models_pull_of_a_file_that_is_there_is_its_path(here, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    assert here("models", "pull", str(own)).out == f"{own}\n"


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
