"""What a model can do: window, output cap, images, tools, reasoning, price; a table in which `unknown` is a state.

A model missing from the table gets the documented defaults below, is announced once, and can be described under
`[llm.capabilities]`. Nothing here decides by vendor; quirks of an account live in `adapters/accounts.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

from app.schema.usage import Usage

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

TokenField = Literal["max_tokens", "max_completion_tokens"]
NEW_FIELD: TokenField = "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about one model; None = unknown, which is not the same as false.

    `max_tools` and `tool_choice_required` describe very small models that need a short tool list and a forced call.
    """

    known: bool = False
    context_window: int | None = None
    max_output_tokens: int | None = None
    images: bool | None = None
    tools: bool | None = None
    parallel_tools: bool | None = None
    reasoning: bool | None = None
    json_schema: bool | None = None
    temperature: bool = True
    token_field: TokenField = "max_tokens"
    max_tools: int | None = None
    tool_choice_required: bool = False

    @property
    def sends_images(self) -> bool:
        """Unknown models get images: refusing would be a silent loss, and a server that cannot says so."""
        return self.images is not False

    @property
    def small(self) -> bool:
        return self.max_tools is not None


@dataclass(frozen=True, slots=True)
class Told:
    """What a server tells of its model; None = not told. `server` names its kind, "" when it told nothing."""

    server: str = ""
    context_window: int | None = None
    images: bool | None = None
    tools: bool | None = None
    parallel_tools: bool | None = None
    reasoning: bool | None = None
    json_schema: bool | None = None
    why_no_tools: str = ""
    """Why calls are read from text, for the notice."""


class Capabilities(Protocol):
    """What the user says of a model; None = not said."""

    @property
    def images(self) -> bool | None: ...
    @property
    def tools(self) -> bool | None: ...
    @property
    def parallel_tools(self) -> bool | None: ...
    @property
    def reasoning(self) -> bool | None: ...
    @property
    def json_schema(self) -> bool | None: ...


DEFAULTS = ModelFacts()
"""For a model nobody knows: window unknown, images and tools tried, `max_tokens`, temperature sent."""


def _row(
    window: int,
    output: int | None,
    *,
    images: bool | None,
    tools: bool | None = True,
    parallel_tools: bool = True,
    reasoning: bool | None = None,
    json_schema: bool | None = None,
    temperature: bool = True,
    token_field: TokenField = "max_tokens",
) -> ModelFacts:
    return ModelFacts(
        True, window, output, images, tools, parallel_tools, reasoning, json_schema, temperature, token_field
    )


def _thinking(window: int, output: int, *, images: bool, json_schema: bool = True) -> ModelFacts:
    """OpenAI's reasoning models: the new token field, and no temperature."""
    return _row(
        window,
        output,
        images=images,
        reasoning=True,
        json_schema=json_schema,
        temperature=False,
        token_field=NEW_FIELD,
    )


