"""Pictures before they are sent: type and size read from the bytes, what a family of models takes, and what it costs.

Fetching pictures and placing them in a request is done elsewhere; reading headers needs no image library, changing a
picture needs Pillow, which is loaded when a picture is too large.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.schema.errors import LLMError
from app.schema.message import ImageBlock

if TYPE_CHECKING:
    from PIL import Image

Detail = Literal["auto", "low", "high"]

MOST_PIXELS = 100_000_000
"""A picture that claims more is not opened: a few bytes can ask for gigabytes of memory."""
MOST_REQUEST_BYTES = 20 * 1024 * 1024
"""Base64 bytes of all pictures of one request; vendors refuse between 20 and 32 MiB."""
UNKNOWN_SIDE = 1024
"""The side of a picture whose size nobody knows."""
_HEADER_BYTES = 1 << 20
_GOOD_ENOUGH = 85


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture's own bytes say of it; sizes in pixels."""

    media_type: str
    width: int
    height: int


Counted = Callable[[int, int, Detail], int]


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How one family of models takes pictures: tokens by size, and the limits beyond which a picture is made smaller.

    `max_side` in pixels is where the vendor scales down itself (sending more buys nothing), `max_bytes` of the file is
    where it refuses.
    """

    tokens: Counted
    max_side: int
    max_bytes: int = 20 * 1024 * 1024


def _tiles(base: int, tile: int) -> Counted:
    """OpenAI's tiles: fit into 2048 x 2048, short side down to 768, then count squares of 512 pixels.

    Low detail costs the base alone (platform.openai.com/docs/guides/images-vision).
    """

    def tokens(width: int, height: int, detail: Detail) -> int:
        if detail == "low":
            return base
        fit = min(1.0, 2048 / max(width, height))
        wide, high = width * fit, height * fit
        scale = min(1.0, 768 / min(wide, high))
        return math.ceil(wide * scale / 512) * math.ceil(high * scale / 512) * tile + base

    return tokens


def _patches(side: int, most: int, factor: float = 1.0, *, auto: int = 0, max_side: int = 0) -> Counted:
    """Squares of `side` pixels, at most so many (`auto`: another bound when no detail is named), times a factor."""

    def tokens(width: int, height: int, detail: Detail) -> int:
        fit = min(1.0, max_side / max(width, height)) if max_side else 1.0
        squares = math.ceil(width * fit / side) * math.ceil(height * fit / side)
        bound = auto if auto and detail == "auto" else most
        return math.ceil(round(min(squares, bound) * factor, 6))

    return tokens


def _gemini_tiles(width: int, height: int, detail: Detail) -> int:
    """258 up to 384 x 384 pixels; beyond, 258 for each crop of two thirds of the short side, 256 to 768 pixels
    (ai.google.dev/gemini-api/docs/image-understanding).
    """
    if max(width, height) <= 384:
        return 258
    crop = min(768, max(256, min(width, height) / 1.5))
    return math.ceil(width / crop) * math.ceil(height / crop) * 258


def _always(tokens: int) -> Counted:
    return lambda width, height, detail: tokens


_MIB = 1024 * 1024

RULES: dict[str, ImageRule] = {
    "tiles": ImageRule(_tiles(85, 170), 2048),
    "tiles-mini": ImageRule(_tiles(2833, 5667), 2048),
    "tiles-o": ImageRule(_tiles(75, 150), 2048),
    "tiles-5": ImageRule(_tiles(70, 140), 2048),
    "patches-mini": ImageRule(_patches(32, 1536, 1.62), 2048),
    "patches-nano": ImageRule(_patches(32, 1536, 2.46), 2048),
    "patches-o4": ImageRule(_patches(32, 1536, 1.72), 2048),
    "patches": ImageRule(_patches(32, 2500, 1.2, auto=10_000), 6000),
    "claude": ImageRule(_patches(28, 1568, max_side=1568), 1568, 5 * _MIB),
    "claude-high": ImageRule(_patches(28, 4784, max_side=2576), 2576, 5 * _MIB),
    "gemini": ImageRule(_gemini_tiles, 3072),
    "gemini-3": ImageRule(_always(1120), 3072),
    "qwen": ImageRule(_patches(28, 1280), 3584, 10 * _MIB),
    "qwen-3": ImageRule(_patches(32, 2560), 4096, 10 * _MIB),
    "pixtral": ImageRule(_patches(16, 4096, max_side=1024), 1024, 10 * _MIB),
    "llama-4": ImageRule(_always(2500), 2016),
    "gemma": ImageRule(_always(280), 1024),
    "clip": ImageRule(_always(576), 1344),
}
"""One row a family. OpenAI's and Anthropic's as their guides say (patch figures of 2026 agree with measured usage);
the open models' as their processors are configured by default. Estimates: the provider's usage wins."""

_FAMILIES: tuple[tuple[str, str], ...] = (
    (r"gpt-4o-mini", "tiles-mini"),
    (r"gpt-(4\.1|5)-mini|gpt-5\.1-codex-mini", "patches-mini"),
    (r"gpt-(4\.1|5)-nano", "patches-nano"),
    (r"o4-mini", "patches-o4"),
    (r"o[13](?!\d)", "tiles-o"),
    (r"gpt-5\.[4-9]|gpt-[6-9]", "patches"),
    (r"gpt-5", "tiles-5"),
    (r"claude-(opus-4-[78]|\w+-[5-9])", "claude-high"),
    (r"claude", "claude"),
    (r"gemini-([3-9]|flash|pro)", "gemini-3"),
    (r"gemini", "gemini"),
    (r"qwen-?3|qwen-(vl|plus|max|flash)", "qwen-3"),
    (r"qwen|qvq", "qwen"),
    (r"pixtral|mi[sx]tral|ministral|magistral|devstral", "pixtral"),
    (r"llama-?4", "llama-4"),
    (r"gemma", "gemma"),
    (r"llava|moondream|minicpm|llama-?3", "clip"),
)
_COMPILED = tuple((re.compile(rf"(?:^|[^a-z0-9])(?:{pattern})", re.ASCII), family) for pattern, family in _FAMILIES)


def image_family(model: str) -> str:
    """The key of `RULES` for a model id; OpenAI's tiles for an id that nobody knows."""
    short = model.lower().rsplit("/", 1)[-1]
    return next((family for pattern, family in _COMPILED if pattern.search(short)), "tiles")


