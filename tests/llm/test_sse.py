"""Server-sent events from bytes, whatever the network makes of them."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.sse import MAX_EVENT_BYTES, SSEDecoder
from app.schema.errors import LLMError

TWO = 'data: {"text":"你好"}\n\ndata: {"text":"🙂 bye"}\n\n'.encode()
PAYLOADS = ['{"text":"你好"}', '{"text":"🙂 bye"}']


def payloads(*pieces: bytes) -> list[str]:
    decoder = SSEDecoder()
    found = [event for piece in pieces for event in decoder.feed(piece)]
    return [event.data.decode() for event in [*found, *decoder.flush()]]


def test_w01_every_split_into_two_pieces() -> None:
    for at in range(len(TWO) + 1):
        assert payloads(TWO[:at], TWO[at:]) == PAYLOADS, at


def test_w01_every_byte_alone() -> None:
    assert payloads(*(TWO[at : at + 1] for at in range(len(TWO)))) == PAYLOADS


@given(st.lists(st.integers(0, len(TWO)), max_size=8))
def test_w01_any_split(cuts: list[int]) -> None:
    marks = sorted({0, *cuts, len(TWO)})
    assert payloads(*(TWO[a:b] for a, b in itertools.pairwise(marks))) == PAYLOADS


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_w02_other_line_ends_at_every_split(line_end: bytes) -> None:
    data = TWO.replace(b"\n", line_end)
    for at in range(len(data) + 1):
        assert payloads(data[:at], data[at:]) == PAYLOADS, at


def test_w03_byte_order_mark_is_dropped_first_and_kept_later() -> None:
    bom = b"\xef\xbb\xbf"
    assert payloads(bom + b"data: a\n\n", b"data: " + bom + b"b\n\n") == ["a", "\ufeffb"]
    assert payloads(bom[:1], bom[1:] + b"data: a\n\n") == ["a"]


def test_w04_lines_of_one_event_are_joined() -> None:
    assert payloads(b"data: a\ndata: b\n\n") == ["a\nb"]


def test_w05_one_space_after_the_colon_is_removed() -> None:
    assert payloads(b"data:x\n\ndata:  x\n\ndata\n\n") == ["x", " x", ""]


def test_w06_comments_and_other_fields_are_no_payload() -> None:
    assert payloads(b": ping\nid: 1\nretry: 5\n\ndata: a\nid: 2\n\n: ping\n\n") == ["a"]


def test_event_name_belongs_to_its_event_alone() -> None:
    events = SSEDecoder().feed(b"event: error\ndata: a\n\ndata: b\n\n")
    assert [(event.event, event.data) for event in events] == [("error", b"a"), ("", b"b")]


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_w07_only_cr_and_lf_end_a_line(char: str) -> None:
    assert payloads(f"data: a{char}b\n\n".encode()) == [f"a{char}b"]


def test_w09_event_without_its_blank_line_comes_with_the_flush() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: [DONE]") == []
    assert [event.data for event in decoder.flush()] == [b"[DONE]"]
    assert decoder.flush() == []


@pytest.mark.parametrize("filler", [b"x" * 65536, b"data: " + b"x" * 65530 + b"\n"], ids=["one line", "many lines"])
def test_event_over_16_mib_is_refused(filler: bytes) -> None:
    decoder = SSEDecoder()
    decoder.feed(b"data: ")
    with pytest.raises(LLMError) as caught:
        for _ in range(MAX_EVENT_BYTES // len(filler) + 2):
            decoder.feed(filler)
    assert caught.value.code == "MALFORMED_RESPONSE"


def test_long_line_in_small_pieces_takes_linear_time() -> None:
    started = time.perf_counter()
    pieces = [b"data: ", *[b"x" * 64] * 32_768, b"\n\n"]
    assert len(payloads(*pieces)[0]) == 2_097_152
    assert time.perf_counter() - started < 2
