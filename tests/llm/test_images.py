"""Pictures: type and size from the bytes, what is made smaller, and what is refused in words."""

from __future__ import annotations

import base64
import io
import struct
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from app.llm.image_tokens import RULES, rule_for
from app.llm.images import (
    fitted,
    image_block,
    image_block_from_base64,
    look_at,
    whole_picture,
)
from app.schema.errors import LLMError
from app.schema.message import ImageBlock

CLAUDE = rule_for("claude-sonnet-4-5")


def drawn(form: str, width: int = 37, height: int = 21, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height), 77).save(out, form, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (drawn("PNG"), "image/png"),
        (drawn("JPEG"), "image/jpeg"),
        (drawn("JPEG", progressive=True), "image/jpeg"),
        (drawn("JPEG", exif=b"Exif\0\0" + b"x" * 5000), "image/jpeg"),
        (drawn("GIF"), "image/gif"),
        (drawn("WEBP"), "image/webp"),
        (drawn("WEBP", lossless=True), "image/webp"),
        (drawn("WEBP", mode="RGBA", exif=b"Exif\0\0x"), "image/webp"),
    ],
)
def test_type_and_size_are_read_from_the_bytes(data: bytes, media_type: str) -> None:
    seen = look_at(data)
    assert (seen.media_type, seen.width, seen.height) == (media_type, 37, 21)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the picture is empty"),
        (b"hello", "these bytes are no picture"),
        (b"<html>", "these bytes are no picture"),
        (b"%PDF-1.7", "this is a PDF, which models do not take"),
        (drawn("BMP"), "this is a BMP picture, which models do not take"),
        (drawn("TIFF"), "this is a TIFF picture, which models do not take"),
        (b"\n <svg xmlns=''/>", "this is an SVG drawing, which models do not take"),
        (b"\0\0\0\x1cftypavif", "this is an AVIF or HEIC picture or a film, which models do not take"),
        (b"RIFF\0\0\0\0WAVEfmt ", "these bytes are no picture"),
        (drawn("PNG")[:20], "the picture is broken: its header gives no size"),
        (drawn("JPEG")[:30], "the picture is broken: its header gives no size"),
        (b"\xff\xd8\xff" + b"\0" * 100, "the picture is broken: its header gives no size"),
        (b"GIF89a\0\0\0\0", "the picture is broken: its header gives no size"),
        (b"RIFF\0\0\0\0WEBPVP8?", "the picture is broken: its header gives no size"),
    ],
)
def test_what_is_no_picture_is_refused_in_a_sentence(data: bytes, words: str) -> None:
    with pytest.raises(LLMError) as caught:
        look_at(data)
    assert (caught.value.code, caught.value.message) == ("UNSUPPORTED_CONTENT", words)
    assert caught.value.hint == "use a whole PNG, JPEG, GIF or WebP file"


def test_a_decompression_bomb_is_seen_in_its_header() -> None:
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 50_000, 50_000) + b"\x08\x02\0\0\0"
    with pytest.raises(LLMError, match="claims 50000 x 50000 pixels, more than 100 million"):
        image_block(bomb)


@settings(deadline=None)
@given(st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF....WEBP"]), st.binary())
def test_arbitrary_bytes_are_a_picture_or_an_error_of_ours(start: bytes, rest: bytes) -> None:
    try:
        seen = look_at(start + rest)
    except LLMError as error:
        assert error.code == "UNSUPPORTED_CONTENT"
    else:
        assert seen.width > 0 < seen.height


def test_a_long_run_of_fill_bytes_takes_no_time() -> None:
    began = time.perf_counter()
    with pytest.raises(LLMError):
        look_at(b"\xff\xd8" + b"\xff" * 5_000_000)
    assert time.perf_counter() - began < 0.5


def test_the_claimed_type_of_base64_is_not_believed() -> None:
    text = base64.b64encode(drawn("PNG")).decode()
    block = image_block_from_base64(f"data:image/jpeg;base64,{text}", detail="low")
    assert block == ImageBlock(text, "image/png", 37, 21, "low")
    assert image_block_from_base64(text).media_type == "image/png"
    with pytest.raises(LLMError, match="base64 is broken"):
        image_block_from_base64("iVBORw0K!!")


def test_a_picture_that_fits_is_the_same_object() -> None:
    block = image_block(drawn("PNG"))
    assert all(fitted(block, rule) is block for _, rule in RULES)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_large_picture_is_scaled_to_the_vendors_limit(form: str) -> None:
    block = image_block(drawn(form, 4000, 1000))
    smaller = fitted(block, CLAUDE)
    assert (smaller.width, smaller.height) == (1568, 392)
    assert smaller.media_type == ("image/png" if form == "PNG" else "image/jpeg")
    with Image.open(io.BytesIO(base64.b64decode(smaller.data))) as image:
        assert image.size == (1568, 392)


def test_transparency_survives() -> None:
    smaller = fitted(image_block(drawn("WEBP", 4000, 1000, mode="RGBA", lossless=True)), CLAUDE)
    with Image.open(io.BytesIO(base64.b64decode(smaller.data))) as image:
        assert (image.format, image.mode) == ("PNG", "RGBA")


def test_too_many_bytes_become_a_jpeg_and_then_fewer_pixels() -> None:
    noise = Image.effect_noise((1500, 1500), 90).convert("RGB")
    out = io.BytesIO()
    noise.save(out, "PNG")
    block = image_block(out.getvalue() + b"\0" * 6_000_000)
    smaller = fitted(block, CLAUDE)
    assert len(smaller.data) * 3 // 4 <= CLAUDE.max_bytes
    assert (smaller.width, smaller.height) == (1500, 1500)


def test_without_pillow_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = image_block(drawn("PNG")), image_block(drawn("PNG", 4000, 1000))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert fitted(small, CLAUDE) is small, "nothing has to be changed"
    with pytest.raises(LLMError, match="4000 x 1000 pixels is too large") as caught:
        fitted(large, CLAUDE)
    assert caught.value.hint == "pip install pillow, or make the picture smaller"


def test_a_large_picture_that_is_cut_off_is_an_error_of_ours() -> None:
    whole = drawn("PNG", 4000, 1000)
    with pytest.raises(LLMError, match="cannot be opened"):
        fitted(image_block(whole[:100]), CLAUDE)


def test_a_whole_picture_keeps_its_bytes_and_other_formats_become_png() -> None:
    png = drawn("PNG")
    assert whole_picture(png) is png
    assert look_at(whole_picture(drawn("BMP"))).media_type == "image/png"
    assert look_at(whole_picture(drawn("TIFF", mode="CMYK"))).media_type == "image/png"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (drawn("JPEG", 300, 300)[:-200], "the picture is broken, or cut off"),
        (b"hello", "these bytes are no picture"),
        (b"%PDF-1.7", "this is a PDF, which models do not take"),
    ],
)
def test_a_picture_that_is_cut_off_is_noticed(data: bytes, words: str) -> None:
    with pytest.raises(LLMError) as caught:
        whole_picture(data)
    assert caught.value.message == words
