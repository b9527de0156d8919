"""The log keeps everything; the view is short, valid, and begins with the task."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.llm import history
from app.llm.adapters.accounts import Quirks
from app.llm.adapters.chat_encode import ChatEncoder
from app.llm.adapters.corrections import Learned
from app.memory.memory import SUMMARY, Memory
from app.schema.message import (
    JSON,
    Message,
    PluginSource,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    assistant_message,
    message_from_json,
    message_to_json,
    tool_result_message,
    user_message,
)
from app.schema.request import CallConfig, ModelRequest


def exchange(number: int, calls: int = 1, call_id: str = "") -> list[Message]:
    blocks = [ToolCallBlock(call_id or f"c{number}-{n}", "note", "{}") for n in range(calls)]
    reply = assistant_message([TextBlock(f"step {number}"), *blocks], provider="p", model="m")
    return [reply, *(tool_result_message(block.id, "ok") for block in blocks)]


def answer(text: str) -> Message:
    return assistant_message(text, provider="p", model="m")


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages if message.text]


def test_without_a_limit_the_view_is_the_log() -> None:
    memory = Memory()
    memory.add_all([user_message("task"), *exchange(1), *exchange(2)])
    assert memory.view() == memory.messages
    assert len(memory) == 5


def test_h1_43_sixty_tool_turns_under_a_cap_of_one_hundred() -> None:
    memory = Memory(100)
    task = memory.add(user_message("task"))
    changes = 0
    before: tuple[Message, ...] = ()
    for number in range(60):
        memory.add_all(exchange(number, calls=2))
        view = memory.view()
        assert history.problems(view) == []
        assert view[0] is task
        assert len(view) <= 100
        changes += view[: len(before)] != before
        before = view
    assert len(memory) == 1 + 60 * 3
    # Down to half at once: the front of the prompt changes rarely.
    assert changes == 2


def test_the_cut_leaves_half_the_limit() -> None:
    memory = Memory(10)
    memory.add(user_message("task"))
    for number in range(5):
        memory.add_all(exchange(number))
    assert texts(memory.view()) == ["task", "step 3", "step 4"]


def test_the_newest_task_stays_when_the_conversation_is_long() -> None:
    memory = Memory(10)
    memory.add_all([user_message("first task"), answer("done"), user_message("second task")])
    for number in range(20):
        memory.add_all(exchange(number))
        assert {"first task", "second task"} <= set(texts(memory.view()))
        assert history.problems(memory.view()) == []
        assert len(memory.view()) <= 10


def test_an_exchange_longer_than_the_limit_is_kept_whole() -> None:
    memory = Memory(6)
    memory.add_all([user_message("task"), *exchange(1), *exchange(2, calls=12)])
    assert texts(memory.view()) == ["task", "step 2"]
    assert history.problems(memory.view()) == []
    memory.add(answer("done"))
    assert texts(memory.view()) == ["task", "done"]


def test_nothing_is_cut_while_a_call_is_open() -> None:
    memory = Memory(4)
    memory.add_all([user_message("task"), *exchange(1), exchange(2)[0]])
    memory.add(user_message("in between"))
    assert len(memory.view()) == 5
    assert [call.id for call in memory.open_calls] == ["c2-0"]


def test_b125_error_results_answer_a_call() -> None:
    memory = Memory()
    reply, _ = exchange(1)
    memory.add(reply)
    memory.add(tool_result_message("c1-0", "refused by the user", is_error=True))
    assert memory.open_calls == ()


def test_b126_a_result_without_a_call_does_no_harm() -> None:
    memory = Memory(4)
    memory.add_all([user_message("task"), tool_result_message("orphan", "x"), *exchange(1), *exchange(2)])
    assert memory.open_calls == ()
    assert history.problems(history.prepare(memory.view())) == []


def test_used_call_ids_are_made_fresh_and_the_stored_message_is_returned() -> None:
    memory = Memory()
    first, _ = exchange(1, call_id="0")
    assert memory.add(first) is first
    memory.add(tool_result_message("0", "ok"))
    stored = memory.add(exchange(2, call_id="0")[0])
    assert [call.id for call in stored.tool_calls] == ["0-2"]
    assert (stored.id, stored.text) == (memory.messages[-1].id, "step 2")
    assert [call.id for call in memory.open_calls] == ["0-2"]


def test_54_one_id_twice_in_a_reply_and_no_id_at_all() -> None:
    memory = Memory()
    blocks = [ToolCallBlock(call_id, "note", "{}") for call_id in ("x", "x", "x-2", "", "")]
    stored = memory.add(assistant_message(blocks, provider="p", model="m"))
    ids = [call.id for call in stored.tool_calls]
    assert ids == ["x", "x-2", "x-2-2", "call-2", "call-3"]


@pytest.mark.parametrize("limit", [-1, 0, 3])
def test_a_limit_that_cannot_hold_an_exchange_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="fewer than four"):
        Memory(limit)


TURNS = st.lists(st.one_of(st.just("user"), st.just("answer"), st.integers(1, 7)), max_size=40)


@given(turns=TURNS, limit=st.integers(4, 25))
def test_o06_any_conversation_under_any_limit_gives_a_valid_view(turns: list[str | int], limit: int) -> None:
    memory = Memory(limit)
    task = memory.add(user_message("task"))
    added: list[Message] = [task]
    newest = task
    for number, turn in enumerate(turns):
        match turn:
            case "user":
                newest = user_message(f"task {number}")
                new = [newest]
            case "answer":
                new = [answer(f"answer {number}")]
            case int(calls):
                new = exchange(number, calls)
            case _:
                raise AssertionError(turn)
        added += new
        memory.add_all(new)
        view = memory.view()
        assert history.problems(view) == []
        assert view[0] is task
        assert newest in view
        assert view[-1] is added[-1]
        last = max(number for number, message in enumerate(added) if not message.tool_results)
        assert len(view) <= max(limit, len(added) - last + 2)
    assert list(memory.messages) == added


def test_a_message_pushed_twice_is_kept_once_and_noticed() -> None:
    memory = Memory()
    task = memory.add(user_message("task"))
    assert memory.add(task) is task
    memory.add_all([*exchange(1), task])
    assert memory.duplicates == 2
    assert len(memory) == len(memory.view()) == 3


def test_the_same_words_again_are_another_message() -> None:
    memory = Memory()
    memory.add_all([user_message("go on"), user_message("go on")])
    assert (len(memory), memory.duplicates) == (2, 0)


def test_p09_b126_an_orphan_and_a_second_result_stay_out_of_the_view() -> None:
    memory = Memory()
    memory.add_all([user_message("task"), tool_result_message("orphan", "x"), *exchange(1)])
    memory.add(tool_result_message("c1-0", "again"))
    assert len(memory) == 5
    assert history.problems(memory.view()) == []
    assert [message.tool_results[0].text for message in memory.view() if message.tool_results] == ["ok"]


class Notes:
    """A journal that keeps what it is told as JSON, as a session does."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def record(self, message: Message) -> None:
        self.rows.append(("message", json.dumps(message_to_json(message))))

    def note(self, kind: str, data: Mapping[str, JSON]) -> None:
        self.rows.append((kind, json.dumps(data)))

    async def started(self, call: ToolCallBlock, effect: str) -> None:
        raise AssertionError

    async def settled(self) -> None:
        raise AssertionError

    def replayed(self, max_messages: int | None = None) -> Memory:
        memory = Memory(max_messages)
        for kind, row in self.rows:
            if kind == "message":
                memory.add(message_from_json(json.loads(row)))
            else:
                memory.replay(kind, json.loads(row))
        return memory


