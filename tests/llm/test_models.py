"""The table of models: every row can be read, known ids find their row, unknown stays unknown, the user's word wins."""

from __future__ import annotations

import re

import pytest

from app.config.settings import CapabilitySettings
from app.config.vendors import VENDORS
from app.llm.models import DEFAULTS, FAMILIES, ModelFacts, facts_for, price_usd
from app.schema.usage import Usage


@pytest.mark.parametrize(("pattern", "facts"), FAMILIES, ids=[pattern for pattern, _ in FAMILIES])
def test_rows_make_sense(pattern: str, facts: ModelFacts) -> None:
    re.compile(pattern, re.ASCII)
    assert pattern == pattern.lower(), "ids are lower-cased before they are looked up"
    assert facts.known
    assert facts.context_window is not None
    assert facts.max_output_tokens is None or 0 < facts.max_output_tokens <= facts.context_window
    assert facts.temperature or facts.reasoning, "only thinking models refuse a temperature"


@pytest.mark.parametrize(
    ("model", "window", "images"),
    [
        ("gpt-4", 8_192, False),
        ("gpt-4-turbo-2024-04-09", 128_000, True),
        ("gpt-4o-mini", 128_000, True),
        ("gpt-4.1-nano", 1_047_576, True),
        ("gpt-5-mini", 400_000, True),
        ("o1", 200_000, True),
        ("o1-mini-2024-09-12", 128_000, False),
        ("o3-mini", 200_000, False),
        ("o4-mini", 200_000, True),
        ("openai/gpt-oss-120b", 131_072, False),
        ("claude-3-5-sonnet-20241022", 200_000, True),
        ("anthropic/claude-sonnet-4-5", 200_000, True),
        ("gemini-2.5-pro", 1_048_576, True),
        ("deepseek-chat", 128_000, False),
        ("deepseek-ai/DeepSeek-R1", 128_000, False),
        ("Qwen2.5-VL-72B-Instruct", 131_072, True),
        ("qwen2.5-coder-1.5b-instruct", 32_768, False),
        ("qwen-plus", 131_072, False),
        ("gpt-6.1-terra", 1_050_000, True),
        ("gpt-5.4-mini", 400_000, True),
        ("gpt-5.3-codex", 400_000, True),
        ("claude-opus-4-5", 200_000, True),
        ("claude-opus-4-6", 1_000_000, True),
        ("global.anthropic.claude-sonnet-5-5", 1_000_000, True),
        ("gemini-3.8-flash", 1_048_576, True),
        ("google/gemma-4-31b-it", 262_144, True),
        ("deepseek-v4-flash", 1_000_000, None),
        ("kimi-k3", 1_048_576, True),
        ("glm-5.3", 1_000_000, None),
        ("MiniMax-M3", 1_000_000, None),
        ("grok-4.7", 500_000, True),
        ("mistral-large-4", 1_048_576, True),
        ("Qwen/Qwen3.5-9B", 262_144, None),
        ("amazon.nova-pro-v1:0", 300_000, True),
        ("glm-4.5v", 65_536, True),
        ("kimi-k2-0905", 262_144, False),
        ("llama3.2-vision:11b", 131_072, True),
        ("llava:7b", 4_096, True),
        ("scripted", 1_000_000, True),
    ],
)
def test_known_ids(model: str, window: int, images: bool | None) -> None:
    facts = facts_for(model)
    assert (facts.known, facts.context_window, facts.images) == (True, window, images)


@pytest.mark.parametrize("model", ["my-finetune", "", "proto1", "foo3-mini-thing", "test-model", "photo4"])
def test_unknown_is_a_state_and_not_no(model: str) -> None:
    facts = facts_for(model)
    assert facts == DEFAULTS
    assert (facts.known, facts.images, facts.tools, facts.context_window) == (False, None, None, None)
    assert facts.sends_images


@pytest.mark.parametrize("model", ["o1", "o3-mini", "o4-mini", "gpt-5", "gpt-6.1-terra"])
def test_defect_05_reasoning_models(model: str) -> None:
    facts = facts_for(model)
    assert (facts.token_field, facts.temperature, facts.reasoning) == ("max_completion_tokens", False, True)


def test_what_the_user_says_wins() -> None:
    said = CapabilitySettings(images=False, tools=False, reasoning=False)
    facts = facts_for("gpt-4o", said, context_window=1000)
    assert (facts.images, facts.tools, facts.reasoning, facts.context_window) == (False, False, False, 1000)
    assert (facts.parallel_tools, facts.json_schema, facts.known) == (True, True, True)
    assert facts_for("my-model", CapabilitySettings(images=True)).images is True


def test_every_vendors_default_model_is_in_the_table() -> None:
    models = [vendor.default_model for vendor in VENDORS.values() if vendor.default_model]
    assert [model for model in models if not facts_for(model).known and model != "openrouter/auto"] == []


def test_the_windows_of_the_vendors_own_models_agree_with_the_price_table() -> None:
    """Both are kept by hand; what they disagree on is listed here, so that a new model shows up as a failure."""
    from genai_prices.data import providers

    not_chat = ("embed", "tts", "audio", "image", "realtime", "transcribe", "live", "robotics", "ocr", "omni", "video")
    other = []
    for provider in providers:
        if provider.id not in {"openai", "anthropic", "google", "x-ai", "moonshotai", "minimax"}:
            continue
        for model in provider.models:
            window, facts = model.context_window, facts_for(model.id)
            if window is None or window < 20_000 or any(word in model.id for word in not_chat):
                continue
            if not facts.known or not 0.7 < (facts.context_window or 0) / window < 1.5:
                other.append(model.id)
    assert other == ["gemini-1.5-pro", "M2-her"]


USED = Usage(input_tokens=1_000_000, output_tokens=1_000_000)


def test_prices() -> None:
    assert price_usd("gpt-4o", USED, provider="openai", local=False) == 12.5
    assert price_usd("openai/gpt-4o", USED, provider="a-gateway", local=False) == 12.5
    assert price_usd("no-such-model", USED, provider="openai", local=False) is None
    assert price_usd("gpt-4o", USED, provider="openai", local=True) == 0.0


def test_cached_input_is_cheaper() -> None:
    cached = Usage(cache_read_tokens=1_000_000)
    assert price_usd("gpt-4o", cached, provider="openai", local=False) == 1.25
    assert price_usd("gpt-4o", Usage(input_tokens=1_000_000), provider="openai", local=False) == 2.5
