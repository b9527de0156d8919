"""Wire events of chat completions to chunks: the translation table, and every oddity of compatible servers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm.adapters.chat_decode import ChatDecoder, read_usage
from app.schema.errors import LLMError
from app.schema.message import TextBlock, ToolCallBlock
from app.schema.stream import BlockAssembler, BlockEnd, Chunk, Finish, check_stream
from app.schema.usage import Usage
from tests.conftest import MakeServer
from tests.fault_server import ODDITIES, Reply, call, events, reply, usage
from tests.llm.asking import BASH, READ, ask, calls_of, chunks_of, ids_of, iterate, short, shorts
from tests.llm.conftest import MakeAdapter

Wire = dict[str, Any]


def delta(finish: str | None = None, **fields: Any) -> Wire:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def piece(index: Any = None, call_id: str | None = None, name: str | None = None, arguments: Any = "") -> Wire:
    """One fragment of a tool call."""
    optional = {"index": index, "id": call_id}
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return delta(
        tool_calls=[{key: value for key, value in optional.items() if value is not None} | {"function": function}]
    )


FINISH: Wire = delta("stop")
COUNTED: Wire = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


async def decode(*wire: Any, done: bool = True) -> list[Chunk]:
    decoder = ChatDecoder("the server")
    chunks = [chunk for payload in wire for chunk in decoder.feed(payload)]
    chunks += decoder.end(done=done)
    return [chunk async for chunk in check_stream(iterate(chunks))]


async def short_of(*wire: Any, done: bool = True) -> list[str]:
    return shorts(await decode(*wire, done=done))


def finish_of(chunks: list[Chunk]) -> Finish:
    assert isinstance(chunks[-1], Finish)
    return chunks[-1]


async def refused(*wire: Any, done: bool = True) -> LLMError:
    with pytest.raises(LLMError) as caught:
        await decode(*wire, done=done)
    return caught.value


# -- text, thinking, usage, finish ------------------------------------------------------------------------------------


async def test_t01_text() -> None:
    end = delta("stop") | {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    assert await short_of(delta(role="assistant"), delta(content="Hel"), delta(content="lo"), end) == [
        "S0 text",
        "T0 Hel",
        "T0 lo",
        "E0 Hello",
        "U 7 0 2 0",
        "F stop",
    ]


async def test_t02_usage_in_a_trailer_comes_before_the_finish() -> None:
    assert (await short_of(delta(content="a"), FINISH, COUNTED))[-2:] == ["U 7 0 2 0", "F stop"]


async def test_t03_last_of_two_usages_wins() -> None:
    first = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    assert [line for line in await short_of(delta(content="a"), first, FINISH, COUNTED) if line[0] == "U"] == [
        "U 7 0 2 0"
    ]


def test_t04_usage_is_disjoint() -> None:
    assert read_usage(usage(283, 10, cached=256, reasoning=4)) == Usage(27, 10, 256, 0, 4)


def test_t05_deepseek_names_cached_tokens_otherwise() -> None:
    counts = {"prompt_tokens": 283, "completion_tokens": 10, "prompt_cache_hit_tokens": 256}
    assert read_usage(counts) == Usage(27, 10, 256)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"prompt_tokens": "12", "completion_tokens": 3.0}, Usage(12, 3)),
        ({"prompt_tokens": None, "completion_tokens": True}, Usage()),
        ({"prompt_tokens": -4, "completion_tokens": float("inf")}, Usage()),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(0, 0, 5)),
        ({"prompt_tokens": 5, "prompt_tokens_details": [1], "completion_tokens_details": "x"}, Usage(5)),
    ],
)
def test_usage_of_odd_types(counts: Wire, expected: Usage) -> None:
    assert read_usage(counts) == expected


async def test_t06_thinking_around_text_is_one_block() -> None:
    wire = (delta(reasoning_content="a"), delta(content="b"), delta(reasoning_content="c"), FINISH)
    assert await short_of(*wire) == ["S0 reasoning", "R0 a", "S1 text", "T1 b", "R0 c", "E0 ac", "E1 b", "F stop"]


async def test_t07_empty_texts_open_no_block() -> None:
    assert (await short_of(delta(reasoning_content="", content=""), delta(content="b"), FINISH))[0] == "S0 text"


@pytest.mark.parametrize("reason", ["stop", None])
async def test_t16_nothing_at_all_is_an_empty_response_after_its_usage(reason: str | None) -> None:
    wire = [delta(reason)] if reason else []
    assert await short_of(*wire, COUNTED) == ["U 7 0 2 0", "F error EMPTY_RESPONSE"]


async def test_t17_length_without_content_is_max_tokens() -> None:
    assert await short_of(delta("length")) == ["F max-tokens"]


async def test_t18_thinking_alone_is_a_reply() -> None:
    assert (await short_of(delta(reasoning_content="a"), FINISH))[-1] == "F stop"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("content_filter", "CONTENT_FILTER"),
        ("SAFETY", "CONTENT_FILTER"),
        ("sensitive", "CONTENT_FILTER"),
        ("refusal", "REFUSED"),
        ("model_context_window_exceeded", "CONTEXT_WINDOW_EXCEEDED"),
        ("insufficient_system_resource", "SERVER"),
        ("malformed_function_call", "INVALID_TOOL_CALL"),
        ("strange_new_reason", "STRANGE_NEW_REASON"),
    ],
)
async def test_t19_finish_reasons_that_are_no_success(reason: str, code: str) -> None:
    assert finish_of(await decode(delta(content="a"), delta(reason))).failure is not None
    assert (await short_of(delta(content="a"), delta(reason)))[-1] == f"F error {code}"


async def test_refusal_field_without_text_is_a_refusal_with_its_words() -> None:
    finish = finish_of(await decode(delta(refusal="I can"), delta(refusal="not"), FINISH))
    assert finish.failure is not None
    assert (finish.failure.code, finish.failure.message) == ("REFUSED", "the model refused: I cannot")


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        ({"error": {"code": 429, "message": "slow down"}}, "RATE_LIMIT"),
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, "SERVER"),
        ({"object": "error", "message": "maximum context length is 10 tokens", "code": 400}, "CONTEXT_WINDOW_EXCEEDED"),
        ({"error": {"code": 502, "message": "x"}, "choices": [{"finish_reason": "error"}]}, "SERVER"),
        ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}, "choices": None}, "QUOTA"),
        ({"error": "something"}, "INVALID_REQUEST"),
    ],
)
async def test_t20_t21_error_inside_the_stream(wire: Wire, code: str) -> None:
    assert (await refused(delta(content="Hel"), wire)).code == code


async def test_base_resp_without_a_fault_is_no_error() -> None:
    fine = delta(content="a") | {"base_resp": {"status_code": 0, "status_msg": ""}}
    assert (await short_of(fine, FINISH))[-1] == "F stop"


async def test_t22_empty_finish_reasons_are_none() -> None:
    assert (await short_of(delta("", content="a"), delta("", content="b"), FINISH))[-2:] == ["E0 ab", "F stop"]


async def test_t23_done_without_a_reason_is_unmarked() -> None:
    finish = finish_of(await decode(delta(content="a")))
    assert (finish.reason, finish.marked) == ("stop", False)
    assert finish_of(await decode(delta("stop", content="a"))).marked


async def test_t23_done_inside_a_call_is_a_closed_stream() -> None:
    assert (await refused(piece(0, "a", "bash", '{"comm'))).code == "STREAM_CLOSED"
    whole = await decode(piece(0, "a", "bash", "{}"))
    assert (finish_of(whole).reason, finish_of(whole).marked) == ("tool-calls", False)


async def test_t24_usage_trailer_proves_the_end() -> None:
    finish = finish_of(await decode(delta(content="a"), COUNTED, done=False))
    assert (finish.reason, finish.marked) == ("stop", False)


async def test_w08_end_without_any_proof_is_a_closed_stream() -> None:
    assert (await refused(delta(content="a"), done=False)).code == "STREAM_CLOSED"
    assert (await refused(done=False)).code == "STREAM_CLOSED"


async def test_t25_other_places_of_thinking_and_text() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "c"}]},
        {"type": "text", "text": "d"},
        7,
        {"type": "image_url"},
    ]
    assert (await short_of(delta(reasoning="a"), delta(content=parts), FINISH))[-3:] == ["E0 ac", "E1 d", "F stop"]


async def test_legacy_completions_text_is_read() -> None:
    assert (await short_of({"choices": [{"text": "a", "finish_reason": "stop"}]}))[-2:] == ["E0 a", "F stop"]


async def test_the_model_that_the_server_names_is_reported() -> None:
    assert finish_of(await decode(delta(content="a") | {"model": "other-model"}, FINISH)).model == "other-model"


@pytest.mark.parametrize("payload", [None, [], 7, "x"])
async def test_w12_payload_that_is_no_object(payload: Any) -> None:
    assert (await refused(payload)).code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("choices", [None, [], [None], [{}], [{"delta": None}], [{"delta": []}], {}, "x"])
async def test_defect_12_events_without_a_usable_choice_are_skipped(choices: Any) -> None:
    assert (await short_of({"choices": choices}, delta(content="a"), FINISH))[-2:] == ["E0 a", "F stop"]


# -- thinking written into the text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 12))
async def test_think_tags_are_split_whatever_the_pieces(size: int) -> None:
    text = "<think>hm, 1 < 2</think>\n\nThe answer"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    ends = [line for line in await short_of(*(delta(content=each) for each in pieces), FINISH) if line[0] == "E"]
    assert ends == ["E0 hm, 1 < 2", "E1 The answer"]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("<think>never closed", ["E0 never closed"]),
        ("a <think>b</think>", ["E0 a <think>b</think>"]),
        ("<thin", ["E0 <thin"]),
        ("<table>", ["E0 <table>"]),
        ("  indented", ["E0   indented"]),
        ("<think></think>answer", ["E0 answer"]),
    ],
)
async def test_think_tags_only_at_the_start(text: str, ends: list[str]) -> None:
    assert [line for line in await short_of(delta(content=text), FINISH) if line[0] == "E"] == ends


# -- tool calls -------------------------------------------------------------------------------------------------------


async def test_t08_five_fragments() -> None:
    parts = ["", '{"comma', 'nd":', ' "l', 's"}']
    wire = [piece(0, "a" if not n else None, "bash" if not n else None, part) for n, part in enumerate(parts)]
    assert await short_of(*wire, delta("tool_calls")) == [
        "S0 tool-call",
        *(f"C0 a bash {part}" for part in parts),
        'E0 a bash {"command": "ls"}',
        "F tool-calls",
    ]


async def test_t09_interleaved_calls() -> None:
    wire = (piece(0, "a", "bash"), piece(1, "b", "read"), piece(0, arguments='{"x":1}'), piece(1, arguments='{"y":2}'))
    assert calls_of(await decode(*wire, delta("tool_calls"))) == [("bash", {"x": 1}), ("read", {"y": 2})]


async def test_t10_t11_same_index_for_two_ids() -> None:
    wire = (piece(0, "a", "bash", "{}"), piece(0, "b", "read", '{"y"'), piece(0, arguments=":2}"))
    chunks = await decode(*wire, delta("tool_calls"))
    assert (ids_of(chunks), calls_of(chunks)) == (["a", "b"], [("bash", {}), ("read", {"y": 2})])


async def test_t12_id_on_every_fragment_without_index() -> None:
    wire = (piece(None, "a", "bash", "{"), piece(None, "a", None, "}"), piece(None, "b", "read", "{}"))
    assert ids_of(await decode(*wire, delta("tool_calls"))) == ["a", "b"]


@pytest.mark.parametrize("index", [0, None])
async def test_t12_id_after_the_name(index: int | None) -> None:
    wire = (piece(index, None, "bash"), piece(None, "a", None, "{}"), piece(None, None, None, ""))
    chunks = await decode(*wire, delta("tool_calls"))
    assert (ids_of(chunks), calls_of(chunks)) == (["a"], [("bash", {})])


async def test_t13_arguments_as_an_object() -> None:
    assert calls_of(await decode(piece(0, "a", "bash", {"x": "你"}), delta("tool_calls"))) == [("bash", {"x": "你"})]


async def test_t14_calls_without_ids_get_unique_ones() -> None:
    chunks = await decode(piece(0, None, "bash", "{}"), piece(1, None, "read", "{}"), delta("tool_calls"))
    again = await decode(piece(0, None, "bash", "{}"), delta("tool_calls"))
    assert len({*ids_of(chunks), *ids_of(again)}) == 3


async def test_calls_without_ids_indexes_and_arguments_are_told_apart_by_name() -> None:
    wire = (piece(None, None, "bash"), piece(None, None, "read"))
    names = [end.block.name for end in await decode(*wire, delta("tool_calls")) if isinstance(end, BlockEnd)]  # type: ignore[union-attr]
    assert names == ["bash", "read"]


async def test_name_in_growing_prefixes() -> None:
    wire = (piece(0, "a", "ba"), piece(0, None, "bash"), piece(0, None, None, "{}"))
    assert calls_of(await decode(*wire, delta("tool_calls"))) == [("bash", {})]


async def test_t15_length_inside_arguments_leaves_no_call() -> None:
    assembler = BlockAssembler()
    for chunk in await decode(delta(content="a"), piece(0, "x", "bash", '{"comm'), delta("length")):
        assembler.add(chunk)
    assert (assembler.finish.reason, assembler.blocks()) == ("max-tokens", (TextBlock("a"),))


async def test_t26_stop_with_calls_is_tool_calls() -> None:
    assert (await short_of(piece(0, "a", "bash", "{}"), FINISH))[-1] == "F tool-calls"


TWO_CALLS = (("bash", {"command": "ls -l"}), ("read", {"path": "ä/你.txt"}))


def odd_reply(*odd: str) -> Reply:
    with_calls = TWO_CALLS[:1] if {"function_call", "content_parts", "second_choice"} & set(odd) else TWO_CALLS
    return reply("Hello 你好", tool_calls=[call(*each) for each in with_calls], odd=odd, stream_pieces=5)


PAIRS = [
    ("index_zero", "id_none"),
    ("index_missing", "id_none"),
    ("index_missing", "id_later"),
    ("index_first_only", "id_later"),
    ("index_zero", "id_later"),
    ("id_every", "name_every"),
    ("id_every", "index_missing"),
    ("index_one_based", "interleave"),
    ("id_every", "id_duplicate"),
    ("id_duplicate", "name_every"),
]


@pytest.mark.parametrize("odd", [*((name,) for name in ODDITIES), *PAIRS], ids="+".join)
async def test_oddity(odd: tuple[str, ...], fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([odd_reply(*odd)])
    chunks = await chunks_of(make_adapter(server.url), ask("hi", tools=(BASH, READ)))
    expected = odd_reply(*odd)
    text = "".join(end.block.text for end in chunks if isinstance(end, BlockEnd) and isinstance(end.block, TextBlock))
    assert text == "Hello 你好"
    assert calls_of(chunks) == [(each.name, json.loads(each.arguments)) for each in expected.tool_calls]
    assert len(set(ids_of(chunks))) == len(expected.tool_calls)
    assert finish_of(chunks).reason == "tool-calls"


RECORDED = reply(
    "Hello 你好 🙂",
    reasoning="hm",
    tool_calls=[call("bash", {"command": "ls"}, id="call_1"), call("read", {"path": "ä"}, id="call_2")],
    usage=usage(283, 10, cached=256, reasoning=4),
    stream_pieces=20,
)


async def test_every_byte_alone_gives_the_same_chunks(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    split = replace(RECORDED, delivery=replace(RECORDED.delivery, split=1))
    server = await fault_server([RECORDED, split])
    adapter = make_adapter(server.url)
    whole = await chunks_of(adapter, ask("hi", tools=(BASH, READ)))
    assert await chunks_of(adapter, ask("hi", tools=(BASH, READ))) == whole
    assert shorts(whole)[-2:] == ["U 27 256 10 4", "F tool-calls"]


async def test_plain_json_gives_the_same_blocks_as_a_stream(
    fault_server: MakeServer, make_adapter: MakeAdapter
) -> None:
    server = await fault_server([RECORDED, replace(RECORDED, odd=frozenset({"full_json"}))])
    adapter = make_adapter(server.url)
    streamed = await chunks_of(adapter, ask("hi", tools=(BASH, READ)))
    document = await chunks_of(adapter, ask("hi", tools=(BASH, READ)))
    ends = [short(chunk) for chunk in streamed if isinstance(chunk, BlockEnd)]
    assert [short(chunk) for chunk in document if isinstance(chunk, BlockEnd)] == ends
    assert shorts(document)[-2:] == shorts(streamed)[-2:]


async def test_second_choice_is_ignored(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    server = await fault_server([reply("one", odd="second_choice")])
    assert "E0 one" in shorts(await chunks_of(make_adapter(server.url), ask()))


KEYS = """choices delta message content tool_calls index id function name arguments usage error finish_reason
prompt_tokens text refusal code object""".split()  # noqa: SIM905


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(KEYS),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
        max_size=4,
    )
)
def test_any_payload_gives_chunks_or_an_llm_error(payloads: list[Any]) -> None:
    decoder = ChatDecoder("the server")
    try:
        chunks = [chunk for payload in payloads for chunk in decoder.feed(payload)] + decoder.end(done=True)
    except LLMError:
        return
    assert isinstance(chunks[-1], Finish)


async def test_odd_event_order_does_not_break_the_grammar(fault_server: MakeServer, make_adapter: MakeAdapter) -> None:
    wire = (delta("stop", content="a"), delta(content="b"), piece(0, "x", "bash", "{}"), COUNTED, delta("stop"))
    server = await fault_server([events(*wire)])
    chunks = await chunks_of(make_adapter(server.url), ask())
    assert [end.block for end in chunks if isinstance(end, BlockEnd)] == [
        TextBlock("ab"),
        ToolCallBlock("x", "bash", "{}"),
    ]
