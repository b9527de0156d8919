"""Pictures before they are sent: type and size read from the bytes, and made as small as a family of models takes them.

What a picture costs and which size is too large stands in `image_tokens.py`. Reading headers needs no image library;
changing a picture needs Pillow, which is loaded when one is too large.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from app.llm.image_tokens import ImageRule
from app.schema.errors import LLMError
from app.schema.message import ImageBlock

if TYPE_CHECKING:
    from PIL import Image

Detail = Literal["auto", "low", "high"]

MOST_PIXELS = 100_000_000
"""A picture that claims more is not opened: a few bytes can ask for gigabytes of memory."""
MOST_REQUEST_BYTES = 20 * 1024 * 1024
"""Base64 bytes of all pictures of one request; vendors refuse between 20 and 32 MiB."""
_HEADER_BYTES = 1 << 20
_GOOD_ENOUGH = 85


@dataclass(frozen=True, slots=True)
class Picture:
    """What a picture's own bytes say of it; sizes in pixels."""

    media_type: str
    width: int
    height: int


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
_JPEG_FILL = re.compile(rb"\xff+")
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walks the segments up to the first frame header (ITU T.81, B.2.2)."""
    position = 2
    while position + 9 <= len(data):
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            fill = _JPEG_FILL.match(data, position)
            position = fill.end() - 1 if fill else position + 1
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


def whole_picture(data: bytes) -> bytes:
    """A picture that may come from anywhere, as bytes that models take: the same ones, or another format as PNG.

    Its pixels are read where Pillow is installed, so that a file that was cut off is noticed. Raises `LLMError`
    (`UNSUPPORTED_CONTENT`).
    """
    known = any(data.startswith(magic) for magic, _, _ in _FORMATS)
    if known:
        look_at(data)  # before anything opens what may be a bomb
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        return data
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise _unusable(f"the picture claims {image.width} x {image.height} pixels")
            image.load()
            if known:
                return data
            out = io.BytesIO()
            (image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")).save(out, "PNG")
            return out.getvalue()
    except UnidentifiedImageError as error:
        raise _unusable(_what_it_is(data)) from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unusable("the picture is broken, or cut off") from error


def fitted(block: ImageBlock, rule: ImageRule) -> ImageBlock:
    """The block itself when the family of this rule takes it as it is, else the same picture made smaller.

    Raises `LLMError` (`UNSUPPORTED_CONTENT`) when it is too large and Pillow is missing or cannot read it.
    """
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
