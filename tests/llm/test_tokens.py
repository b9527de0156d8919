"""Counting without a network: known counts of a small corpus, marker texts, images, and each message only once."""

from __future__ import annotations

import base64
import gzip
import hashlib
import subprocess
import sys
from functools import lru_cache
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiktoken import Encoding
from tiktoken_ext import openai_public

from app.llm.image_tokens import rule_for
from app.llm.tokens import (
    MESSAGE_TOKENS,
    REQUEST_TOKENS,
    TOOL_TOKENS,
    TOOLS_TOKENS,
    TokenCounter,
    encoding,
    encoding_for,
)
from app.schema.message import (
    ImageBlock,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from tests.llm.asking import BASH, PNG

CORPUS = {
    "": (0, 0),
    "hello world": (2, 2),
    "Hello, world! 123456789": (8, 8),
    "tiktoken is great!": (6, 6),
    "def f(x):\n    return x ** 2\n": (11, 11),
    "你好，世界": (3, 6),
    "🙂👍🏽": (4, 8),
    "<|endoftext|>": (7, 7),
    "    indented\r\n\r\n": (4, 4),
    "I'LL don't": (4, 5),
}
"""Text: (tokens in o200k_base, in cl100k_base)."""


@pytest.mark.parametrize(("text", "counts"), CORPUS.items(), ids=[repr(text) for text in CORPUS])
def test_known_counts(text: str, counts: tuple[int, int]) -> None:
    assert (TokenCounter("gpt-4o").text(text), TokenCounter("gpt-4").text(text)) == counts


def test_published_ids() -> None:
    """The examples of tiktoken's own documentation and tests."""
    assert encoding("cl100k_base").encode_ordinary("hello world") == [15339, 1917]
    assert encoding("o200k_base").encode_ordinary("hello world") == [24912, 2375]
    assert encoding("cl100k_base").encode_ordinary("rer") == [38149]
    assert encoding("cl100k_base").encode_ordinary("'rer") == [2351, 81]
    assert encoding("cl100k_base").encode_ordinary("today\n ") == [31213, 198, 220]
    assert encoding("cl100k_base").n_vocab == 100_256
    assert encoding("o200k_base").n_vocab == 199_998


@lru_cache
def theirs(name: str) -> Encoding:
    """The encoding as tiktoken itself defines it, with the shipped ranks in place of its download."""

    def load(_url: str, expected_hash: str) -> dict[bytes, int]:
        packed = resources.files("app.llm").joinpath("data", f"{name}.tiktoken.gz").read_bytes()
        data = gzip.decompress(packed)
        assert hashlib.sha256(data).hexdigest() == expected_hash
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines())}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_public, "load_tiktoken_bpe", load)
        return Encoding(**openai_public.ENCODING_CONSTRUCTORS[name]())


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
@pytest.mark.parametrize("text", CORPUS)
def test_equal_to_tiktoken_on_the_corpus(name: str, text: str) -> None:
    assert encoding(name).encode_ordinary(text) == theirs(name).encode_ordinary(text)


@given(st.text() | st.text(" \n\r\t'aAéß你🙂1٣.,-", max_size=40), st.sampled_from(["o200k_base", "cl100k_base"]))
def test_equal_to_tiktoken_and_round_trip(text: str, name: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    tokens = encoding(name).encode_ordinary(text)
    assert tokens == theirs(name).encode_ordinary(text)
    assert encoding(name).decode(tokens) == text


@pytest.mark.parametrize("marker", ["<|endoftext|>", "<|fim_prefix|>", "<|endofprompt|>", "<|im_start|>"])
def test_defect_21_h6_marker_texts_are_text(marker: str) -> None:
    counter = TokenCounter("gpt-4o")
    assert counter.text(f"a {marker} b") > 4
    assert counter.message(tool_result_message("c", marker)) > MESSAGE_TOKENS + 4


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("openai/gpt-3.5-turbo", "cl100k_base"),
        ("gpt-4o", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("o3", "o200k_base"),
        ("some-local-model", "o200k_base"),
    ],
)
def test_encoding_of_a_model(model: str, name: str) -> None:
    assert encoding_for(model) == name


