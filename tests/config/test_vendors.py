"""The vendor table, and how a label or an address finds its row."""

from __future__ import annotations

import pytest

from app.config.values import normalise_base_url
from app.config.vendors import (
    DETECTION_ORDER,
    VENDORS,
    base_url_from_env,
    dialect_for,
    is_dialect,
    key_from_env,
    vendor_for,
    vendor_from_env,
)

WANTED = [
    "openai", "azure", "anthropic", "aws", "google", "deepseek", "openrouter", "together", "minimax", "groq", "mistral",
    "xai", "moonshot", "zhipu", "dashscope", "siliconflow", "ollama", "lm-studio", "llama.cpp", "vllm", "huggingface",
    "litellm", "server", "embedded", "test",
]  # fmt: skip


def test_every_promised_vendor_has_a_row() -> None:
    assert set(WANTED) <= set(VENDORS)


def test_labels_are_unambiguous() -> None:
    labels = [label.replace("_", "-") for vendor in VENDORS.values() for label in (vendor.name, *vendor.aliases)]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=list(VENDORS))
def test_addresses_of_the_table_are_in_the_form_that_is_used(vendor: object) -> None:
    address = getattr(vendor, "base_url")  # noqa: B009
    assert normalise_base_url(address) == address


def test_detection_order_holds_cloud_vendors_with_a_key_an_address_and_a_model() -> None:
    rows = [VENDORS[name] for name in DETECTION_ORDER]
    assert [row.name for row in rows if row.local or not (row.key_env and row.base_url and row.default_model)] == []


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("ollama", "ollama"), ("lm_studio", "lm-studio"), ("lm-studio", "lm-studio"), ("LM Studio", "lm-studio"),
        ("dsk_deepseek", "deepseek"), ("togetherAI", "together"), ("together", "together"), ("google", "google"),
        ("gemini", "google"), ("bedrock", "aws"), ("aws", "aws"), ("azure", "azure"), ("anthropic", "anthropic"),
        ("minimax", "minimax"), ("litellm", "litellm"), ("huggingface", "huggingface"), ("server", "server"),
        ("test", "test"), ("ppio", "ppio"), ("jiekou", "jiekou"), ("embedded", "embedded"),
        (" OpenAI ", "openai"), ("openai_responses", "openai"), ("", "openai"), ("DeepSeek", "deepseek"),
    ],
)  # fmt: skip
def test_bug_189_labels_and_aliases_of_any_case_are_known(label: str, name: str) -> None:
    vendor, known = vendor_for(label, "")
    assert vendor is not None
    assert (vendor.name, known) == (name, True)


def test_bug_189_an_unknown_label_is_openai_and_said_to_be_unknown() -> None:
    assert vendor_for("nosuch", "") == (VENDORS["openai"], False)


@pytest.mark.parametrize(
    ("api_type", "base_url", "name", "local"),
    [
        ("openai", "https://api.deepseek.com/v1", "deepseek", False),
        ("openai", "https://x.openai.azure.com/openai", "azure", False),
        ("openai", "https://bedrock-runtime.us-east-1.amazonaws.com", "aws", False),
        ("openai", "https://api.moonshot.cn/v1", "moonshot", False),
        ("openai", "https://api.minimaxi.com/v1", "minimax", False),
        ("openai", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "dashscope", False),
        ("nosuch", "https://api.ppinfra.com/v3/openai", "ppio", False),
        ("openai", "http://127.0.0.1:11434/v1", "ollama", True),
        ("openai", "http://localhost:1234/v1", "lm-studio", True),
        ("openai", "http://[::1]:8080/v1", "llama.cpp", True),
        ("openai", "http://gpu:8000/v1", "vllm", True),
        ("openai", "http://127.0.0.1:11500", "local", True),
        ("openai", "http://127.0.0.1:4000", "litellm", False),
        ("ollama", "http://192.168.1.5:11434", "ollama", True),
        ("ollama", "https://ollama.example.com", "ollama", False),
        ("deepseek", "http://127.0.0.1:9999", "deepseek", False),
        ("anthropic", "https://api.anthropic.com", "anthropic", False),
        ("anthropic", "https://api.deepseek.com/anthropic", "deepseek", False),
        ("claude", "https://api.minimax.io/anthropic", "minimax", False),
        ("anthropic", "http://127.0.0.1:8080", "llama.cpp", True),
    ],
)
def test_the_address_tells_the_vendor_and_whether_text_leaves(
    api_type: str, base_url: str, name: str, local: bool
) -> None:
    vendor, _known = vendor_for(api_type, base_url)
    assert vendor is not None
    assert (vendor.name, vendor.local) == (name, local)


@pytest.mark.parametrize(
    "base_url",
    ["https://gateway.example.com/v1", "https://api.openai.com.evil.example/v1", "https://evilopenai.com/v1"],
)
def test_an_unknown_cloud_address_belongs_to_nobody(base_url: str) -> None:
    assert vendor_for("openai", base_url) == (None, True)
    assert vendor_for("anthropic", base_url) == (None, True)
    assert dialect_for("anthropic", base_url, None) == "messages"


def test_keys_are_tried_in_order_and_placeholders_passed_over() -> None:
    google = VENDORS["google"]
    both = {"GOOGLE_API_KEY": "second", "GEMINI_API_KEY": "first"}
    assert key_from_env(google, both) == ("GEMINI_API_KEY", "first")
    assert key_from_env(google, {**both, "GEMINI_API_KEY": "YOUR_API_KEY"}) == ("GOOGLE_API_KEY", "second")
    assert key_from_env(google, {"GEMINI_API_KEY": "  "}) is None
    assert key_from_env(google, {"GEMINI_API_KEY": " k\n"}) == ("GEMINI_API_KEY", "k")


def test_the_first_vendor_with_a_key_is_fixed_by_the_order() -> None:
    env = {VENDORS[name].key_env[0]: "k" for name in DETECTION_ORDER}
    for name in DETECTION_ORDER:
        assert vendor_from_env(env) is VENDORS[name]
        del env[VENDORS[name].key_env[0]]
    assert vendor_from_env({"HF_TOKEN": "k", "OLLAMA_API_KEY": "k"}) is None


def test_address_variables() -> None:
    assert base_url_from_env(VENDORS["openai"], {"OPENAI_BASE_URL": "http://h "}) == ("OPENAI_BASE_URL", "http://h")
    assert base_url_from_env(VENDORS["deepseek"], {"OPENAI_BASE_URL": "http://h"}) is None


@pytest.mark.parametrize(
    ("label", "dialect"),
    [
        ("openai", True),
        ("openai_responses", True),
        ("", True),
        ("nosuch", True),
        ("deepseek", False),
        ("ollama", False),
    ],
)
def test_labels_that_only_say_how_to_speak(label: str, dialect: bool) -> None:
    assert is_dialect(label) is dialect


def test_an_address_that_cannot_be_read_does_not_decide() -> None:
    assert vendor_for("openai", "http://h:port") == (VENDORS["openai"], True)