FAMILIES: tuple[tuple[str, ModelFacts], ...] = (
    # OpenAI (platform.openai.com/docs/models)
    (r"o1-mini|o1-preview", _thinking(128_000, 65_536, images=False, json_schema=False)),
    (r"o3-mini", _thinking(200_000, 100_000, images=False)),
    (r"o[134](?!\d)|^codex-mini", _thinking(200_000, 100_000, images=True)),
    (r"gpt-(5.*chat|chat-latest|5\.3$)", _row(128_000, 16_384, images=True, token_field=NEW_FIELD, json_schema=True)),
    (r"gpt-5\.[4-9]-(mini|nano)", _thinking(400_000, 128_000, images=True)),
    (r"gpt-5\.[4-9]|gpt-[6-9]", _thinking(1_050_000, 128_000, images=True)),
    (r"gpt-5", _thinking(400_000, 128_000, images=True)),
    (r"gpt-4\.1", _row(1_047_576, 32_768, images=True, json_schema=True)),
    (r"gpt-4o|chatgpt-4o", _row(128_000, 16_384, images=True, json_schema=True)),
    (r"gpt-4-(turbo|vision)", _row(128_000, 4_096, images=True)),
    (r"gpt-4-32k", _row(32_768, 8_192, images=False)),
    (r"gpt-4", _row(8_192, 8_192, images=False)),
    (r"gpt-3\.5", _row(16_385, 4_096, images=False)),
    (r"gpt-oss", _row(131_072, 32_768, images=False, reasoning=True, json_schema=True)),
    # Anthropic (docs.anthropic.com models overview)
    (r"claude-3-(opus|sonnet|haiku)", _row(200_000, 4_096, images=True)),
    (r"claude-3-5", _row(200_000, 8_192, images=True)),
    (r"claude-([a-z]+-4-[6-9]|[a-z]+-[5-9])", _row(1_000_000, 128_000, images=True, reasoning=True)),
    (r"claude", _row(200_000, 64_000, images=True, reasoning=True)),
    # Google (ai.google.dev models)
    (r"gemini-(1\.5-pro|pro-1\.5)", _row(2_097_152, 8_192, images=True, json_schema=True)),
    (r"gemini-(1\.5|2\.0|flash-1\.5)", _row(1_048_576, 8_192, images=True, json_schema=True)),
    (r"gemini-(1\.0|pro$)", _row(32_768, 8_192, images=False)),
    (r"gemini", _row(1_048_576, 65_536, images=True, reasoning=True, json_schema=True)),
    (r"gemma-?4", _row(262_144, 32_768, images=True)),
    (r"gemma-?3n?(?!.*(270m|1b))", _row(131_072, 8_192, images=True, tools=None)),
    (r"gemma", _row(32_768, 8_192, images=False, tools=None)),
    # DeepSeek (api-docs.deepseek.com)
    (r"deepseek-(v?[4-9]|flash)", _row(1_000_000, 65_536, images=None, reasoning=True)),
    (r"deepseek-(reasoner|r1)", _row(128_000, 64_000, images=False, reasoning=True)),
    (r"deepseek-(vl|ocr)", _row(32_768, 8_192, images=True)),
    (r"deepseek", _row(128_000, 8_192, images=False)),
    # Alibaba Qwen
    (r"qwen[\w.-]*-?(vl|omni)|qvq", _row(131_072, 8_192, images=True)),
    (r"qwq|qwen-?3-[\w.-]*thinking", _row(131_072, 32_768, images=False, reasoning=True)),
    (r"qwen-?3-?coder", _row(262_144, 65_536, images=False)),
    (r"qwen-?3\.[5-9]-?(max|plus|flash|2\.4t)", _row(1_000_000, 65_536, images=None, reasoning=True)),
    (r"qwen-?3\.[5-9]", _row(262_144, 65_536, images=None, reasoning=True)),
    (r"qwen-?3", _row(131_072, 32_768, images=False, reasoning=True)),
    # Measured: beyond five tools, or free to answer in words, these choose badly (see docs/decisions/0004).
    (
        r"qwen2\.5-coder-(0\.5|1\.5)b",
        replace(
            _row(32_768, 8_192, images=False, parallel_tools=False, json_schema=True),
            max_tools=5,
            tool_choice_required=True,
        ),
    ),
    (r"qwen", _row(131_072, 8_192, images=False)),
    # Moonshot, Zhipu, MiniMax
    (r"kimi-k[3-9]", _row(1_048_576, 65_536, images=True, reasoning=True)),
    (r"kimi-k2[.p][5-9]", _row(262_144, 32_768, images=True, reasoning=True)),
    (r"moonshot.*vision|kimi.*(vl|vision)", _row(131_072, 16_384, images=True)),
    (r"moonshot-v1-8k", _row(8_192, None, images=False)),
    (r"moonshot-v1-32k", _row(32_768, None, images=False)),
    (r"kimi-k2(?!-0711)", _row(262_144, 32_768, images=False)),
    (r"moonshot|kimi", _row(131_072, 16_384, images=False)),
    (r"glm-4[\w.]*v", _row(65_536, 16_384, images=True, reasoning=True)),
    (r"glm-(5[.p][2-9]|[6-9])", _row(1_000_000, 131_072, images=None, reasoning=True)),
    (r"glm-(4[.p][6-9]|5)", _row(200_000, 131_072, images=False, reasoning=True)),
    (r"glm-4\.5", _row(131_072, 98_304, images=False, reasoning=True)),
    (r"glm", _row(128_000, 4_096, images=False)),
    (r"minimax-(m[3-9]|01)", _row(1_000_000, 131_072, images=None, reasoning=True)),
    (r"minimax", _row(204_800, 131_072, images=False, reasoning=True)),
    # xAI
    (r"grok-2-vision", _row(32_768, 8_192, images=True)),
    (r"grok-2", _row(32_768, 8_192, images=False)),
    (r"grok-4-(1-)?fast", _row(2_000_000, 64_000, images=True, reasoning=True)),
    (r"grok-4\.([5-9])(?!\d)", _row(500_000, 64_000, images=True, reasoning=True)),
    (r"grok-4\.", _row(1_000_000, 64_000, images=True, reasoning=True)),
    (r"grok-(build|code)", _row(256_000, 32_768, images=None, reasoning=True)),
    (r"grok-4", _row(256_000, 64_000, images=True, reasoning=True)),
    (r"grok", _row(131_072, 32_768, images=False)),
    # Mistral, Meta, Amazon, Cohere, Xiaomi
    (r"mistral-(large-4|medium-[4-9])", _row(1_048_576, 65_536, images=True)),
    (r"mistral-(large-(3|25|26)|medium-(3-5|26)|small-26)|ministral-\w+-2512", _row(262_144, 32_768, images=True)),
    (r"codestral|devstral", _row(262_144, 32_768, images=False)),
    (r"pixtral|mistral-(small|medium)", _row(131_072, 16_384, images=True)),
    (r"mi[sx]tral|magistral|ministral", _row(131_072, 16_384, images=False)),
    (r"muse-(spark|wonder)", _row(1_048_576, 65_536, images=None, reasoning=True)),
    (r"llama-?4", _row(1_048_576, 16_384, images=True)),
    (r"llama-?3\.2.*vision", _row(131_072, 8_192, images=True)),
    (r"llama-?3\.[123]", _row(131_072, 8_192, images=False)),
    (r"llama-?3", _row(8_192, 8_192, images=False, tools=None)),
    (r"nova-(2|premier|sonic)", _row(1_000_000, 32_768, images=True)),
    (r"nova-micro", _row(128_000, 8_192, images=False)),
    (r"nova", _row(300_000, 8_192, images=True)),
    (r"mimo-v2", _row(1_048_576, 65_536, images=None, reasoning=True)),
    (r"command-(r|a)", _row(128_000, 4_096, images=False)),
    # Small ones that people run themselves
    (r"llava|moondream|minicpm-v", _row(4_096, None, images=True, tools=None)),
    (r"phi-?4", _row(16_384, 8_192, images=False, tools=None)),
    (r"smollm-?3", _row(65_536, 8_192, images=False, reasoning=True)),
    (r"smollm2?", _row(8_192, 2_048, images=False, tools=False, json_schema=True)),
    (r"scripted", _row(1_000_000, 100_000, images=True)),
)
"""First match wins, on the lower-cased id after its last slash. Figures as the vendors publish them; `images=None` is
for models of which that is not known: pictures are tried, and a refusal is learned.
"""