@pytest.mark.parametrize(
    ("width", "height", "detail", "tokens"),
    [
        (2048, 4096, "high", 1105),
        (2048, 4096, "auto", 1105),
        (4096, 8192, "low", 85),
        (1024, 1024, "high", 765),
        (0, 0, "auto", 765),
        (512, 512, "high", 255),
        (100, 100, "high", 255),
        (10_000, 1, "high", 765),
    ],
)
def test_h11_defect_20_image_formula(width: int, height: int, detail: str, tokens: int) -> None:
    assert rule_for("gpt-4o").tokens(width, height, detail) == tokens


@pytest.mark.parametrize(
    ("model", "width", "height", "tokens"),
    [
        pytest.param("claude-sonnet-4-5", 1000, 1000, 1334, id="anthropic: area / 750"),
        pytest.param("anthropic/claude-3-haiku", 200, 200, 54, id="anthropic: the published example"),
        pytest.param("claude-sonnet-4-5", 8000, 8000, 1600, id="anthropic: scaled down"),
        pytest.param("gemini-2.5-pro", 384, 384, 258, id="google: small"),
        pytest.param("gemini-2.5-pro", 960, 540, 6 * 258, id="google: the published example"),
        pytest.param("gemini-2.5-pro", 2304, 1536, 3 * 2 * 258, id="google: tiles of at most 768 pixels"),
        pytest.param("gpt-4o-mini", 1024, 1024, 2833 + 4 * 5667, id="openai: gpt-4o-mini"),
        pytest.param("o3", 1024, 1024, 75 + 4 * 150, id="openai: o models"),
        pytest.param("gpt-5", 1024, 1024, 70 + 4 * 140, id="openai: gpt-5"),
        pytest.param("gpt-4.1-mini", 1024, 1024, 1659, id="openai: patches, 1024 of them times 1.62"),
        pytest.param("o4-mini", 4096, 4096, 2642, id="openai: at most 1536 patches times 1.72"),
        pytest.param("gpt-6.1-terra", 1920, 1080, 2448, id="openai: 60 x 34 patches times 1.2"),
        pytest.param("gpt-6-astra", 4032, 3024, 14_364, id="openai: no detail named"),
        pytest.param("claude-opus-5-5", 1920, 1080, 2691, id="anthropic: 69 x 39 patches"),
        pytest.param("claude-sonnet-5", 8000, 8000, 4784, id="anthropic: patches, scaled down"),
        pytest.param("gemini-3.8-flash", 4032, 3024, 1120, id="google: since 3 always the same"),
        pytest.param("Qwen2.5-VL-72B", 280, 280, 100, id="qwen: 10 x 10 patches"),
        pytest.param("llava:7b", 3000, 20, 576, id="llava: always the same"),
        pytest.param("some-local-model", 0, 0, 765, id="unknown family and size"),
    ],
)
def test_pictures_cost_what_their_vendor_says(model: str, width: int, height: int, tokens: int) -> None:
    assert rule_for(model).tokens(width, height) == tokens
    assert TokenCounter(model).message(user_message((ImageBlock(PNG, "image/png", width, height),))) == (
        MESSAGE_TOKENS + tokens
    )


def test_a_request_is_the_sum_of_its_parts() -> None:
    counter = TokenCounter("gpt-4o")
    asked = user_message((TextBlock("hello world"), ImageBlock(PNG, "image/png", 2048, 4096)))
    called = assistant_message(
        (ReasoningBlock("hello world"), ToolCallBlock("c", "bash", "{}")), provider="p", model="m"
    )
    assert counter.message(asked) == MESSAGE_TOKENS + 2 + 1105
    assert counter.message(called) == MESSAGE_TOKENS + 2 + 3
    tool = counter.tool(BASH)
    total = counter.request((asked, called), system="hello world", tools=(BASH,))
    head = REQUEST_TOKENS + MESSAGE_TOKENS + 2 + TOOLS_TOKENS
    assert total == head + counter.message(asked) + counter.message(called) + tool


