"""The window that a refusal names, in the wording of every vendor that names one."""

from __future__ import annotations

import pytest

from app.llm.windows import stated_window

WORDINGS = [
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9100 tokens.", 8_192),
    ("This model's maximum context length is 8,192 tokens. However, you requested 9,000 tokens", 8_192),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens.", 272_000),
    ("prompt is too long: 233153 tokens > 200000 maximum", 200_000),
    ("input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease input length", 200_000),
    ("The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", 1_048_575),
    ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131_072),
    ("This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens", 32_768),
    ("Prompt contains 70000 tokens and 0 draft tokens, too large for model with 32768 maximum context length", 32_768),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", 4_096),
    ("Input validation error: `inputs` must have less than 1024 tokens. Given: 5000", 1_024),
    ("You passed 99073 input tokens. However, the model's context length is only 131072 tokens, resulting", 131_072),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4_096),
    ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4_096),
    ("Your request exceeded model token limit: 131072 (requested: 200000)", 131_072),
    ("prompt token count of 140000 exceeds the limit of 128000", 128_000),
    ("The prompt is too long: 267657, model maximum context length: 262143", 262_143),
    ('{"n_prompt_tokens":5000,"n_ctx":4096}', 4_096),
    ("Your input exceeds the context window of this model.", None),
    ("Input is too long for requested model.", None),
    ("`inputs` must have less than 3 tokens", None),
    ("invalid params, context window exceeds limit (2013)", None),
]


@pytest.mark.parametrize(("words", "window"), WORDINGS, ids=[words[:30] for words, _ in WORDINGS])
def test_the_window_in_a_refusal(words: str, window: int | None) -> None:
    assert stated_window(words) == window
