"""What a server's refusals taught: options it does not take for a model are left out, or renamed, from then on."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from app.llm.failures import RefusedOption
from app.schema.errors import LLMError

RENAMED = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
SAID = {
    "temperature": "the model takes no temperature; it is left out from now on",
    "stop": "the model takes no stop sequences; they are left out from now on",
    "stream_options": "the server does not report usage in streams; token counts are estimates",
    "tool_choice": "the server knows no tool_choice; the model is asked in words instead",
    "reasoning_effort": "the model takes no reasoning effort; it is left out from now on",
    "streaming": "it cannot stream while tools are on offer; its replies come whole from now on",
    "cache": "it takes no marks for the prompt cache; they are left out from now on",
    "reasoning_summary": "no summary of the model's thinking is to be had with this account",
    "include": "the server gives no thinking to keep; the model starts anew in each turn",
    "replay": "the server cannot read its earlier thinking any more; it is left out from now on",
    "response_format": "the server does not constrain replies to a schema; the model is asked in words instead",
    "parallel_tool_calls": "the server knows no parallel_tool_calls; it is left out from now on",
    "system": "the model takes no system message; its text goes in front as a user message",
}


@dataclass(frozen=True, slots=True)
class Learned:
    """Options a server refused for one model; they are left out, or renamed, from then on."""

    dropped: frozenset[str] = frozenset()
    token_field: str | None = None


NOTHING = Learned()


class Corrections:
    """One adapter's memory of refusals, by model. `fields` says under which names of its body an option is sent."""

    def __init__(self, fields: Mapping[str, tuple[str, ...]]) -> None:
        self._fields = fields
        self._learned: dict[str, Learned] = {}

    def of(self, model: str) -> Learned:
        return self._learned.get(model, NOTHING)

    def takes(self, option: str, model: str) -> bool:
        return option not in self.of(model).dropped

    def learn(self, error: LLMError, model: str, sent: Container[str]) -> str | None:
        """What to tell the user, or None when the refusal names nothing that was `sent` and is new."""
        options = error.options if isinstance(error, RefusedOption) else ()
        return next((said for option in options if (said := self._learn(option, model, sent))), None)

    def _learn(self, option: str, model: str, sent: Container[str]) -> str | None:
        known = self.of(model)
        names = self._fields.get(option, (option,))
        if option in known.dropped or not any(name in sent for name in names):
            return None
        if option in RENAMED:
            if known.token_field is not None:
                return None
            self._learned[model] = replace(known, token_field=RENAMED[option])
            return f"{model} wants {RENAMED[option]} instead of {option}"
        self._learned[model] = replace(known, dropped=known.dropped | {option})
        return f"{model}: {SAID[option]}"
