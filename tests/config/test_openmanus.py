"""OpenManus's `config.toml` and `mcp.json`, and `mcp.json` in general, load as they are."""

from __future__ import annotations

import json

import pytest

from app.config.settings import McpServerSettings
from app.config.vendors import vendor_for
from tests.config.conftest import Lab

FULL = """
# Global model
[llm]
model = "claude-3-7-sonnet-20250219"
base_url = "https://api.anthropic.com/v1/"
api_key = "YOUR_API_KEY"
max_tokens = 8192
max_input_tokens = 100000
temperature = 0.0
api_type = ""
api_version = ""

[llm.vision]
model = "claude-3-7-sonnet-20250219"
base_url = "https://api.anthropic.com/v1/"
api_key = "YOUR_API_KEY"
max_tokens = 8192
temperature = 0.0

[browser]
headless = false
disable_security = true
extra_chromium_args = ["--no-first-run"]
chrome_instance_path = ""
wss_url = ""
cdp_url = ""
max_content_length = 4000

[browser.proxy]
server = "http://proxy.example.com:8080"
username = "me"
password = "secret"

[search]
engine = "DuckDuckGo"
fallback_engines = ["Baidu", "Bing"]
retry_delay = 30
max_retries = 2
lang = "zh"
country = "cn"

[sandbox]
use_sandbox = true
image = "python:3.12-slim"
work_dir = "/workspace"
memory_limit = "1g"
cpu_limit = 2.0
timeout = 300
network_enabled = true

[daytona]
daytona_api_key = "dtn-1"
daytona_server_url = "https://app.daytona.io/api"
daytona_target = "eu"
sandbox_image_name = "example/sandbox:0.1.0"
sandbox_entrypoint = "/usr/bin/supervisord -n"
VNC_password = "123456"

[mcp]
server_reference = "app.mcp.server"

[runflow]
use_data_analysis_agent = true
"""


def test_every_table_and_key_of_openmanus_is_read(lab: Lab) -> None:
    config = lab.load(FULL, {"ANTHROPIC_API_KEY": "k"})
    default, vision = config.llm["default"], config.llm["vision"]
    assert default.model == vision.model == "claude-3-7-sonnet-20250219"
    assert (default.max_tokens, default.max_input_tokens, default.temperature) == (8192, 100000, 0.0)
    assert vision.max_input_tokens == 100000
    assert (default.base_url, default.api_type) == ("https://api.anthropic.com/v1", "openai")
    assert default.api_key.get_secret_value() == vision.api_key.get_secret_value() == "k"
    browser, search, sandbox = config.browser, config.search, config.sandbox
    assert (browser.headless, browser.disable_security, browser.max_content_length) == (False, True, 4000)
    assert browser.extra_chromium_args == ("--no-first-run",)
    assert (browser.chrome_instance_path, browser.wss_url, browser.cdp_url) == ("", "", "")
    assert (browser.proxy.server, browser.proxy.username) == ("http://proxy.example.com:8080", "me")
    assert browser.proxy.password.get_secret_value() == "secret"
    assert (search.engine, search.fallback_engines, search.retry_delay) == ("DuckDuckGo", ("Baidu", "Bing"), 30.0)
    assert (search.max_retries, search.lang, search.country) == (2, "zh", "cn")
    assert (sandbox.use_sandbox, sandbox.memory_limit, sandbox.cpu_limit) == (True, "1g", 2.0)
    assert (sandbox.timeout, sandbox.network_enabled, sandbox.mode) == (300, True, "auto")
    assert config.daytona.daytona_api_key.get_secret_value() == "dtn-1"
    assert (config.daytona.daytona_target, config.daytona.sandbox_image_name) == ("eu", "example/sandbox:0.1.0")
    assert (config.mcp.server_reference, config.runflow.use_data_analysis_agent) == ("app.mcp.server", True)


@pytest.mark.parametrize(
    ("llm", "vendor", "known", "api_type"),
    [
        ('api_type = "azure"\nbase_url = "https://me.openai.azure.com/openai/d"\napi_version = "2024-08-01"',
         "azure", True, "azure"),
        ('api_type = "aws"\nbase_url = "bedrock.us-west-2.amazonaws.com"\napi_key = "bear"', "aws", True, "aws"),
        ('api_type = "ollama"\nbase_url = "http://localhost:11434/v1"\napi_key = "ollama"', "ollama", True, "ollama"),
        ('base_url = "https://generativelanguage.googleapis.com/v1beta/openai/"', "google", True, "openai"),
        ('api_type = "ppio"\nbase_url = "https://api.ppinfra.com/v3/openai"', "ppio", True, "ppio"),
        ('api_type = "jiekou"\nbase_url = "https://api.jiekou.ai/openai"', "jiekou", True, "jiekou"),
        ('api_type = "Openai"\nbase_url = "https://api.openai.com/v1"', "openai", True, "openai"),
        ('api_type = "somegateway"\nbase_url = "https://api.openai.com/v1"', "openai", False, "somegateway"),
        ('api_type = "somegateway"\nbase_url = "https://gateway.example.com/v1"', None, False, "somegateway"),
    ],
)  # fmt: skip
def test_every_kind_of_account_of_openmanus_loads(
    lab: Lab, llm: str, vendor: str | None, known: bool, api_type: str
) -> None:
    key = "" if "api_key" in llm else 'api_key = "YOUR_API_KEY"\n'
    default = lab.load(f'[llm]\nmodel = "m"\nmax_tokens = 4096\n{key}{llm}').llm["default"]
    row, label_known = vendor_for(default.api_type, default.base_url)
    assert (row.name if row else None, label_known, default.api_type) == (vendor, known, api_type)