def image_tokens(width: int, height: int, detail: str = "auto", family: str = "tiles") -> int:
    """What a picture costs in input tokens, estimated; an unknown size (0) counts as 1024 x 1024 pixels."""
    if width <= 0 or height <= 0:
        width = height = UNKNOWN_SIDE
    known: Detail = "low" if detail == "low" else "high" if detail == "high" else "auto"
    return RULES[family].tokens(width, height, known)


def look_at(data: bytes) -> Picture:
    """Type and size of a PNG, JPEG, GIF or WebP, read from its header.

    Raises `LLMError` (`UNSUPPORTED_CONTENT`) for anything else, for a broken header, and for a picture of more than
    100 million pixels.
    """
    for magic, media_type, size in _FORMATS:
        if not data.startswith(magic) or (media_type == "image/webp" and data[8:12] != b"WEBP"):
            continue
        found = size(data[:_HEADER_BYTES])
        if found is None or min(found) <= 0:
            raise _unusable("the picture is broken: its header gives no size")
        width, height = found
        if width * height > MOST_PIXELS:
            raise _unusable(
                f"the picture claims {width} x {height} pixels, more than {MOST_PIXELS // 1_000_000} million"
            )
        return Picture(media_type, width, height)
    raise _unusable(_what_it_is(data))


def _unusable(words: str) -> LLMError:
    return LLMError(words, "UNSUPPORTED_CONTENT", hint="use a whole PNG, JPEG, GIF or WebP file")


