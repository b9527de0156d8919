"""Writes the table of providers into `docs/providers.md`: `python -m scripts.provider_table` from the top folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.config.vendors import VENDORS, Dialect
from app.llm.adapters.base import FEATURES
from app.llm.pool import adapter_class

PAGE = Path(__file__).parents[1] / "docs" / "providers.md"
BEGIN, END = "<!-- providers: python -m scripts.provider_table -->\n", "<!-- end of providers -->\n"
NO_PROVIDERS = frozenset({"test", "local"})
NAMES: dict[Dialect, str] = {
    "chat": "chat completions",
    "responses": "Responses",
    "messages": "Messages",
    "converse": "Converse",
    "gemini": "Gemini",
    "ollama": "Ollama",
    "polling": "polling",
    "embedded": "llama.cpp inside",
    "test": "scripted",
}


@dataclass(frozen=True)
class Row:
    """One provider: the `api_type` a user writes, how it is spoken to, and what that carries."""

    label: str
    api_type: str
    dialect: Dialect

    @property
    def features(self) -> frozenset[str]:
        return adapter_class(self.dialect).features


def rows() -> Iterator[Row]:
    for vendor in VENDORS.values():
        if vendor.name not in NO_PROVIDERS:
            yield Row(vendor.label, vendor.name, vendor.dialect)
        if vendor.name == "openai":
            yield Row(vendor.label, "openai_responses", "responses")


def table() -> str:
    head = f"| provider | `api_type` | spoken | {' | '.join(FEATURES)} |\n"
    line = "|---|---|---|" + ":---:|" * len(FEATURES) + "\n"
    legend = "; ".join(f"*{name}*: {meaning}" for name, meaning in FEATURES.items())
    return head + line + "".join(map(_line, rows())) + f"\n{legend}.\n"


def _line(row: Row) -> str:
    marks = " | ".join("●" if feature in row.features else "" for feature in FEATURES)
    return f"| {row.label} | `{row.api_type}` | {NAMES[row.dialect]} | {marks} |\n"


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