_COMPILED = tuple((re.compile(rf"(?:^|[^a-z0-9])(?:{pattern})", re.ASCII), facts) for pattern, facts in FAMILIES)


def facts_for(model: str, overrides: Capabilities | None = None, *, context_window: int | None = None) -> ModelFacts:
    """The facts of a model id, with what the user set laid over them."""
    short = model.lower().rsplit("/", 1)[-1]
    facts = next((facts for pattern, facts in _COMPILED if pattern.search(short)), DEFAULTS)
    return laid_over(facts, overrides or DEFAULTS, context_window=context_window)


def laid_over(facts: ModelFacts, said: Capabilities, *, context_window: int | None = None) -> ModelFacts:
    """The facts with whatever somebody who knows better has said laid over them."""
    return replace(
        facts,
        context_window=facts.context_window if context_window is None else context_window,
        images=facts.images if said.images is None else said.images,
        tools=facts.tools if said.tools is None else said.tools,
        parallel_tools=facts.parallel_tools if said.parallel_tools is None else said.parallel_tools,
        reasoning=facts.reasoning if said.reasoning is None else said.reasoning,
        json_schema=facts.json_schema if said.json_schema is None else said.json_schema,
    )


def as_told(facts: ModelFacts, told: Told, said: Capabilities, *, context_window: int | None = None) -> ModelFacts:
    """Facts of the table, over them what the server tells, over that what the user says."""
    known = facts.known or (told.context_window is not None and told.tools is not None)
    heard = laid_over(replace(facts, known=known), told, context_window=told.context_window)
    return laid_over(heard, said, context_window=context_window)


def price_usd(model: str, usage: Usage, *, provider: str, local: bool) -> float | None:
    """The price of a usage in USD from the offline genai-prices table; 0 for a local model, None when unknown."""
    if local:
        return 0.0
    rates = _rates(model, provider)
    if not rates:
        return None if rates is None else _looked_up_price(model, usage, provider)
    counts = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens)
    return sum(count * rate for count, rate in zip(counts, rates, strict=True))


@lru_cache(maxsize=256)
def _rates(model: str, provider: str) -> tuple[float, ...] | None:
    """USD a token of input, cache read, cache write and output; empty where they change with length or time of day,
    None = unknown. Kept, because looking a price up takes longer than all else that is done for a call.
    """
    from genai_prices.types import TieredPrices

    found = _price_row(model, Usage(), provider)
    if found is None:
        return None
    if isinstance(found.model.prices, list) or any(
        isinstance(each, TieredPrices) for each in vars(found.model_price).values()
    ):
        return ()
    million = 1_000_000
    kinds = (Usage(million), Usage(cache_read_tokens=million), Usage(cache_write_tokens=million), Usage(0, million))
    return tuple((_looked_up_price(model, usage, provider) or 0.0) / million for usage in kinds)


def _looked_up_price(model: str, usage: Usage, provider: str) -> float | None:
    found = _price_row(model, usage, provider)
    return None if found is None else float(found.total_price)


def _price_row(model: str, usage: Usage, provider: str) -> PriceCalculation | None:
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    priced = PricedUsage(
        input_tokens=usage.total_input,
        cache_read_tokens=usage.cache_read_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
        output_tokens=usage.output_tokens,
    )
    # First as this account prices it, then as whoever made the model does.
    for model_id, provider_id in ((model, provider), (model.rsplit("/", 1)[-1], None)):
        try:
            return calc_price(priced, model_id, provider_id=provider_id)
        except LookupError:
            continue
    return None
