"""Layers and models: which value wins, what a named model inherits, whose key goes where."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from app.config.settings import Config, LLMSettings, ProxySettings
from app.schema.errors import ConfigError
from tests.config.conftest import Lab

GATEWAY = "https://gateway.example.com/v1"


def key(config: Config, name: str = "default") -> str:
    return config.llm[name].api_key.get_secret_value()


# Files


def test_no_file_and_nothing_else_gives_no_model(lab: Lab) -> None:
    config = lab.load()
    assert config.llm == {}
    assert config.path is None
    assert config.search.engine == "Google"


def test_places_of_the_file_in_order(lab: Lab, tmp_path: Path) -> None:
    def place(path: Path, model: str) -> Path:
        return lab.write(f'[llm]\nmodel = "{model}"\n', path)

    place(lab.home / "config.toml", "home")
    assert lab.load().llm["default"].model == "home"
    place(tmp_path / "project" / "config" / "config.toml", "project")
    assert lab.load().llm["default"].model == "project"
    place(lab.file, "current")
    assert lab.load().llm["default"].model == "current"
    named = place(tmp_path / "named.toml", "variable")
    assert lab.load(env={"DRAGOMAN_CONFIG": str(named)}).llm["default"].model == "variable"
    explicit = place(tmp_path / "explicit.toml", "explicit")
    config = lab.load(env={"DRAGOMAN_CONFIG": str(named)}, path=explicit)
    assert (config.llm["default"].model, config.path) == ("explicit", explicit)


def test_an_empty_variable_names_no_file(lab: Lab) -> None:
    assert lab.load(env={"DRAGOMAN_CONFIG": ""}).path is None


def test_a_relative_explicit_file_is_taken_from_the_current_folder(lab: Lab) -> None:
    lab.write('[llm]\nmodel = "m"', lab.folder / "my.toml")
    assert lab.load(path=Path("my.toml")).path == lab.folder / "my.toml"


# Layers


def test_environment_beats_the_file_and_flags_beat_both(lab: Lab) -> None:
    text = '[llm]\nmodel = "file"\nbase_url = "https://file.example.com"\n[budget]\nmax_tokens = 1\ntimeout_s = 9'
    env = {"DRAGOMAN_MODEL": "env", "DRAGOMAN_MAX_TOKENS": "2", "DRAGOMAN_MAX_COST": "1.5", "DRAGOMAN_TIMEOUT": "30"}
    config = lab.load(text, env, {"llm.default.model": "flag", "budget.max_tokens": 3, "budget.max_cost": None})
    assert config.llm["default"].model == "flag"
    assert (config.budget.max_tokens, config.budget.max_cost, config.budget.timeout_s) == (3, 1.5, 30.0)
    wanted = {
        "llm.default.model": "flag --model",
        "llm.default.base_url": "config/config.toml:3",
        "llm.default.api_key": "default",
        "budget.max_tokens": "flag --max-tokens",
        "budget.max_cost": "env DRAGOMAN_MAX_COST",
        "budget.timeout_s": "env DRAGOMAN_TIMEOUT",
        "budget.max_steps": "default",
        "search.engine": "default",
    }
    assert {name: config.origins[name] for name in wanted} == wanted


def test_environment_alone_makes_a_model(lab: Lab) -> None:
    env = {
        "DRAGOMAN_MODEL": "m",
        "DRAGOMAN_BASE_URL": "127.0.0.1:9/v1/",
        "DRAGOMAN_API_KEY": " k ",
        "DRAGOMAN_API_TYPE": "OpenAI",
    }
    default = lab.load(env=env).llm["default"]
    assert (default.model, default.base_url, default.api_type) == ("m", "http://127.0.0.1:9/v1", "openai")
    assert default.api_key == SecretStr("k")


@pytest.mark.parametrize("env", [{"DRAGOMAN_MAX_TOKENS": "2"}, {"DRAGOMAN_MODEL": "m"}, {"OPENAI_API_KEY": "sk-..."}])
def test_environment_that_names_no_account_makes_no_model(lab: Lab, env: dict[str, str]) -> None:
    assert lab.load(env=env).llm == {}


def test_a_vendor_key_alone_makes_a_model_and_a_flag_names_another_one(lab: Lab) -> None:
    default = lab.load(env={"DEEPSEEK_API_KEY": "k"}).llm["default"]
    assert (default.api_type, default.model, default.name) == ("deepseek", "deepseek-v4-flash", "default")
    config = lab.load(env={"DEEPSEEK_API_KEY": "k"}, flags={"llm.default.model": "x"})
    assert (config.llm["default"].model, key(config)) == ("x", "k")
    assert config.origins["llm.default.api_key"] == "env DEEPSEEK_API_KEY"


def test_a_detected_model_lies_beneath_everything(lab: Lab) -> None:
    found = LLMSettings(api_type="ollama", base_url="http://127.0.0.1:11434", model="found")
    config = lab.load("[llm]\ntemperature = 0.5", flags={"llm.default.model": "flag"}, detected=found)
    default = config.llm["default"]
    assert (default.api_type, default.model, default.temperature) == ("ollama", "flag", 0.5)
    assert config.origins["llm.default.base_url"] == "detected"
    assert "default" not in lab.load("[llm]\ntemperature = 0.5").llm


def test_step_limits_of_later_layers_beat_those_of_agents_in_the_file(lab: Lab) -> None:
    text = "[budget]\nmax_steps = 30\n[agents.manus]\nmax_steps = 50\nmax_observe = 200"
    config = lab.load(text)
    assert (config.max_steps_for("manus"), config.max_steps_for("other")) == (50, 30)
    config = lab.load(text, {"DRAGOMAN_MAX_STEPS": "7"})
    assert (config.max_steps_for("Manus"), config.max_steps_for("other")) == (7, 7)
    assert config.agent("manus").max_observe == 200
    config = lab.load(text, {"DRAGOMAN_MAX_STEPS": "7"}, {"budget.max_steps": 8})
    assert config.max_steps_for("manus") == 8
    assert lab.load("").max_steps_for("manus") is None


def test_flags_of_named_models_and_agents(lab: Lab) -> None:
    text = '[llm]\nmodel = "a"\n[llm."gpt-4.1"]\nmodel = "b"'
    config = lab.load(text, flags={"llm.gpt-4.1.model": "c", "agents.manus.llm": "gpt-4.1", "sandbox.mode": "none"})
    assert (config.llm["default"].model, config.llm["gpt-4.1"].model) == ("a", "c")
    assert config.llm_name_for_agent("manus") == ("gpt-4.1", "[agents.manus] llm")
    assert config.sandbox.mode == "none"
    assert config.origins["sandbox.mode"] == "flag --sandbox"


def test_a_flag_beats_a_default_table_too(lab: Lab) -> None:
    text = '[llm]\nmodel = "a"\ntemperature = 0\n[llm.default]\nmodel = "b"\nretry = { max_retries = 1 }'
    config = lab.load(text)
    assert (config.llm["default"].model, config.llm["default"].temperature) == ("b", 0.0)
    assert config.llm["default"].retry.max_retries == 1
    assert config.origins["llm.default.model"] == "config/config.toml:5"
    assert list(config.llm) == ["default"]
    assert lab.load(text, flags={"llm.default.model": "c"}).llm["default"].model == "c"


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"WORK_DIR": "/w"}, "/w"),
        ({"WORK_DIR": "/w", "DRAGOMAN_WORKSPACE": "/d"}, "/d"),
        ({}, "/file"),
    ],
)
def test_workspace_variables_beat_the_file(lab: Lab, env: dict[str, str], path: str) -> None:
    assert lab.load('[workspace]\npath = "/file"', env).workspace.path == path


# Inheritance


def test_scenario_f1_defect_1_named_models_override_the_base_and_belong_to_agents(lab: Lab) -> None:
    config = lab.load('[llm]\nmodel = "A"\ntemperature = 0.2\n[llm.manus]\nmodel = "B"')
    assert [(settings.name, settings.model, settings.temperature) for settings in config.llm.values()] == [
        ("default", "A", 0.2),
        ("manus", "B", 0.2),
    ]
    assert config.llm_name_for_agent("Manus") == ("manus", "[llm.manus]")
    assert config.llm_name_for_agent("planner") == ("default", "[llm]")
    assert config.origins["llm.manus.model"] == "config/config.toml:5"
    assert config.origins["llm.manus.temperature"] == "config/config.toml:3"


def test_reserved_tables_are_merged_key_by_key(lab: Lab) -> None:
    text = """
        [llm]
        model = "A"
        timeout = 60
        [llm.retry]
        max_retries = 0
        max_delay_s = 2
        [llm.capabilities]
        images = true
        [llm.fast]
        timeout = { idle_s = 5 }
        retry = { max_retries = 3 }
        [llm.fast.capabilities]
        tools = false
    """
    config = lab.load(text)
    assert list(config.llm) == ["default", "fast"]
    default, fast = config.llm["default"], config.llm["fast"]
    assert (default.retry.max_retries, default.timeout.total_s, default.capabilities.tools) == (0, 60.0, None)
    assert (fast.retry.max_retries, fast.retry.max_delay_s) == (3, 2.0)
    assert (fast.timeout.idle_s, fast.timeout.total_s) == (5.0, 60.0)
    assert (fast.capabilities.images, fast.capabilities.tools) == (True, False)
    assert config.origins["llm.fast.timeout.total_s"] == "config/config.toml:4"
    assert config.origins["llm.fast.retry.max_delay_s"] == "config/config.toml:7"
    assert config.origins["llm.fast.retry.max_retries"] == "config/config.toml:12"


def test_environment_values_of_the_base_are_inherited_and_own_values_stay(lab: Lab) -> None:
    text = '[llm]\nmodel = "A"\n[llm.x]\ntemperature = 0\n[llm.y]\nmodel = "Y"'
    config = lab.load(text, {"DRAGOMAN_MODEL": "E"})
    assert [config.llm[name].model for name in ("default", "x", "y")] == ["E", "E", "Y"]


@pytest.mark.parametrize(
    ("base", "own", "inherited"),
    [
        ("", 'model = "b"', True),
        ("", f'base_url = "{GATEWAY}"', False),
        (f'base_url = "{GATEWAY}"', 'base_url = "https://other.example.com/v1"', True),
        (f'base_url = "{GATEWAY}"', 'api_type = "openai_responses"', True),
        (f'base_url = "{GATEWAY}"', 'base_url = "http://127.0.0.1:11434"', False),
        ('base_url = "https://api.deepseek.com"', 'api_type = "deepseek"', True),
        ('base_url = "https://api.deepseek.com"', 'base_url = "https://api.deepseek.com/beta"', True),
        ('api_type = "anthropic"', 'api_type = "openai"', False),
        ('api_type = "anthropic"', 'base_url = "https://api.deepseek.com/anthropic"', False),
        ("", 'api_type = "ollama"', False),
    ],
)
def test_a_key_and_headers_are_not_inherited_by_another_account(lab: Lab, base: str, own: str, inherited: bool) -> None:
    text = f'[llm]\nmodel = "a"\napi_key = "sk-secret1"\nheaders = {{ A = "b" }}\n{base}\n[llm.x]\n{own}'
    config = lab.load(text)
    assert key(config, "x") == ("sk-secret1" if inherited else "")
    assert config.llm["x"].headers == ({"A": "b"} if inherited else {})
    assert key(config) == "sk-secret1"


def test_another_label_does_not_inherit_the_address(lab: Lab) -> None:
    config = lab.load(f'[llm]\nmodel = "a"\nbase_url = "{GATEWAY}"\n[llm.x]\napi_type = "ollama"\n[llm.y]\nmodel = "b"')
    assert (config.llm["x"].base_url, config.llm["y"].base_url) == ("", GATEWAY)


def test_a_fallback_leaves_out_itself(lab: Lab) -> None:
    config = lab.load('[llm]\nmodel = "a"\nfallback = ["x", "y"]\n[llm.x]\n[llm.y]\nfallback = ["default"]')
    assert [config.llm[name].fallback for name in ("default", "x", "y")] == [("x", "y"), ("y",), ("default",)]


# Keys and addresses


@pytest.mark.parametrize(
    ("llm", "env", "expected", "origin"),
    [
        ("", {"OPENAI_API_KEY": "env"}, "env", "env OPENAI_API_KEY"),
        ('api_key = ""', {"OPENAI_API_KEY": "env"}, "env", "env OPENAI_API_KEY"),
        ('api_key = "YOUR_API_KEY"', {"OPENAI_API_KEY": "env"}, "env", "env OPENAI_API_KEY"),
        ('api_key = "YOUR_API_KEY"', {}, "", "placeholder at config/config.toml:3"),
        ('api_key = " file "', {"OPENAI_API_KEY": "env"}, "file", "config/config.toml:3"),
        ('api_key = "file"', {"DRAGOMAN_API_KEY": "own"}, "own", "env DRAGOMAN_API_KEY"),
        ('api_key = "ollama"', {"OPENAI_API_KEY": "env"}, "ollama", "config/config.toml:3"),
        ('api_key = "${MINE}"', {"MINE": "m"}, "m", "config/config.toml:3"),
        ('base_url = "https://api.deepseek.com"', {"OPENAI_API_KEY": "o", "DEEPSEEK_API_KEY": "d"}, "d",
         "env DEEPSEEK_API_KEY"),
        ('api_type = "gemini"', {"GOOGLE_API_KEY": "g"}, "g", "env GOOGLE_API_KEY"),
        (f'base_url = "{GATEWAY}"', {"OPENAI_API_KEY": "o"}, "", "default"),
        (f'base_url = "{GATEWAY}"', {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": f"{GATEWAY}/"}, "o",
         "env OPENAI_API_KEY"),
        ('base_url = "http://127.0.0.1:8000/v1"', {"OPENAI_API_KEY": "o"}, "", "default"),
        ('api_type = "ppio"', {"PPIO_API_KEY": "p", "OPENAI_API_KEY": "o"}, "p", "env PPIO_API_KEY"),
        ('api_type = "nosuch"\nbase_url = "https://x.example.com"', {"OPENAI_API_KEY": "o"}, "", "default"),
        ('api_type = "anthropic"', {"ANTHROPIC_API_KEY": "a", "DEEPSEEK_API_KEY": "d"}, "a", "env ANTHROPIC_API_KEY"),
        ('api_type = "anthropic"\nbase_url = "https://api.deepseek.com/anthropic"',
         {"ANTHROPIC_API_KEY": "a", "DEEPSEEK_API_KEY": "d"}, "d", "env DEEPSEEK_API_KEY"),
        ('api_type = "anthropic"', {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": "https://gateway.example.com"},
         "a", "env ANTHROPIC_API_KEY"),
    ],
)  # fmt: skip
def test_whose_key_is_used(lab: Lab, llm: str, env: dict[str, str], expected: str, origin: str) -> None:
    config = lab.load(f'[llm]\nmodel = "m"\n{llm}', env)
    assert (key(config), config.origins["llm.default.api_key"]) == (expected, origin)


def test_a_model_without_an_account_goes_to_the_vendor_whose_key_is_set(lab: Lab) -> None:
    assert lab.load('[llm]\nmodel = "m"', {"ANTHROPIC_API_KEY": "k"}).llm["default"].api_type == "anthropic"
    assert lab.load('[llm]\nmodel = "m"').llm["default"].api_type == "openai"


def test_the_address_variable_of_a_vendor_is_used_when_the_file_has_none(lab: Lab) -> None:
    env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "gateway.example.com/v1/"}
    config = lab.load(env=env)
    assert (config.llm["default"].base_url, key(config)) == (GATEWAY, "k")
    assert config.origins["llm.default.base_url"] == "env OPENAI_BASE_URL"


def test_bug_185_the_port_of_a_local_address_is_kept(lab: Lab) -> None:
    config = lab.load('[llm]\napi_type = "ollama"\nmodel = "m"\nbase_url = "127.0.0.1:11500"')
    assert config.llm["default"].base_url == "http://127.0.0.1:11500"


def test_a_vendor_without_a_model_gets_its_usual_one(lab: Lab) -> None:
    config = lab.load('[llm]\napi_type = "Groq"\napi_key = "k"')
    assert (config.llm["default"].model, config.llm["default"].api_type) == ("openai/gpt-oss-120b", "groq")
    assert config.origins["llm.default.model"] == "default"


def test_defect_39_references_to_the_environment_work_in_every_text(lab: Lab) -> None:
    text = """
        [llm]
        model = "${M}"
        headers = { A = "Bearer ${T}", B = "$${T}" }
        fallback = ["${F}"]
        [llm.local]
        [browser.proxy]
        password = "${T}"
    """
    config = lab.load(text, {"M": "m", "T": "t", "F": "local"})
    assert config.llm["default"].model == "m"
    assert config.llm["default"].headers == {"A": "Bearer t", "B": "${T}"}
    assert config.llm["default"].fallback == ("local",)
    assert config.browser.proxy.password.get_secret_value() == "t"


def test_daytona_key_comes_from_its_variable_when_the_file_has_none(lab: Lab) -> None:
    for text in ("", "[daytona]", '[daytona]\ndaytona_api_key = ""', '[daytona]\ndaytona_api_key = "YOUR_API_KEY"'):
        config = lab.load(text, {"DAYTONA_API_KEY": "d"})
        assert config.daytona.daytona_api_key.get_secret_value() == "d"
        assert config.origins["daytona.daytona_api_key"] == "env DAYTONA_API_KEY"
    config = lab.load('[daytona]\ndaytona_api_key = "file"', {"DAYTONA_API_KEY": "d"})
    assert config.daytona.daytona_api_key.get_secret_value() == "file"
    assert lab.load('[daytona]\ndaytona_api_key = "YOUR_API_KEY"').daytona.daytona_api_key == SecretStr("")


def test_defect_36_scenario_f9_no_daytona_table_is_needed(lab: Lab) -> None:
    assert lab.load('[llm]\nmodel = "m"').daytona.daytona_api_key == SecretStr("")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_byte_order_marks_and_windows_line_ends_are_read(lab: Lab, ending: str) -> None:
    text = ending.join(["\ufeff[llm]", 'model = "m"', "temperature = 1"])
    config = lab.load(text.encode())
    assert config.llm["default"].model == "m"
    assert config.origins["llm.default.temperature"] == "config/config.toml:3"


# Secrets


def test_defect_39_no_secret_is_ever_shown(lab: Lab) -> None:
    text = """
        [llm]
        model = "m"
        api_key = "SECRET-1"
        base_url = "https://user:SECRET-2@gateway.example.com/v1?key=SECRET-3"
        headers = { Authorization = "SECRET-4" }
        [server]
        token = "SECRET-5"
        [mcp.servers.x]
        command = "c"
        args = ["SECRET-6"]
        env = { T = "SECRET-7" }
        headers = { T = "SECRET-8" }
        [browser.proxy]
        server = "http://user:SECRET-9@proxy"
        [daytona]
        VNC_password = "SECRET-10"
    """
    config = lab.load(text)
    assert config.llm["default"].headers == {"Authorization": "SECRET-4"}
    for shown in (
        repr(config),
        str(config),
        f"{config}",
        config.model_dump_json(include={"llm": {"default": {"api_key"}}}),
    ):
        assert "SECRET" not in shown
    assert "SECRET" not in str(config.origins)


def test_errors_of_settings_built_in_code_do_not_quote_values() -> None:
    with pytest.raises(ValidationError) as caught:
        LLMSettings(api_key=["SECRET"])  # pyright: ignore[reportArgumentType]
    assert "SECRET" not in str(caught.value)
    assert "hunter2" not in repr(ProxySettings(server="http://me:hunter2@proxy"))


def test_a_model_configuration_that_does_not_exist_names_those_that_do(lab: Lab) -> None:
    config = lab.load('[llm]\nmodel = "a"\n[llm.b]')
    assert config.llm_for("b").name == "b"
    with pytest.raises(ConfigError, match=r"there is no \[llm\.c\]") as caught:
        config.llm_for("c")
    assert caught.value.hint == "known model configurations: b, default"