# mcp.json

SERVERS = {
    "sse": {"type": "sse", "url": "http://localhost:8000/sse"},
    "stdio": {"type": "stdio", "command": "python", "args": ["-m", "server"]},
}


def test_mcp_json_of_openmanus_is_read_beside_the_configuration(lab: Lab) -> None:
    lab.write_mcp(SERVERS)
    config = lab.load("")
    assert config.mcp.servers == {
        "sse": McpServerSettings(type="sse", url="http://localhost:8000/sse"),
        "stdio": McpServerSettings(type="stdio", command="python", args=("-m", "server")),
    }
    assert config.origins["mcp.servers.stdio.command"] == "config/mcp.json"


def test_mcp_json_beside_the_configuration_comes_before_the_one_in_config(lab: Lab) -> None:
    elsewhere = lab.write("", lab.folder / "elsewhere" / "my.toml")
    lab.write_mcp({"general": SERVERS["stdio"]})
    assert list(lab.load(path=elsewhere).mcp.servers) == ["general"]
    lab.write_mcp({"special": SERVERS["stdio"]}, elsewhere.parent / "mcp.json")
    assert list(lab.load(path=elsewhere).mcp.servers) == ["special"]
    assert list(lab.load().mcp.servers) == ["general"]


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ({"command": "c"}, "stdio"),
        ({"url": "http://h/sse"}, "sse"),
        ({"url": "http://h/sse/?a=1"}, "sse"),
        ({"url": "http://h/mcp"}, "http"),
        ({"command": "c", "url": "http://h/mcp", "type": "http"}, "http"),
        ({"url": "http://h/sse", "type": "streamable-http"}, "streamable-http"),
    ],
)
def test_the_type_of_a_server_is_inferred(lab: Lab, entry: dict[str, str], kind: str) -> None:
    lab.write_mcp({"x": entry})
    assert lab.load().mcp.servers["x"].type == kind


def test_servers_of_both_files_count_and_references_work(lab: Lab) -> None:
    lab.write_mcp({"a": {"command": "c", "env": {"T": "${TOKEN}"}, "disabled": True}})
    config = lab.load('[mcp.servers.b]\nurl = "http://h/mcp"\nheaders = { A = "${TOKEN}" }', {"TOKEN": "t"})
    assert (config.mcp.servers["a"].env, config.mcp.servers["a"].disabled) == ({"T": "t"}, True)
    assert (config.mcp.servers["b"].headers, config.mcp.servers["b"].type) == ({"A": "t"}, "http")


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"comand": "c"}, '[mcp.servers.x] has no key "comand"; did you mean "command"?'),
        ({"command": "c", "args": "a"}, "[mcp.servers.x] args must be a list, found a text"),
        ({"command": "c", "env": {"A": 1}}, "[mcp.servers.x.env] A must be a text, found a number"),
        ({"command": "${NOPE}"},
         "[mcp.servers.x] command refers to the environment variable NOPE, which is not set"),
        ({}, 'the MCP server "x" needs a command or a url'),
        ({"type": "stdio", "url": "http://h"}, 'the MCP server "x" of type stdio needs a command'),
        ({"type": "sse", "command": "c"}, 'the MCP server "x" of type sse needs a url'),
        ({"type": "carrier-pigeon", "command": "c"},
         '[mcp.servers.x] type must be one of "stdio", "sse", "http" or "streamable-http", found a text'),
        ([], "[mcp.servers] x must be a table, found a list"),
    ],
)  # fmt: skip
def test_mistakes_in_mcp_json_are_named(lab: Lab, entry: object, sentence: str) -> None:
    lab.write_mcp({"x": entry})
    lines = lab.problems()
    assert lines[0] == f"config/mcp.json: {sentence}"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ('{"mcpServers": {}', "config/mcp.json:1: no valid JSON, column 18: "),
        ('{\n"mcpServers": {},}', "config/mcp.json:2: no valid JSON, column "),
        ("[]", "config/mcp.json: must be a JSON object"),
        ('{"servers": {}}', 'config/mcp.json: no key "servers" is known here; did you mean "mcpServers"?'),
        ('{"mcpServers": []}', "config/mcp.json: mcpServers must be a table of servers by name"),
        ("[" * 100_000, "config/mcp.json: nested too deeply"),
    ],
)
def test_a_broken_mcp_json_is_named(lab: Lab, text: str, start: str) -> None:
    lab.write(text, lab.file.parent / "mcp.json")
    (line,) = lab.problems()
    assert line.startswith(start)


def test_an_empty_mcp_json_is_fine(lab: Lab) -> None:
    for content in ({}, {"mcpServers": {}}):
        lab.write(json.dumps(content), lab.file.parent / "mcp.json")
        assert lab.load().mcp.servers == {}
