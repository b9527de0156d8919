"""What goes wrong with an account, through the front door: one sentence that names the setting, and never the key."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.frontends.cli import main
from tests.fault_server import Behaviour, fault_server_thread, reply, status, web_page
from tests.llm.dialects import DIALECTS

KEY = "sk-secret-0123456789"
API_TYPES = (
    "openai", "openai_responses", "azure", "anthropic", "aws", "google", "ollama", "server", "lm-studio", "huggingface",
    "deepseek",
)  # fmt: skip
KEYLESS = frozenset({"openai", "openai_responses", "anthropic", "ollama", "server", "lm-studio"})
"""A server on this machine may do without a key; the others of the table are somebody's account wherever they are."""
WIRES = {row.api_type: row.wire for row in DIALECTS}
PATHS = {"google": "/v1beta", "ollama": "", "aws": "", "server": "", "azure": ""}
NOBODY = "http://127.0.0.1:9"

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`code, out, err = ask("google", status(401))`: one run of the program against a server of that vendor's wire."""
    monkeypatch.setenv("DRAGOMAN_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def run(
        api_type: str, behaviour: Behaviour, *more: str, key: str = KEY, base_url: str = ""
    ) -> tuple[int, str, str]:
        wire = WIRES.get(api_type, WIRES["openai"])()
        with fault_server_thread(lambda _: behaviour, dialect=wire, strict=False) as server:
            address = base_url or server.root + PATHS.get(api_type, "/v1")
            lines = ["[llm]", 'model = "test-model"', f'api_type = "{api_type}"', f'base_url = "{address}"']
            lines += [f'api_key = "{key}"'] if key else []
            config = tmp_path / "config.toml"
            config.write_text("\n".join([*lines, "[llm.retry]", "max_retries = 0"]), encoding="utf-8")
            began = time.monotonic()
            code = main(["--config", str(config), *more, "hi"])
            assert time.monotonic() - began < 5
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("api_type", API_TYPES)
@pytest.mark.parametrize(
    ("fault", "words", "setting"),
    [
        pytest.param(lambda: status(401, message=f"bad key {KEY}"), "answered 401", "check api_key", id="wrong key"),
        pytest.param(
            lambda: status(404, message="the model test-model does not exist"), "does not exist", "model", id="model"
        ),
        pytest.param(web_page, "a web page instead of a reply", "check base_url", id="web page"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_setting(
    api_type: str, fault: Callable[[], Behaviour], words: str, setting: str, ask: Ask
) -> None:
    code, out, err = ask(api_type, fault(), "--quiet")
    first, hint = err.strip().splitlines()
    assert (code, out) == (1, "")
    assert words in first
    assert setting in hint
    assert KEY not in err


@pytest.mark.parametrize("api_type", API_TYPES)
def test_nobody_at_the_address(api_type: str, ask: Ask) -> None:
    code, out, err = ask(api_type, reply("never"), "--quiet", base_url=NOBODY)
    assert (code, out) == (1, "")
    assert "127.0.0.1:9" in err
    assert "check base_url" in err


@pytest.mark.parametrize("api_type", API_TYPES)
def test_no_key(api_type: str, ask: Ask) -> None:
    code, out, err = ask(api_type, reply("Hello"), "--quiet", key="")
    if api_type in KEYLESS:
        assert (code, out.strip(), err) == (0, "Hello", "")
    else:
        assert (code, out) == (2, "")
        assert "set api_key under [llm]" in err


@pytest.mark.parametrize("api_type", API_TYPES)
@pytest.mark.parametrize("flag", ["--json", "--debug"])
def test_no_view_shows_the_key(api_type: str, flag: str, ask: Ask) -> None:
    code, out, err = ask(api_type, status(401, message=f"bad key {KEY}"), flag)
    assert code == 1
    assert "401" in out + err
    assert KEY not in out + err