def summary(text: str = "what was before") -> Message:
    return user_message(text, PluginSource(SUMMARY, "summary"))


def kept() -> tuple[Memory, Notes]:
    memory, notes = Memory(), Notes()
    memory.journal = notes
    memory.add_all([user_message("task"), *exchange(1), *exchange(2), *exchange(3)])
    return memory, notes


def test_a_changed_view_comes_back_from_its_journal() -> None:
    memory, notes = kept()
    view = memory.view()
    short = view[4].replace(content=[ToolResultBlock("c2-0", (TextBlock("short"),))])
    memory.compact([view[0], summary(), view[3], short, *view[5:]])
    memory.add_all(exchange(4))
    again = notes.replayed()
    assert again.view() == memory.view()
    assert again.messages == memory.messages
    assert again.view_bytes == memory.view_bytes
    [(_, note)] = [row for row in notes.rows if row[0] == "compacted"]
    items = json.loads(note)["view"]
    assert [type(item) for item in items] == [str, dict, str, dict, str, str]


def test_a_second_change_names_what_the_first_rewrote() -> None:
    memory, notes = kept()
    view = memory.view()
    short = view[2].replace(content=[ToolResultBlock("c1-0", (TextBlock("short"),))])
    memory.compact([*view[:2], short, *view[3:]])
    memory.compact([*view[:2], short, *view[5:]])
    assert json.loads(notes.rows[-1][1])["view"] == [message.id for message in memory.view()]
    assert notes.replayed().view() == memory.view()


@pytest.mark.parametrize("cut", [slice(0, 2), slice(2, 7)])
def test_k02_a_view_that_separates_a_call_from_its_result_is_refused(cut: slice) -> None:
    memory, notes = kept()
    before, rows = memory.view(), list(notes.rows)
    with pytest.raises(ValueError, match="without"):
        memory.compact(memory.view()[cut])
    assert (memory.view(), notes.rows) == (before, rows)


def test_a_view_is_not_changed_while_a_call_is_open() -> None:
    memory, _ = kept()
    memory.add(exchange(9)[0])
    with pytest.raises(ValueError, match="open"):
        memory.compact(memory.view()[:1])


@pytest.mark.parametrize("view", [["unknown"], [{"id": 1}], [3]])
def test_a_damaged_note_changes_nothing(view: list[JSON]) -> None:
    memory, _ = kept()
    before = memory.view()
    with pytest.raises((KeyError, ValueError, TypeError, AttributeError)):
        memory.replay("compacted", {"view": view})
    assert memory.view() == before
    memory.replay("something new", {"a": 1})
    assert memory.view() == before


def test_a_summary_stays_under_a_cap() -> None:
    memory = Memory(8)
    memory.add_all([user_message("task"), *exchange(1), *exchange(2)])
    view = memory.view()
    memory.compact([view[0], summary(), *view[3:]])
    for number in range(10, 20):
        memory.add_all(exchange(number))
        assert texts(memory.view())[:2] == ["task", "what was before"]
        assert len(memory.view()) <= 8


def test_170_provenance_is_kept_and_never_sent() -> None:
    memory = Memory()
    task = memory.add(user_message("task"))
    memory.add(assistant_message("answer", provider="a-route", model="a-model"))
    memory.add(user_message("note", PluginSource("a-plugin", "notice", "a summary")))
    encoder = ChatEncoder("main", Quirks())
    config = CallConfig("main", "m")
    body = encoder.body(ModelRequest(config, memory.view()), Learned(), token_field="max_tokens", temperature=True)
    assert [set(message) for message in json.loads(body)["messages"]] == [{"role", "content"}] * 3
    for word in ("a-route", "a-model", "a-plugin", "a summary", task.id, str(int(task.time))):
        assert word not in body.decode()
