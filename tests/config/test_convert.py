"""agenticSeek's `config.ini` becomes TOML that loads and says the same."""

from __future__ import annotations

import tomllib

import pytest

from app.config.convert import convert_ini
from app.schema.errors import ConfigError
from tests.config.conftest import Lab

FULL = """[MAIN]
is_local = True
provider_name = ollama
provider_model = deepseek-r1:14b
provider_server_address = 127.0.0.1:11500
agent_name = Jarvis
recover_last_session = True
save_session = True
speak = True
listen = False
jarvis_personality = False
languages = en zh
safe_mode = False
work_dir = C:\\Users\\me

[BROWSER]
headless_browser = True
stealth_mode = False
"""

COMMENTED = ["agent_name", "recover_last_session", "save_session", "jarvis_personality", "safe_mode", "stealth_mode"]


def test_every_key_of_the_file_is_mapped_or_kept_as_a_comment(lab: Lab) -> None:
    text = convert_ini(FULL)
    assert tomllib.loads(text) == {
        "llm": {"api_type": "ollama", "model": "deepseek-r1:14b", "base_url": "http://127.0.0.1:11500"},
        "workspace": {"path": "C:\\Users\\me"},
        "browser": {"headless": True},
        "voice": {"speak": True, "listen": False, "languages": ["en", "zh"]},
    }
    comments = [line.split()[1] for line in text.split("\n") if line.startswith("# ") and " = " in line]
    assert comments == COMMENTED
    config = lab.load(text)
    assert config.llm["default"].base_url == "http://127.0.0.1:11500"
    assert config.voice.languages == ("en", "zh")


@pytest.mark.parametrize(
    ("main", "llm"),
    [
        ("is_local = False\nprovider_name = google\nprovider_model = g\nprovider_server_address = 127.0.0.1:5000",
         {"api_type": "google", "model": "g"}),
        ("is_local = True\nprovider_name = openai\nprovider_model = m\nprovider_server_address = 127.0.0.1:8080",
         {"api_type": "openai", "model": "m", "base_url": "http://127.0.0.1:8080/v1"}),
        ("is_local = True\nprovider_name = openai\nprovider_model = m\nprovider_server_address = http://h:1/v1/",
         {"api_type": "openai", "model": "m", "base_url": "http://h:1/v1"}),
        ("is_local = True\nprovider_name = openai", {"api_type": "openai", "base_url": "http://127.0.0.1:8080/v1"}),
        ("provider_name = openai\nprovider_model = gpt-4o", {"api_type": "openai", "model": "gpt-4o"}),
        ("is_local = True\nprovider_name = lm-studio\nprovider_server_address = http://127.0.0.1:1234",
         {"api_type": "lm-studio", "base_url": "http://127.0.0.1:1234"}),
        ("provider_name = dsk_deepseek", {"api_type": "deepseek"}),
        ("provider_name = togetherAI", {"api_type": "together"}),
        ("is_local = True\nprovider_name = server\nprovider_server_address = 192.168.1.9:3333",
         {"api_type": "server", "base_url": "http://192.168.1.9:3333"}),
        ("provider_name = test", {"api_type": "test"}),
        ("is_local = yes\nprovider_name = mine\nprovider_server_address = [::1]:9",
         {"api_type": "mine", "base_url": "http://[::1]:9"}),
    ],
)  # fmt: skip
def test_providers_and_addresses(main: str, llm: dict[str, str]) -> None:
    assert tomllib.loads(convert_ini(f"[MAIN]\n{main}\n"))["llm"] == llm


@pytest.mark.parametrize("written", ["en zh fr", "en,zh,fr", "en, zh ,fr", " en  zh\tfr "])
def test_languages_stand_between_blanks_or_commas(written: str) -> None:
    text = convert_ini(f"[MAIN]\nlanguages = {written}\n")
    assert tomllib.loads(text)["voice"] == {"languages": ["en", "zh", "fr"]}


def test_unknown_providers_keys_and_sections_are_told_and_secrets_left_out() -> None:
    text = convert_ini("\ufeff[MAIN]\nprovider_name = mine\nfoo = b%(a)s\nmy_api_key = sk-SECRET\n[EXTRA]\nbar = 1\n")
    assert '# "mine" is no known provider; it is read as an OpenAI-compatible server.' in text
    assert "# foo = b%(a)s  (unknown key)" in text
    assert "# [EXTRA] bar = 1  (unknown key)" in text
    assert "SECRET" not in text


def test_literal_dollar_braces_do_not_become_references(lab: Lab) -> None:
    assert lab.load(convert_ini("[MAIN]\nwork_dir = /a/${B}\n")).workspace.path == "/a/${B}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither a \\[MAIN\\] nor a \\[BROWSER\\]"),
        ("[OTHER]\na = 1", "neither a \\[MAIN\\] nor a \\[BROWSER\\]"),
        ("a = 1", "line 1: a key stands before the first"),
        ("[MAIN]\nwhat is this", "line 2: this is neither"),
        ("[MAIN]\nspeak = 1\nspeak = 0", "line 3: the same section or key stands there twice"),
        ("[MAIN]\n[MAIN]", "line 2: the same section or key stands there twice"),
        ("[MAIN]\nspeak = perhaps", "speak must be True or False"),
        ("[MAIN]\nis_local = True\nprovider_server_address = ftp://h", "is no address"),
    ],
)
def test_what_is_no_such_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_ini(text)
