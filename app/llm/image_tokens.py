"""What a picture costs in tokens, by model family: the vendors' published formulas as one table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

UNKNOWN_SIDE = 1024
"""A picture of unknown size counts as a square of so many pixels."""


@dataclass(frozen=True, slots=True)
class ImageRule:
    """A family's formula. `tokens(width, height, detail)`: pixels, 0 = unknown; detail `low`, `high` or `auto`."""

    name: str
    count: Callable[[int, int, str], int]

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


TILES = ImageRule("tiles", tiles(85, 170))
"""For GPT-4o and its kin, and for every model whose own rule nobody knows."""

RULES: tuple[tuple[str, ImageRule], ...] = (
    (r"claude", ImageRule("area", area)),
    (r"gemini|gemma", ImageRule("crops", crops)),
    (r"gpt-4o-mini", ImageRule("tiles-mini", tiles(2833, 5667))),
    (r"gpt-[5-9][\w.]*-nano|gpt-4\.1-nano", ImageRule("patches-nano", patches(2.46))),
    (r"gpt-[5-9][\w.]*-mini|gpt-4\.1-mini", ImageRule("patches-mini", patches(1.62))),
    (r"o4-mini", ImageRule("patches-o4", patches(1.72))),
    (r"gpt-[5-9]", ImageRule("tiles-5", tiles(70, 140))),
    (r"(?<![a-z0-9])o[13](?!\d)", ImageRule("tiles-o", tiles(75, 150))),
)
"""First match wins, on the lower-cased id after its last slash."""


def rule_for(model: str) -> ImageRule:
    short = model.rsplit("/", 1)[-1].lower()
    return next((rule for pattern, rule in RULES if re.search(pattern, short)), TILES)
