"""`config check`: what is in force, where it comes from, what looks wrong."""

from __future__ import annotations

import pytest

from app.config.report import config_warnings, describe
from app.config.settings import McpServerSettings, McpSettings
from tests.config.conftest import Lab


def test_values_and_origins_are_shown(lab: Lab) -> None:
    text = '[llm]\nmodel = "m"\n[llm.vision]\napi_key = "sk-SECRET"\n[budget]\nmax_cost = 2'
    shown = describe(lab.load(text, {"OPENAI_API_KEY": "sk-SECRET"}, {"budget.max_steps": 5}))
    lines = shown.split("\n")
    assert lines[0] == "Configuration: config/config.toml"
    default = lines[lines.index("[llm]") : lines.index("[llm.timeout]")]
    assert '  model = "m" (config/config.toml:2)' in default
    assert "  api_key = set (env OPENAI_API_KEY)" in default
    assert "  temperature = not set" in default
    vision = lines[lines.index("[llm.vision]") : lines.index("[llm.vision.timeout]")]
    assert '  model = "m" (config/config.toml:2)' in vision
    assert "  api_key = set (config/config.toml:4)" in vision
    budget = lines[lines.index("[budget]") : lines.index("[budget.agent]")]
    assert "  max_steps = 5 (flag --max-steps)" in budget
    assert "  max_tokens = not set" in budget
    assert "  max_cost = 2.0 (config/config.toml:6)" in budget
    assert '  engine = "Google" (default)' in lines
    assert "SECRET" not in shown


def test_no_secret_is_shown(lab: Lab) -> None:
    lab.write_mcp({"x": {"command": "c", "args": ["SECRET"], "env": {"A": "SECRET"}, "headers": {"B": "SECRET"}}})
    text = """
        [llm]
        model = "m"
        base_url = "https://me:SECRET@h.example.com/v1?key=SECRET"
        headers = { Authorization = "SECRET" }
        [browser.proxy]
        server = "http://me:SECRET@proxy"
        password = "SECRET"
        [server]
        token = "SECRET"
    """
    shown = describe(lab.load(text))
    assert "SECRET" not in shown
    assert "  headers = Authorization (values hidden; config/config.toml:5)" in shown
    assert '  base_url = "https://***@h.example.com/v1?key=***" (config/config.toml:4)' in shown
    assert "  args = 1 arguments (config/mcp.json)" in shown
    assert "  token = set (config/config.toml:10)" in shown


def test_without_a_file(lab: Lab) -> None:
    shown = describe(lab.load())
    assert shown.startswith("Configuration: no file\n")
    assert "[llm] names no model; a local server or the embedded model is looked for at the start" in shown


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ('[llm]\nmodel = "m"\napi_key = "k"', []),
        ('[llm]\nmodel = "m"', ["[llm] has no key; set OPENAI_API_KEY"]),
        ('[llm]\nmodel = "m"\napi_key = "YOUR_API_KEY"',
         ["[llm] api_key is a placeholder at config/config.toml:3; put your key there or set OPENAI_API_KEY"]),
        ('[llm]\napi_type = "google"\nmodel = "m"', ["[llm] has no key; set GEMINI_API_KEY or GOOGLE_API_KEY"]),
        ('[llm]\nmodel = "m"\nbase_url = "https://g.example.com"', ["[llm] has no key; set DRAGOMAN_API_KEY"]),
        ('[llm]\napi_type = "ollama"', ["[llm] names no model"]),
        ('[llm]\napi_type = "ollama"\nmodel = "m"', []),
        ('[llm]\napi_type = "aws"\nmodel = "m"', []),
        ('[llm]\nmodel = "m"\napi_key = "k"\napi_type = "pipo"',
         ['[llm] api_type "pipo" is an unknown label; it is read as "openai"']),
        ('[llm]\nmodel = "m"\napi_key = "k"\n[llm.vision]\nmodel = "v"', []),
        ('[llm]\nmodel = "m"\napi_key = "k"\n[llm.spare]\nmodel = "v"',
         ["[llm.spare] is used by nothing; name it in [agents.<name>] llm, or remove it"]),
        (
            '[llm]\nmodel = "m"\napi_key = "k"\nfallback = ["vision"]\n[llm.vision]\nmodel = "v"\nfallback = []',
            [],
        ),
        ('[llm]\nmodel = "m"\napi_key = "k"\n[llm.vision]\n[agents.manus]\nllm = "vision"', []),
        ('[llm]\nmodel = "m"\napi_key = "k"\n[llm.manus]\nmodel = "v"', []),
        ('[llm]\nmodel = "m"\napi_key = "k"\n[llm.mine]\n[agents.Mine]', []),
    ],
)  # fmt: skip
def test_warnings(lab: Lab, text: str, warnings: list[str]) -> None:
    assert list(config_warnings(lab.load(text))) == warnings


def test_named_mcp_servers_are_told_as_unused(lab: Lab) -> None:
    config = lab.load('[llm]\nmodel = "m"\napi_key = "k"')
    servers = {"time": McpServerSettings(type="stdio", command="mcp-server-time")}
    config = config.model_copy(update={"mcp": McpSettings(servers=servers)})
    assert list(config_warnings(config)) == ["MCP servers are not used by this version: time"]


def test_a_table_is_called_unused_unless_somebody_asks_for_it(lab: Lab) -> None:
    config = lab.load('[llm]\nmodel = "m"\napi_key = "k"\n[llm.spare]\nmodel = "v"')
    assert "[llm.spare] is used by nothing" in describe(config)
    assert "Warnings: none" in describe(config, used_names={"spare"})