def test_a_message_is_counted_once_for_each_encoding_and_family(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    plain = TokenCounter.text

    def spy(self: TokenCounter, text: str) -> int:
        counted.append(text)
        return plain(self, text)

    monkeypatch.setattr(TokenCounter, "text", spy)
    message = user_message("hello")
    for counter in (TokenCounter("gpt-4o"), TokenCounter("gpt-4.1"), TokenCounter("gpt-4"), TokenCounter("gpt-4o")):
        counter.request((message,))
    assert counted == ["hello", "hello"]


def test_h7_defect_22_counting_works_without_network_and_cache() -> None:
    code = (
        "import socket; socket.getaddrinfo = socket.create_connection = None\n"
        "from app.llm.tokens import TokenCounter; print(TokenCounter('gpt-4o').text('hello world'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"TIKTOKEN_CACHE_DIR": "/nonexistent"}
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_long_conversation_costs_only_what_is_new_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages looked at per request, at any length, also when each request ends in a hint of its own."""
    looked: list[int] = []
    plain = TokenCounter.message

    def spy(self: TokenCounter, message: Message) -> int:
        looked[-1] += 1
        return plain(self, message)

    monkeypatch.setattr(TokenCounter, "message", spy)
    counter = TokenCounter("gpt-4o")
    history: tuple[Message, ...] = (user_message("the task"),)
    for step in range(200):
        looked.append(0)
        counted = counter.plain((*history, user_message(f"hint {step}")), system="You help.")
        history = (
            *history,
            assistant_message((TextBlock(f"step {step}"),), provider="p", model="m"),
            user_message("ok"),
        )
    assert set(looked[3:]) == {4}
    again = (*history[:-2], user_message("hint 199"))
    assert counted == TokenCounter("gpt-4o").plain(again, system="You help.")


def test_a_running_count_is_right_after_the_history_changed() -> None:
    counter = TokenCounter("gpt-4o")
    history = tuple(user_message(f"message number {number}") for number in range(10))
    counter.request(history)
    compacted = (history[0], user_message("a summary"), *history[7:])
    assert counter.request(compacted) == TokenCounter("gpt-4o").request(compacted)
    assert counter.request(history[:4]) == TokenCounter("gpt-4o").request(history[:4])
    assert counter.request(history) == TokenCounter("gpt-4o").request(history)


def test_real_counts_correct_the_estimate_within_bounds() -> None:
    messages = (user_message("word " * 500),)
    counter = TokenCounter("claude-sonnet-4-5")
    plain = counter.plain(messages)
    assert counter.request(messages) == plain
    for _ in range(20):
        counter.learn(messages, round(plain * 1.3))
    assert counter.ratio == pytest.approx(1.3, abs=0.03)
    assert counter.request(messages) == pytest.approx(plain * 1.3, rel=0.03)
    assert counter.plain(messages) == plain
    for _ in range(40):
        counter.learn(messages, plain * 100)
    assert counter.ratio == 3.0
    for _ in range(80):
        counter.learn(messages, 0)
    assert counter.ratio == 0.5


def test_a_tiny_reply_proves_little() -> None:
    counter = TokenCounter("gpt-4o")
    counter.learn((user_message("hi"),), 50)
    assert counter.ratio < 1.3


def test_tools_cost_their_schema_and_an_overhead() -> None:
    counter = TokenCounter("gpt-4o")
    message = (user_message("hi"),)
    schema = '{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}'
    written = counter.text("bash") + counter.text("Run a command.") + counter.text(schema)
    assert counter.plain(message, tools=(BASH,)) - counter.plain(message) == TOOLS_TOKENS + TOOL_TOKENS + written


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4"])
def test_special_token_texts_count_as_tiktoken_counts_plain_text(model: str) -> None:
    counter = TokenCounter(model)
    text = "<|endoftext|><|im_start|>system<|im_end|><|fim_middle|>你好🙂 def f(): pass"
    assert counter.text(text) == len(theirs(counter.encoding_name).encode(text, disallowed_special=()))
