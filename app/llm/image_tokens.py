"""What a picture costs in tokens and how large it may be, by model family: the vendors' figures as one table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

MIB = 1024 * 1024
UNKNOWN_SIDE = 1024
"""A picture of unknown size counts as a square of so many pixels."""


@dataclass(frozen=True, slots=True)
class ImageRule:
    """A family's formula and limits. `tokens(width, height, detail)`: pixels, 0 = unknown; `low`, `high` or `auto`.

    Beyond `max_side` pixels the vendor scales down itself, so that sending more buys nothing; beyond `max_bytes` of a
    file it refuses.
    """

    name: str
    count: Callable[[int, int, str], int]
    max_side: int = 2048
    max_bytes: int = 20 * MIB

    def tokens(self, width: int, height: int, detail: str = "auto") -> int:
        known = width > 0 and height > 0
        return self.count(width if known else UNKNOWN_SIDE, height if known else UNKNOWN_SIDE, detail)


def tiles(base: int, tile: int) -> Callable[[int, int, str], int]:
    """OpenAI's tile formula: low detail costs `base`; else fit into 2048 x 2048, scale the short side down to 768,
    then `tile` for each 512-pixel tile plus `base` (platform.openai.com, images and vision, "Calculating costs").
    """

    def count(width: int, height: int, detail: str) -> int:
        if detail == "low":
            return base
        fit = min(1.0, 2048 / max(width, height))
        wide, high = width * fit, height * fit
        scale = min(1.0, 768 / min(wide, high))
        return math.ceil(wide * scale / 512) * math.ceil(high * scale / 512) * tile + base

    return count


def patches(factor: float) -> Callable[[int, int, str], int]:
    """OpenAI's patch formula: patches of 32 x 32 pixels, at most 1536 after scaling down, times the model's factor
    (the same page).
    """

    def count(width: int, height: int, detail: str) -> int:
        shrink = min(1.0, math.sqrt(1536 * 32 * 32 / (width * height)))
        found = math.ceil(width * shrink / 32) * math.ceil(height * shrink / 32)
        return math.ceil(min(found, 1536) * factor)

    return count


def area(width: int, height: int, detail: str) -> int:
    """Anthropic: width x height / 750, after fitting the long side into 1568 pixels, about 1,600 at most
    (docs.anthropic.com, vision, "Evaluate image size").
    """
    fit = min(1.0, 1568 / max(width, height))
    return min(math.ceil(width * fit * height * fit / 750), 1600)


def crops(width: int, height: int, detail: str) -> int:
    """Google: 258 when both sides are at most 384 pixels; else 258 a tile, whose side is two thirds of the short side
    and from 256 to 768 pixels (ai.google.dev, image understanding, token calculation).
    """
    if max(width, height) <= 384:
        return 258
    side = min(768, max(256, min(width, height) * 2 // 3))
    return math.ceil(width / side) * math.ceil(height / side) * 258


def squares(
    side: int, most: int, factor: float = 1.0, *, auto: int = 0, fit: int = 0
) -> Callable[[int, int, str], int]:
    """Patches of `side` pixels after fitting the long side into `fit`, at most so many (`auto`: when no detail is
    named), times a factor. For OpenAI since GPT-5.4 and Anthropic since Opus 4.7 as their usage shows, for open models
    as their image processors are configured by default.
    """

    def count(width: int, height: int, detail: str) -> int:
        shrink = min(1.0, fit / max(width, height)) if fit else 1.0
        found = math.ceil(width * shrink / side) * math.ceil(height * shrink / side)
        return math.ceil(round(min(found, auto if auto and detail == "auto" else most) * factor, 6))

    return count


def always(tokens: int) -> Callable[[int, int, str], int]:
    return lambda width, height, detail: tokens


TILES = ImageRule("tiles", tiles(85, 170))
"""For GPT-4o and its kin, and for every model whose own rule nobody knows."""

RULES: tuple[tuple[str, ImageRule], ...] = (
    (r"claude-(opus-4-[78]|[a-z]+-[5-9])", ImageRule("claude", squares(28, 4784, fit=2576), 2576, 5 * MIB)),
    (r"claude", ImageRule("area", area, 1568, 5 * MIB)),
    (r"gemini-([3-9]|flash-l|pro-l)", ImageRule("gemini", always(1120), 3072)),
    (r"gemini", ImageRule("crops", crops, 3072)),
    (r"gemma", ImageRule("gemma", always(280), 1024)),
    (r"gpt-4o-mini", ImageRule("tiles-mini", tiles(2833, 5667))),
    (r"gpt-5\.[4-9]|gpt-[6-9]", ImageRule("squares", squares(32, 2500, 1.2, auto=12_000), 6000)),
    (r"gpt-5[\w.]*-nano|gpt-4\.1-nano", ImageRule("patches-nano", patches(2.46))),
    (r"gpt-5[\w.]*-mini|gpt-4\.1-mini", ImageRule("patches-mini", patches(1.62))),
    (r"o4-mini", ImageRule("patches-o4", patches(1.72))),
    (r"gpt-5", ImageRule("tiles-5", tiles(70, 140))),
    (r"(?<![a-z0-9])o[13](?!\d)", ImageRule("tiles-o", tiles(75, 150))),
    (r"qwen-?3|qwen-(vl|plus|max|flash)", ImageRule("qwen-3", squares(32, 2560), 4096, 10 * MIB)),
    (r"qwen|qvq", ImageRule("qwen", squares(28, 1280), 3584, 10 * MIB)),
    (r"pixtral|mistral|ministral|magistral", ImageRule("pixtral", squares(16, 4096, fit=1024), 1024, 10 * MIB)),
    (r"llama-?4", ImageRule("llama-4", always(2500), 2016)),
    (r"llava|moondream|minicpm|llama-?3", ImageRule("clip", always(576), 1344)),
)
"""First match wins, on the lower-cased id after its last slash. Estimates: the provider's usage wins."""


def rule_for(model: str) -> ImageRule:
    short = model.rsplit("/", 1)[-1].lower()
    return next((rule for pattern, rule in RULES if re.search(pattern, short)), TILES)
