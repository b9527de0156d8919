"""Bad input: each mistake is named with its place, all at once, in words, and without a secret."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.load import load_config
from app.config.sources import key_lines
from app.schema.errors import ConfigError
from tests.config.conftest import Lab

AT = "config/config.toml"


def _error(lab: Lab, text: str | bytes) -> ConfigError:
    lab.write(text)
    with pytest.raises(ConfigError) as caught:
        load_config(env=lab.env())
    return caught.value


# Keys and tables


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[llm]\nmodel = "m"\nmodle = "x"', f'{AT}:3: [llm] has no key "modle"; did you mean "model"?'),
        ("[llm.vision]\nbaseurl = 1", f'{AT}:2: [llm.vision] has no key "baseurl"; did you mean "base_url"?'),
        ("[llm]\nAPI_KEY = 1", f'{AT}:2: [llm] has no key "API_KEY"; did you mean "api_key"?'),
        ("[llm]\nmax-tokens = 1", f'{AT}:2: [llm] has no key "max-tokens"; did you mean "max_tokens"?'),
        ("[llm]\nname = 'x'", f'{AT}:2: [llm] has no key "name"; known: '),
        ("[llm]\ntop_p = 1", f'{AT}:2: [llm] has no key "top_p"'),
        ("[llm]\nmax_steps = 3", f'{AT}:2: [llm] has no key "max_steps"; it belongs in [agents.<name>] or [budget]'),
        ("[llm.retry]\nmax_retry = 3", f'{AT}:2: [llm.retry] has no key "max_retry"; did you mean "max_retries"?'),
        ("[llm.y.capabilities]\nimage = 1", f'{AT}:2: [llm.y.capabilities] has no key "image"; did you mean "images"?'),
        ("[search]\n[browser.proxy]\nuser = 1", f'{AT}:3: [browser.proxy] has no key "user"; did you mean "username"?'),
        ("[browzer]\nx = 1", f"{AT}:1: there is no table [browzer]; did you mean [browser]?"),
        ("[future]\nx = 1", f"{AT}:1: there is no table [future]"),
        ("model = 'm'", f'{AT}:1: the key "model" stands outside any table; it belongs in [llm]'),
        ("path = 'm'", f'{AT}:1: the key "path" stands outside any table; it belongs in [workspace]'),
        ("nonsense = 1", f'{AT}:1: the key "nonsense" stands outside any table'),
        ("[origins]\nx = 1", f"{AT}:1: there is no table [origins]"),
        ("[agents.manus]\nmaxsteps = 1", f'{AT}:2: [agents.manus] has no key "maxsteps"; did you mean "max_steps"?'),
        ('[llm."gpt-4.1"]\nmodle = 1', f'{AT}:2: [llm."gpt-4.1"] has no key "modle"; did you mean "model"?'),
    ],
)  # fmt: skip
def test_defect_37_misspelt_keys_and_tables_name_line_and_nearest_key(lab: Lab, text: str, sentence: str) -> None:
    (line,) = lab.problems(text)
    assert line == sentence or (sentence.endswith(("known: ", '"top_p"')) and line.startswith(sentence))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[llm]\ntemperature = "banana"', '[llm] temperature must be a number, found "banana"'),
        ('[llm]\nmax_tokens = "8192"', '[llm] max_tokens must be a whole number, found "8192"'),
        ("[llm]\nmax_tokens = true", "[llm] max_tokens must be a whole number, found true"),
        ("[llm]\nmax_tokens = 1.5", "[llm] max_tokens must be a whole number, found 1.5"),
        ("[llm]\nmax_tokens = [1]", "[llm] max_tokens must be a whole number, found a list"),
        ("[llm]\nmodel = 4", "[llm] model must be a text, found 4"),
        ("[llm]\nmodel = 1979-05-27", "[llm] model must be a text, found a date"),
        ("[llm]\ntemperature = nan", "[llm] temperature must be a finite number, found nan"),
        ("[llm]\ntemperature = 2.5", "[llm] temperature must be at most 2, found 2.5"),
        ('[llm]\ntools = "always"', '[llm] tools must be one of "native", "text" or "auto", found "always"'),
        ('[llm]\nfallback = "x"', '[llm] fallback must be a list, found "x"'),
        ("[llm]\nfallback = [1]", "[llm] fallback, item 1, must be a text, found 1"),
        ("[llm]\nretry = 3", "[llm] retry must be a table, found 3"),
        ('[browser]\nheadless = "false"', '[browser] headless must be true or false, found "false"'),
        ("[browser]\nheadless = 1", "[browser] headless must be true or false, found 1"),
        ("[sandbox]\nmode = 'cage'",
         '[sandbox] mode must be one of "auto", "bwrap", "docker" or "none", found "cage"'),
        ("[server]\nport = 70000", "[server] port must be at most 65535, found 70000"),
        ("[llm]\napi_key = 123456", "[llm] api_key must be a text, found a number"),
        ("[agents.manus]\nmax_steps = 'x'", '[agents.manus] max_steps must be a whole number, found "x"'),
    ],
)  # fmt: skip
def test_bug_180_wrong_types_name_what_was_wanted_and_found(lab: Lab, text: str, sentence: str) -> None:
    assert lab.problems(text) == [f"{AT}:2: {sentence}"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("llm = 3", "[llm] must be a table, found a number"),
        ("[[llm]]\nmodel = 'x'", "[llm] must be a table, found a list"),
        ("browser = 'x'", "[browser] must be a table, found a text"),
        ("agents = 1", "[agents] must be a table of agents by name"),
        ("[agents]\nmanus = 1", "[agents.manus] must be a table, found a number"),
    ],
)
def test_values_in_the_place_of_tables(lab: Lab, text: str, sentence: str) -> None:
    line = 2 if "manus" in text else 1
    assert lab.problems(text) == [f"{AT}:{line}: {sentence}"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[llm]\ntimeout = 0", "[llm.timeout] total_s must be greater than 0, found 0"),
        ("[agents.manus]\nmax_steps = 0", "[agents.manus] max_steps must be at least 1, found 0"),
        ("[budget]\nmax_cost = 0", "[budget] max_cost must be greater than 0, found 0"),
    ],
)
def test_bug_192_a_zero_is_refused_and_never_replaced(lab: Lab, text: str, sentence: str) -> None:
    assert lab.problems(text) == [f"{AT}:2: {sentence}"]


def test_bug_192_zero_retries_and_temperature_stay_zero(lab: Lab) -> None:
    default = lab.load('[llm]\nmodel = "m"\ntemperature = 0\n[llm.retry]\nmax_retries = 0').llm["default"]
    assert (default.temperature, default.retry.max_retries) == (0.0, 0)


def test_all_mistakes_are_listed_at_once_in_the_order_of_the_file(lab: Lab) -> None:
    text = """[llm]
