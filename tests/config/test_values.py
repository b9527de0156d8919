"""Single values: placeholders, addresses, references, hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.values import expand_references, is_placeholder, is_private_host, mask_url, normalise_base_url
from app.schema.errors import ConfigError


@pytest.mark.parametrize(
    "key",
    [
        "YOUR_API_KEY", "your-api-key-here", "sk-...", "sk-…", "sk-xxxxxxxx", "sk-your-key-here", "<your key>", "<KEY>",
        "{API_KEY}", "[key]", "your-key-here", "AZURE API KEY", "your Jiekou.AI api key", "OPENAI_API_KEY", "api_key",
        "xxx", "***", "...", "changeme", "change-me", "replace_me", "TODO", "你的API密钥",
        "  sk-...  ",
    ],
)  # fmt: skip
def test_stand_ins_of_examples_are_placeholders(key: str) -> None:
    assert is_placeholder(key)


@pytest.mark.parametrize(
    "key",
    [
        "", "ollama", "EMPTY", "none", "not-needed", "no-key-needed", "lm-studio", "dummy", "bear", "local", "sk-1234",
        "sk-proj-mykeyhere7Gh2", "sk-ant-api03-abcDEF_ghi-JKL", "AIzaSyD-xxYour9", "gsk_abcdefghij", "hf_AbCdEfG",
        "my-secret-key", "0123456789abcdef.AbCdEfGhIjKlMnOp", "keymaster99",
    ],
)  # fmt: skip
def test_real_keys_and_the_dummies_of_local_servers_are_keys(key: str) -> None:
    assert not is_placeholder(key)


@given(st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=40, max_size=60))
def test_no_random_key_is_taken_for_a_placeholder(tail: str) -> None:
    assert not is_placeholder(f"sk-{'A'}{tail}")


BUG_186 = [
    ("http://127.0.0.1:1234", "http://127.0.0.1:1234"),
    ("127.0.0.1:1234", "http://127.0.0.1:1234"),
    ("[::1]:1234", "http://[::1]:1234"),
    ("host", "http://host"),
    ("https://h/v1/", "https://h/v1"),
]
BUG_191 = [
    ("https://api.example.com", "https://api.example.com"),
    ("https://api.example.com/", "https://api.example.com"),
    ("https://api.example.com/v1", "https://api.example.com/v1"),
    ("https://api.example.com/v1/", "https://api.example.com/v1"),
]
ADDRESSES = [
    ("", ""),
    ("  https://api.example.com/v1 \n", "https://api.example.com/v1"),
    ("api.example.com/v1", "https://api.example.com/v1"),
    ("localhost:8080/v1", "http://localhost:8080/v1"),
    ("192.168.1.20:8000", "http://192.168.1.20:8000"),
    ("100.64.0.7:8000", "http://100.64.0.7:8000"),
    ("8.8.8.8:8000", "https://8.8.8.8:8000"),
    ("desk.local:1234", "http://desk.local:1234"),
    ("https://api.example.com/v1/chat/completions", "https://api.example.com/v1"),
    ("https://api.example.com/v1/chat/completions/", "https://api.example.com/v1"),
    ("https://a.example.com/d/x/chat/completions?api-version=1", "https://a.example.com/d/x?api-version=1"),
    ("https://api.example.com/v1?key=1#part", "https://api.example.com/v1?key=1"),
    ("HTTPS://api.example.com/V1", "https://api.example.com/V1"),
]


@pytest.mark.parametrize(("written", "used"), BUG_186 + BUG_191 + ADDRESSES)
def test_bug_186_191_addresses_take_one_form(written: str, used: str) -> None:
    assert normalise_base_url(written) == used
    assert normalise_base_url(used) == used


@pytest.mark.parametrize(
    "written",
    [
        "http://", "https:///v1", "http://my host/v1", "not a url", "http://h:port", "http://h:99999", "ftp://h/v1",
        "http:127.0.0.1:1234", "http:/127.0.0.1", "http://[::1", "{YOUR_ENDPOINT}/openai", "<your address>", ":8080",
        "http://h\\v1", "C:\\x", "http://h\x00",
    ],
)  # fmt: skip
def test_what_cannot_be_an_address_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(ConfigError, match="is no address") as caught:
        normalise_base_url(written)
    assert written not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True), ("10.1.2.3", True),
        ("172.16.0.1", True), ("172.32.0.1", False), ("192.168.0.9", True), ("169.254.1.1", True), ("fd00::1", True),
        ("0.0.0.0", True), ("ollama", True), ("host.docker.internal", True), ("nas.lan", True), ("8.8.8.8", False),
        ("api.openai.com", False), ("localhost.example.com", False), ("", False), ("2606:4700::1111", False),
    ],
)  # fmt: skip
def test_private_hosts(host: str, private: bool) -> None:
    assert is_private_host(host) is private


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "one"), ("x${A}y${B}z", "xoney2z"), ("$${A}", "${A}"), ("$$${A}", "$${A}"), ("${EMPTY}", ""),
        ("$A", "$A"), ("100$", "100$"), ("{A}", "{A}"), ("", ""),
    ],
)  # fmt: skip
def test_references_are_replaced(text: str, value: str) -> None:
    assert expand_references(text, {"A": "one", "B": "2", "EMPTY": ""}) == (value, [])


def test_a_value_that_looks_like_a_reference_is_not_expanded_again() -> None:
    assert expand_references("${A}", {"A": "${B}", "B": "x"}) == ("${B}", [])


@pytest.mark.parametrize("text", ["${", "${A", "${}", "${a-b}", "${env:A}", "${ A }"])
def test_broken_references_are_named(text: str) -> None:
    _value, problems = expand_references(text, {"A": "one"})
    assert problems == ["has a broken reference; write ${NAME}, or $${ for a literal ${"]


def test_a_missing_variable_is_named() -> None:
    assert expand_references("a${NOPE}b", {})[1] == ["refers to the environment variable NOPE, which is not set"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@h/v1", "https://***@h/v1"),
        ("https://h/v1?key=secret&v=2", "https://h/v1?key=***&v=***"),
        ("plain", "plain"),
        ("https://h/v1", "https://h/v1"),
    ],
)
def test_addresses_are_shown_without_secrets(text: str, shown: str) -> None:
    assert mask_url(text) == shown
