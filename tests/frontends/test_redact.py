"""What never reaches a screen or a pipe: keys, however they are cut, and characters that command a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.secrets import Redactor
from app.config.settings import Config, LLMSettings, McpServerSettings, McpSettings
from app.frontends.redact import StreamFilter, plain, repaired, visible

KEY = "sk-abcabcabd-0123"
OTHER = "abcabd-0123-long"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n中文", "plain\ttext\n中文"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        ("a\x1bPq#0;2\x1b\\b\x9b2Jc\x9d0;t\x9cd", "abcd"),
        ("\x1b(Bx\x1b=y\x1bcz", "xyz"),
        ("\x1b[31", "[31"),
        ("over\rwritten\b\x00\x7f", "overwritten"),
        ("line\r\nend", "line\nend"),
        ("a\u202eb\u2066c\u200fd", "abcd"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("日本\u0301e", "日本\u0301e"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_visible_writes_commands_out() -> None:
    assert visible("a\x1b[2K\u202eb\nc\t") == "a\\u001b[2K\\u202eb\nc\t"


def test_undecodable_bytes_of_the_command_line_are_replaced() -> None:
    assert repaired("caf\udce9 é") == "caf\ufffd é"
    assert repaired("plain") == "plain"


def test_secrets_of_the_environment_and_the_configuration() -> None:
    redactor = Redactor(
        {"OPENAI_API_KEY": KEY, "HF_TOKEN": "hf_12345678", "SHORT_API_KEY": "abc", "HOME": "/home/me/x"}
    )
    assert redactor(f"{KEY} hf_12345678 abc /home/me/x") == "*** *** abc /home/me/x"
    settings = LLMSettings.model_validate(
        {"api_key": "lm-studio", "headers": {"Authorization": "Bearer tok-987654321", "X-Team": "blue-and-green"}}
    )
    server = McpServerSettings(command="x", env={"SEARCH_API_KEY": "search-key-1", "MODE": "production"})
    redactor.learn(Config(llm={"default": settings}, mcp=McpSettings(servers={"s": server})))
    shown = redactor("lm-studio tok-987654321 Bearer blue-and-green search-key-1 production")
    assert shown == "lm-studio *** Bearer blue-and-green *** production"


@given(
    st.lists(st.sampled_from([KEY, OTHER, "sk-", "abcabc", "\x1b[31m", "\x1b]0;x\x07", "word ", "中", "\x1b", "\n"])),
    st.lists(st.integers(1, 9), min_size=1),
    st.booleans(),
)
def test_pieces_show_the_same_as_the_whole(parts: list[str], cuts: list[int], for_terminal: bool) -> None:
    redactor = Redactor({"A_API_KEY": KEY, "B_API_KEY": OTHER})
    whole = "".join(parts)
    stream = StreamFilter(redactor, for_terminal=for_terminal)
    shown, start, turn = "", 0, 0
    while start < len(whole):
        size = cuts[turn % len(cuts)]
        shown += stream.feed(whole[start : start + size])
        start, turn = start + size, turn + 1
    shown += stream.flush()
    assert KEY not in shown
    assert OTHER not in shown
    if not for_terminal:
        assert shown == redactor(whole)
    else:
        assert "\x1b" not in shown


def test_a_stream_holds_back_no_more_than_it_must() -> None:
    stream = StreamFilter(Redactor({"A_API_KEY": KEY}), for_terminal=True)
    assert stream.feed("nothing to hide") == "nothing to hide"
    assert stream.feed(" s") == " "
    assert stream.feed("o") == "so"
    assert stream.feed("\x1b[3") == ""
    assert stream.feed("1mred") == "red"