modle = "a"
base_url = "my host"
temperature = "hot"

[llm.x]
fallback = ["nope"]

[agents.manus]
llm = "y"

[browzer]
[workspace]
path = "${NOPE}"
"""
    lines = lab.problems(text, {"DRAGOMAN_TIMEOUT": "soon"}, {"sandbox.mode": "cage", "llm.zz.model": "m"})
    assert lines == [
        f'{AT}:2: [llm] has no key "modle"; did you mean "model"?',
        f"{AT}:3: [llm] base_url is no address: it has blanks, quotes or brackets in it",
        f'{AT}:4: [llm] temperature must be a number, found "hot"',
        f'{AT}:7: [llm.x] fallback names "nope", but there is no [llm.nope]; known: x, default',
        f'{AT}:10: [agents.manus] llm names "y", but there is no [llm.y]; known: x, default',
        f"{AT}:12: there is no table [browzer]; did you mean [browser]?",
        f"{AT}:14: [workspace] path refers to the environment variable NOPE, which is not set",
        'env DRAGOMAN_TIMEOUT: [budget] timeout_s must be a number, found "soon"',
        "flag --model: there is no [llm.zz]; known: x, default",
        'flag --sandbox: [sandbox] mode must be one of "auto", "bwrap", "docker" or "none", found "cage"',
    ]


@pytest.mark.parametrize("value", ["abc", "-1", "0", "1.5", "true"])
def test_numeric_variables_are_checked(lab: Lab, value: str) -> None:
    (line,) = lab.problems("", {"DRAGOMAN_MAX_STEPS": value})
    assert line.startswith("env DRAGOMAN_MAX_STEPS: [budget] max_steps must be ")


def test_a_bad_address_variable_is_named(lab: Lab) -> None:
    env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "ftp://h"}
    assert lab.problems(env=env) == ["env OPENAI_BASE_URL: this is no address: only http:// and https:// are spoken"]


def test_the_line_of_a_key_inside_multi_line_values_is_right(lab: Lab) -> None:
    text = '''# [llm] in a comment
[browser]
extra_chromium_args = [
  "a]",  # modle = 1
  "[llm]",
]
chrome_instance_path = """
[llm]
modle = 1
"""
modle = 2
'''
    assert lab.problems(text) == [f'{AT}:11: [browser] has no key "modle"; known: headless, disable_security, '
        "extra_chromium_args, chrome_instance_path, wss_url, cdp_url, max_content_length, proxy"]  # fmt: skip


_NAMES = st.text("abcdef", min_size=1, max_size=3)
_VALUES = st.sampled_from(
    ['"x"', "'y'", "1", "[1,\n 2]", '"""\nm\n"""', "{ a = 1 }", "1979-05-27", "[\n]", "'''[z]'''"]
)


@given(st.lists(st.one_of(st.tuples(_NAMES, _VALUES), _NAMES), max_size=12))
def test_every_key_of_any_file_has_a_line_where_it_stands(statements: list[tuple[str, str] | str]) -> None:
    lines = [f"[{item}]" if isinstance(item, str) else f"{item[0]} = {item[1]}  # {item[0]}" for item in statements]
    text = "\n".join(lines)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = key_lines(text)
    source = text.split("\n")
    for table, value in tree.items():
        assert table in source[found[(table,)] - 1]
        for key in value if isinstance(value, dict) else ():
            assert key in source[found[(table, key)] - 1]


# Secrets


@pytest.mark.parametrize(
    "text",
    [
        '[llm]\nmodel = "m"\napi_key = ["sk-SECRET"]',
        '[llm]\nmodel = "m"\napikey = "sk-SECRET"',
        'api_key = "sk-SECRET"',
        '[llm]\nmodel = "sk-SECRET',
        '[llm]\nmodel = "m"\napi_key = sk-SECRET',
        '[llm]\napi_key = "sk-SECRET\\q"',
        '[llm]\nbase_url = "https://u:sk-SECRET@my host"',
        '[llm]\nheaders = { A = ["sk-SECRET"] }',
        '[llm]\nheaders = "sk-SECRET"',
        '[server]\ntoken = { a = "sk-SECRET" }',
        '[mcp.servers.x]\ncommand = "c"\nenv = { A = ["sk-SECRET"] }',
        '[llm]\nmax_tokens = "sk-SECRET-in-the-wrong-line"',
        b'[llm]\napi_key = "sk-SECRET\xff"',
    ],
)
def test_bug_182_defect_39_no_mistake_shows_a_secret(lab: Lab, text: str | bytes) -> None:
    error = _error(lab, text)
    assert "SECRET" not in f"{error}{error!r}{error.hint}{error.__cause__}"
    assert error.__suppress_context__ or error.__context__ is None


# Files that cannot be read


def test_defect_35_scenario_f9_a_named_file_that_is_missing_says_what_to_do(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="does not exist") as caught:
        load_config(Path("nowhere.toml"), env=lab.env())
    assert str(lab.folder / "nowhere.toml") in caught.value.message
    assert "config/config.example.toml" in caught.value.hint
    (line,) = lab.problems(env={"DRAGOMAN_CONFIG": "/nowhere/x.toml"})
    assert line == "the configuration file /nowhere/x.toml (named by DRAGOMAN_CONFIG) does not exist"


def test_defect_35_the_example_is_never_read_in_the_place_of_a_missing_file(lab: Lab) -> None:
    lab.write('[llm]\nmodel = "m"\napi_key = "YOUR_API_KEY"', lab.folder / "config" / "config.example.toml")
    assert lab.load().llm == {}


@pytest.mark.parametrize("explicit", [True, False])
def test_a_folder_in_the_place_of_the_file(lab: Lab, explicit: bool) -> None:
    lab.file.mkdir(parents=True)
    assert lab.problems(path=lab.file if explicit else None) == [f"{AT} is a folder, not a file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(lab: Lab) -> None:
    lab.write("").chmod(0)
    assert lab.problems() == [f"{AT} cannot be read: Permission denied"]


def test_a_file_that_fails_while_it_is_read(lab: Lab) -> None:
    (lab.folder / "loop").symlink_to("loop")
    (line,) = lab.problems(path=lab.folder / "loop")
    assert line == "loop cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b'[llm]\nmodel = "caf\xe9"', f"{AT}:2: not UTF-8 text"),
        ('[llm]\nmodel = "m"'.encode("utf-16"), f"{AT} is saved as UTF-16"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", f"{AT}:1: not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_utf8_text(lab: Lab, data: bytes, sentence: str) -> None:
    error = _error(lab, data)
    assert (error.message, error.hint) == (sentence, "save it as UTF-8 in your editor")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("[llm]\nmodel = gpt-4o", f"{AT}:2: no valid TOML, column 9: Invalid value"),
        ("[llm]\nmodel 'x'", f"{AT}:2: no valid TOML, column 7: "),
        ("[llm]\nmodel = 'x'\nmodel = 'y'\n", f"{AT}:3: no valid TOML, column 12: Cannot overwrite a value"),
        ("[llm]\n[llm]", f"{AT}:2: no valid TOML, column 5: Cannot declare"),
        ("[llm]\nmodel = [1,", f"{AT}:2: no valid TOML, at the end of the file: "),
        ("[llm]\nmodel = \u201cx\u201d", f"{AT}:2: no valid TOML, column 9: Invalid value"),
        ('{"llm": {}}', f"{AT}:1: no valid TOML, column 1: Invalid statement"),
    ],
)
def test_broken_toml_names_line_and_column(lab: Lab, text: str, start: str) -> None:
    error = _error(lab, text)
    assert error.message.startswith(start)
    assert ("texts stand in quotes" in error.hint) is ("Invalid value" in error.message)


@pytest.mark.parametrize(
    "value", [r'"C:\Users\me"', r'"D:\projects\x"', r'"C:\xampp"', r'"\\server\share"', r'"C:\me\1"']
)
def test_defect_38_scenario_f10_windows_paths_in_double_quotes_get_the_remedy(lab: Lab, value: str) -> None:
    error = _error(lab, f"[llm]\nmodel = 'm'\n[workspace]\npath = {value}")
    assert error.message.startswith(f"{AT}:4: no valid TOML, column ")
    assert "a backslash in double quotes starts an escape" in error.message
    assert "single quotes ('C:\\Users\\me')" in error.hint
    assert "forward slashes" in error.hint


@pytest.mark.parametrize("value", [r'"C:\temp"', r'"C:\new\x20"', r'"c:\reports"', r'"C:\bin"'])
def test_defect_38_windows_paths_that_toml_would_change_silently_are_caught(lab: Lab, value: str) -> None:
    lines = _error(lab, f"[workspace]\npath = {value}").message
    assert lines.startswith(f"{AT}:2: ")
    assert "double quotes" in lines


def test_defect_38_windows_paths_in_single_quotes_work(lab: Lab) -> None:
    assert lab.load("[workspace]\npath = 'C:\\temp\\new'").workspace.path == "C:\\temp\\new"
