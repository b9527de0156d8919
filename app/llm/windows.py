"""What a provider's refusal says of the model's context window. Whether it is a refusal for length: `failures.py`."""

from __future__ import annotations

import re

SMALLEST_WINDOW = 256
"""A smaller number in such a text is something else."""

_N = r"(\d[\d,]*)"
_STATED = re.compile(
    "|".join(
        (
            rf"maximum context length(?: of \S+)?(?: is|:|=) ?{_N}",
            rf"context length is only {_N}",
            rf"maximum prompt length is {_N}",
            rf"model with {_N} maximum context length",
            rf"configured limit of {_N} tokens",
            rf"tokens > {_N} maximum",
            rf"context limit: [\d,]+ \+ [\d,]+ > {_N}",
            rf"maximum number of tokens allowed \({_N}\)",
            rf"must be <= {_N}",
            rf"must have less than {_N} tokens",
            rf"(?:context length|context size|context window)(?: of)? \({_N}(?: tokens)?\)",
            rf"exceeded model token limit: {_N}",
            rf"exceeds the limit of {_N}",
            rf"n_ctx\W{{1,4}}{_N}",
        )
    ),
    re.IGNORECASE,
)
"""The wordings of OpenAI, Azure, Anthropic, Google, xAI, Mistral, Together, vLLM, SGLang, llama.cpp, Moonshot, Copilot
and gateways, as collected in `tests/llm/test_windows.py`.
"""


def stated_window(message: str) -> int | None:
    """The window in tokens that the text of a refusal names, or None."""
    found = _STATED.search(message)
    if found is None:
        return None
    number = int(next(group for group in found.groups() if group).replace(",", ""))
    return number if number >= SMALLEST_WINDOW else None