_STRANGERS = (
    (b"%PDF", "a PDF"),
    (b"BM", "a BMP picture"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML text"),
    (b"\0\0\1\0", "an icon"),
)


def _what_it_is(data: bytes) -> str:
    if not data:
        return "the picture is empty"
    if data[4:8] == b"ftyp":
        return "this is an AVIF or HEIC picture or a film, which models do not take"
    head = data[:64].lstrip()
    name = next((name for magic, name in _STRANGERS if head.startswith(magic)), None)
    return f"this is {name}, which models do not take" if name else "these bytes are no picture"


def _png_size(data: bytes) -> tuple[int, int] | None:
    if data[12:16] != b"IHDR" or len(data) < 24:
        return None
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def _gif_size(data: bytes) -> tuple[int, int] | None:
    if data[3:6] not in (b"87a", b"89a") or len(data) < 10:
        return None
    return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")


_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walks the segments up to the first frame header (ITU T.81, B.2.2)."""
    position = 2
    while position + 9 <= len(data):
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker in _JPEG_BARE:
            position += 2
        elif marker in _JPEG_FRAMES:
            return int.from_bytes(data[position + 7 : position + 9]), int.from_bytes(data[position + 5 : position + 7])
        else:
            position += 2 + max(2, int.from_bytes(data[position + 2 : position + 4]))
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """The three kinds of first chunk (RFC 9649, section 2)."""
    kind, body = data[12:16], data[20:]
    if kind == b"VP8X" and len(body) >= 10:
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(body) >= 10 and body[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    return None


_FORMATS: tuple[tuple[bytes, str, Callable[[bytes], tuple[int, int] | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png", _png_size),
    (b"\xff\xd8\xff", "image/jpeg", _jpeg_size),
    (b"GIF8", "image/gif", _gif_size),
    (b"RIFF", "image/webp", _webp_size),
)


def image_block(data: bytes, *, detail: Detail = "auto") -> ImageBlock:
    """The block of a picture's bytes; its type is what the bytes say. Raises as `look_at` does."""
    seen = look_at(data)
    return ImageBlock(base64.b64encode(data).decode("ascii"), seen.media_type, seen.width, seen.height, detail)


def image_block_from_base64(text: str, *, detail: Detail = "auto") -> ImageBlock:
    """The block of a base64 text, with or without `data:…;base64,` in front; whatever type it claims is not believed.

    Raises `LLMError` (`UNSUPPORTED_CONTENT`) for broken base64 too.
    """
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _unusable("the picture's base64 is broken") from error
    return image_block(data, detail=detail)


def fitted(block: ImageBlock, family: str) -> ImageBlock:
    """The block itself when the family takes it as it is, else the same picture made smaller.

    Raises `LLMError` (`UNSUPPORTED_CONTENT`) when it is too large and Pillow is missing or cannot read it.
    """
    rule = RULES[family]
    size = len(block.data) * 3 // 4
    if max(block.width, block.height) <= rule.max_side and size <= rule.max_bytes:
        return block
    return _smaller(block, rule)


def _smaller(block: ImageBlock, rule: ImageRule) -> ImageBlock:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise LLMError(
            f"the picture of {block.width} x {block.height} pixels is too large for this model, and Pillow, which could"
            " make it smaller, is not installed",
            "UNSUPPORTED_CONTENT",
            hint="pip install pillow, or make the picture smaller",
        ) from error
    try:
        with Image.open(io.BytesIO(base64.b64decode(block.data))) as image:
            image.draft("RGB", (rule.max_side, rule.max_side))
            shown = (
                image if image.mode in ("L", "LA", "RGB", "RGBA") else image.convert("RGBA" if _clear(image) else "RGB")
            )
            side = min(rule.max_side, max(shown.size))
            while side >= 1:
                copy = shown.copy()
                copy.thumbnail((side, side))
                data = _saved(copy, lossless=block.media_type == "image/png" or _clear(copy), rule=rule)
                if len(data) <= rule.max_bytes:
                    return image_block(data, detail=block.detail)
                side //= 2
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unusable("the picture is broken: it cannot be opened to make it smaller") from error
    raise _unusable("the picture cannot be made small enough")


def _clear(image: Image.Image) -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _saved(image: Image.Image, *, lossless: bool, rule: ImageRule) -> bytes:
    """As PNG where edges matter and the bytes allow it, else as JPEG."""
    if lossless:
        out = io.BytesIO()
        image.save(out, "PNG", optimize=False)
        if out.tell() <= rule.max_bytes:
            return out.getvalue()
    out = io.BytesIO()
    image.convert("RGB").save(out, "JPEG", quality=_GOOD_ENOUGH)
    return out.getvalue()
