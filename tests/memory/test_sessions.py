"""What is recorded comes back: the same messages, the right repair, shared histories, search, export, retention."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from app.llm import history
from app.llm.adapters.http import HTTPAdapter
from app.llm.transport import Timeouts, Transport
from app.memory.memory import Memory
from app.memory.recover import NOT_STARTED, REPEATABLE, UNKNOWN
from app.memory.session_export import export_session, import_session
from app.memory.session_store import MIGRATIONS, SessionStore
from app.memory.sessions import Sessions
from app.schema.errors import SessionError
from app.schema.event import PlanChanged, RunFinished, RunStarted
from app.schema.message import (
    ImageBlock,
    Message,
    OpaqueBlock,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    assistant_message,
    tool_result_message,
    user_message,
)
from app.schema.plan import Plan, PlanStep
from app.schema.run import RunContext
from app.schema.usage import Usage
from benchmarks.sessions import fill, raw_bytes
from tests.fault_server import FaultServer
from tests.llm.asking import ask
from tests.llm.dialects import DIALECTS, DialectRow
from tests.memory.keeping import again, begin, called, opened, raw, results, said


def everything() -> list[Message]:
    """Every kind of block and source, short ones and long ones."""
    long = "Ein langer Text, 一段長文, \U0001f600 \x00 \u2028" * 100
    return [
        user_message([TextBlock(long), ImageBlock("aGVsbG8=" * 500, "image/png", 3, 4, "low")]),
        assistant_message(
            [
                ReasoningBlock("hm", "sig=="),
                TextBlock("short"),
                ToolCallBlock("c1", "bash", '{"command": "ls"}'),
                ToolCallBlock("c2", "bash", "{broken" + long),
            ],
            provider="anthropic",
            model="m",
            replay_state={"deep": [1, {"x": None}]},
        ),
        tool_result_message("c1", [TextBlock(long), ImageBlock("eA==", "image/gif")]),
        tool_result_message("c2", "no", is_error=True),
        user_message("hint", PluginSource("output-limit", "notice", "sum")),
        assistant_message(
            [TextBlock("end"), OpaqueBlock("future", '{"kind": "future", "a": 1}')], provider="p", model="m"
        ),
    ]


async def test_p03_every_message_comes_back_as_it_was(tmp_path: Path) -> None:
    messages = everything()
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all(messages)
        await memory.settled()
        session.close()
    with opened(tmp_path) as sessions:
        session, memory, restored = again(sessions)
        assert memory.messages == tuple(messages)
        assert [message.time for message in memory.messages] == [message.time for message in messages]
        assert (restored.closers, restored.doubts, restored.question, restored.damaged) == ((), (), None, [])
        session.close()


async def test_p03_an_empty_record_gets_nothing_added(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, _ = begin(sessions)
        session.note("run_started", {"task": "x"})
        session.close()
        session, memory, restored = again(sessions)
        assert (memory.messages, restored.closers, restored.damaged) == ((), (), [])
        session.close()


@pytest.mark.parametrize("row", DIALECTS, ids=lambda row: row.name)
async def test_l19_a_resumed_conversation_gives_the_bytes_that_were_sent(row: DialectRow, tmp_path: Path) -> None:
    server = SimpleNamespace(url="http://127.0.0.1/v1", root="http://127.0.0.1")
    adapter = cast("HTTPAdapter", row.adapter(cast("FaultServer", server), Transport(), Timeouts()))
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("task"), called(("a", "bash", '{ "x":  1}'), ("b", "look", ""))])
        memory.add_all([tool_result_message("a", "done"), tool_result_message("b", "no", is_error=True)])
        sent = adapter.encode(ask(*history.prepare(memory.view())))
        session.close()
        session, memory, _ = again(sessions)
        assert adapter.encode(ask(*history.prepare(memory.view()))) == sent
        session.close()


async def test_what_is_settled_is_in_the_file_before_anything_else_happens(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions, opened(tmp_path) as others:
        session, memory = begin(sessions)
        assert others.list() == []
        memory.add(user_message("task"))
        await memory.settled()
        assert [row.id for row in others.list()] == [session.id]
        memory.add(called(("c1", "bash", "{}")))
        await memory.starting(memory.open_calls[0], "once")
        kinds = [event.kind for event in others.store.events(1)[0]]
        assert kinds == ["created", "message", "message", "started"]
        session.close()


async def test_p01_p02_calls_are_closed_by_what_is_known_of_them(tmp_path: Path) -> None:
    """P01, P02: each open call gets exactly one result, in order, that says whether it may be made again."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("task"))
        memory.add(called(("a", "bash", "{}"), ("b", "look", "{}"), ("c", "put", "{}"), ("d", "bash", '{"x": 1}')))
        for call, effect in zip(memory.open_calls, ("once", "read", "idempotent"), strict=False):
            await memory.starting(call, effect)
        session.close()
        session, memory, restored = again(sessions)
        assert results(memory) == [
            f"bash: {UNKNOWN}",
            f"look: {REPEATABLE}",
            f"put: {REPEATABLE}",
            f"bash: {NOT_STARTED}",
        ]
        assert [call.id for call in restored.doubts] == ["a"]
        assert history.problems(memory.messages) == []
        session.close()
        closed = memory.messages
        session, memory, restored = again(sessions)
        assert memory.messages == closed
        assert restored.closers == ()
        assert [call.id for call in restored.doubts] == ["a"]
        session.close()


async def test_p04_repairing_twice_from_the_same_bytes_gives_the_same(tmp_path: Path) -> None:
    """P04."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("task"), called(("a", "bash", "{}"))])
        await memory.settled()
        session.close()
        row = sessions.list()[0]
        first, second = (sessions.read(row)[0][""][1].closers for _ in range(2))
        assert first == second
        assert [closer.time for closer in first] == [closer.time for closer in second]
        assert len(first) == 1


async def test_a_doubt_ends_when_the_call_is_made_again(tmp_path: Path) -> None:
    """Somebody has given his word; the next kill brings a new doubt."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("task"), called(("a", "pay", '{"to": "x"}'))])
        await memory.starting(memory.open_calls[0], "once")
        session.close()
        session, memory, restored = again(sessions)
        memory.add(called(("b", "pay", '{"to": "x"}')))
        await memory.starting(memory.open_calls[0], "once")
        memory.add(tool_result_message("b", "paid"))
        session.close()
        session, memory, restored = again(sessions)
        assert restored.doubts == ()
        session.close()


async def test_a_result_of_the_loop_is_no_word_of_the_tool(tmp_path: Path) -> None:
    """Ctrl+C in the middle of an effect leaves the same doubt as a kill."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("task"), called(("a", "pay", "{}"))])
        await memory.starting(memory.open_calls[0], "once")
        memory.add(tool_result_message("a", "interrupted").replace(source=PluginSource("agent")))
        session.close()
        session, _, restored = again(sessions)
        assert [call.id for call in restored.doubts] == ["a"]
        session.close()


async def test_a_question_waits_for_its_answer(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("task"), called(("a", "ask_human", '{"question": "Red or blue?"}'))])
        await memory.starting(memory.open_calls[0], "once")
        session.close()
        session, memory, restored = again(sessions, keep_question=True)
        assert restored.question is not None
        assert restored.asked == "Red or blue?"
        assert [call.id for call in memory.open_calls] == ["a"]
        session.close()
        session, memory, restored = again(sessions)
        assert results(memory) == [f"ask_human: {NOT_STARTED}"]
        assert restored.doubts == ()
        session.close()


def run_events(ctx: RunContext, reason: str = "finished") -> None:
    ctx.emit(RunStarted("write a haiku\nabout rivers", "manus", {"config": "default"}, ctx.session, "none", "/w"))
    if reason:
        ctx.emit(RunFinished(reason, "done", None, Usage(input_tokens=3), 0.1, 1, 1, ctx.session))


async def test_a_session_knows_its_task_and_how_its_last_run_ended(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, _ = begin(sessions)
        ctx = RunContext(sink=session.watch, session=session.id)
        run_events(ctx, "")
        await session.settled()
        assert [(row.task, sessions.state(row)) for row in sessions.list()] == [("write a haiku", "running")]
        session.close()
        assert [sessions.state(row) for row in sessions.list()] == ["interrupted"]
        session, _, _ = again(sessions)
        assert session.unfinished
        assert session.task == "write a haiku\nabout rivers"
        run_events(RunContext(sink=session.watch))
        session.close()
        assert [sessions.state(row) for row in sessions.list()] == ["finished"]
        session, _, _ = again(sessions)
        assert not session.unfinished
        session.close()


async def test_runs_of_sub_agents_are_not_the_sessions(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, _ = begin(sessions)
        run_events(RunContext(sink=session.watch).child())
        session.close()
        assert sessions.list() == []


async def test_a_flows_plan_comes_back_whole(tmp_path: Path) -> None:
    steps = (PlanStep("1", "a", "manus", (), "check it", "completed", "r"), PlanStep("2", "b", None, ("1",)))
    plan = Plan("plan-1", "title", steps)
    with opened(tmp_path) as sessions:
        session = sessions.create(kind="flow")
        RunContext(sink=session.watch).emit(PlanChanged(plan.mark("2", "in_progress")))
        RunContext(sink=session.watch).emit(PlanChanged(plan))
        session.close()
        session = sessions.resume("last")
        assert session.plan == plan
        session.close()


async def test_s1_the_newest_session_is_the_one_used_last(tmp_path: Path) -> None:
    """S1, H4: by a counter, so that two of the same second, or a clock that was set back, change nothing."""
    with opened(tmp_path) as sessions:
        names: list[str] = []
        for workspace in ("/a", "/b", "/a"):
            session, memory = begin(sessions, workspace)
            memory.add(user_message("x"))
            session.close()
            names.append(session.id)
        raw(sessions, "UPDATE session SET updated = 1000 - number, created = 1000 - number")
        assert [row.id for row in sessions.list()] == names[::-1]
        assert sessions.find("last", workspace="/b").id == names[1]
        assert sessions.find("last", workspace="/a").id == names[2]
        session, memory, _ = again(sessions, names[0])
        memory.add(user_message("used again"))
        session.close()
        assert sessions.find("last", workspace="/a").id == names[0]
        with pytest.raises(SessionError, match="no session yet for the workspace /c"):
            sessions.find("last", workspace="/c")


async def test_s2_an_unanswered_message_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("one"), said("two"), user_message("three?")])
        session.close()
        session, memory, _ = again(sessions)
        assert [message.text for message in memory.messages] == ["one", "two", "three?"]
        session.close()


async def test_a_fork_shares_what_was_and_goes_its_own_way(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("task " + "x" * 2000), said("one " + "y" * 2000)])
        session.close()
        bodies = raw(sessions, "SELECT count(*) FROM body")
        fork = sessions.fork(session.id)
        assert raw(sessions, "SELECT count(*) FROM body") == bodies
        left, left_memory, _ = again(sessions, session.id)
        left_memory.add(user_message("left"))
        left.close()
        right, right_memory, _ = again(sessions, fork.id)
        right_memory.add(user_message("right"))
        right.close()
        assert [m.text[:5] for m in again_texts(sessions, session.id)] == ["task ", "one y", "left"]
        assert [m.text[:5] for m in again_texts(sessions, fork.id)] == ["task ", "one y", "right"]
        early = sessions.fork(session.id, at=2)
        assert [m.text[:5] for m in again_texts(sessions, early.id)] == ["task "]
        sessions.delete(session.id)
        assert [m.text[:5] for m in again_texts(sessions, fork.id)] == ["task ", "one y", "right"]
        for name in (fork.id, early.id):
            sessions.delete(name)
        for table in ("session", "event", "body", "reference"):
            assert raw(sessions, f"SELECT count(*) FROM {table}") == [(0,)]


def again_texts(sessions: Sessions, name: str) -> tuple[Message, ...]:
    held, damaged = sessions.read(sessions.find(name))
    assert damaged == []
    return held[""][0].messages


async def test_equal_bodies_are_stored_once(tmp_path: Path) -> None:
    text = "the same file again\n" * 200
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        for number in range(20):
            memory.add(called((f"c{number}", "read", "{}")))
            memory.add(tool_result_message(f"c{number}", text))
        session.close()
        assert raw(sessions, "SELECT count(*) FROM body") == [(1,)]
        assert results(again_memory(sessions)) == [text] * 20


def again_memory(sessions: Sessions) -> Memory:
    return sessions.read(sessions.list()[0])[0][""][0]


async def test_search_finds_words_of_any_script(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("Die Straße nach Zürich, bitte"))
        memory.add(called(("c1", "bash", '{"command": "grep needle haystack"}')))
        memory.add(tool_result_message("c1", "項目會議記錄"))
        session.close()
        found = {
            words: [hit.message.id for hit in sessions.search(words)]
            for words in ("zurich", "needle", "會議", "議會", "Straße bitte", "absent", '"')
        }
        first, second, third = (message.id for message in memory.messages)
        assert found == {
            "zurich": [first],
            "needle": [second],
            "會議": [third],
            "議會": [],
            "Straße bitte": [first],
            "absent": [],
            '"': [],
        }
        sessions.delete(session.id)
        assert sessions.search("needle") == []
        assert sessions.search("haystack") == []
        assert raw(sessions, "SELECT count(*) FROM search WHERE search MATCH 'needle'") == [(0,)]
    assert b"needle" not in (tmp_path / "sessions.db").read_bytes()


async def test_secrets_are_not_written(tmp_path: Path) -> None:
    """T5: neither in messages nor in arguments, tasks, events or the search index."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        ctx = RunContext(sink=session.watch)
        ctx.emit(RunStarted("use s3cr3t-key now", "manus", {}, None, "none", "/w"))
        memory.add(user_message("my key is s3cr3t-key " * 100))
        memory.add(called(("c1", "bash", '{"command": "curl -H s3cr3t-key"}')))
        memory.add(tool_result_message("c1", "s3cr3t-key"))
        session.close()
        assert sessions.search("s3cr3t") == []
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) >= 1
    assert [path.name for path in files if b"s3cr3t" in path.read_bytes()] == []


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "sessions"
    with opened(folder) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("x"))
        await memory.settled()
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in [folder, *folder.rglob("*")]}
        assert {mode for name, mode in modes.items() if "." in name} == {"0o600"}
        assert (modes["sessions"], modes["locks"]) == ("0o700", "0o700")
        session.close()
        assert list((folder / "locks").iterdir()) == []


async def test_export_and_import_carry_everything(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as sessions:
        session, memory = begin(sessions)
        run_events(RunContext(sink=session.watch), "budget")
        memory.add_all(everything())
        memory.add(called(("z", "pay", "{}")))
        await memory.starting(memory.open_calls[0], "once")
        session.close()
        lines = [json.dumps(line) for line in export_session(sessions, "last")]
        messages = memory.messages
        assert json.loads(lines[0])["state"] == "budget"
        other, problems = import_session(sessions, lines)
        assert problems == []
        assert other != session.id
    with opened(tmp_path / "two") as sessions:
        name, problems = import_session(
            sessions, [*lines, "{torn", '{"kind": "odd", "thread": "", "time": 1, "data": {}}', ""]
        )
        assert name == session.id
        assert len(problems) == 2
        session, memory, restored = again(sessions, name)
        assert memory.messages[: len(messages)] == messages
        assert [call.id for call in restored.doubts] == ["z"]
        assert session.row.task == "write a haiku"
        session.close()


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ("", "SESSION"),
        ("[1]", "SESSION"),
        ("[" * 100_000, "SESSION"),
        ('{"format": "other"}', "SESSION"),
        ('{"format": "dragoman-session", "version": 2}', "SESSION_NEWER"),
    ],
    ids=["empty", "list", "deep", "other", "newer"],
)
async def test_import_refuses_what_is_no_session_of_ours(tmp_path: Path, first: str, code: str) -> None:
    with opened(tmp_path) as sessions:
        with pytest.raises(SessionError) as caught:
            import_session(sessions, [first])
        assert caught.value.code == code
        assert sessions.list() == []


async def test_retention_forgets_what_nobody_used(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        made = []
        for _ in range(3):
            session, memory = begin(sessions)
            memory.add(user_message("x"))
            await memory.settled()
            made.append(session)
        raw(sessions, "UPDATE session SET updated = ? WHERE id <> ?", time.time() - 10 * 86_400, made[2].id)
        made[1].close()
        made[2].close()
        assert sessions.prune(9) == 1, "the first is in use, the third is young"
        assert {row.id for row in sessions.list()} == {made[0].id, made[2].id}
        made[0].close()


async def test_an_older_file_is_brought_up_to_date(tmp_path: Path) -> None:
    import sqlite3

    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("needle in a haystack"))
        session.close()
    db = sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)
    db.execute("DROP TABLE search")
    db.execute("PRAGMA user_version = 1")
    db.close()
    with opened(tmp_path) as sessions:
        assert [hit.message.text for hit in sessions.search("needle")] == ["needle in a haystack"]
        assert raw(sessions, "PRAGMA user_version") == [(len(MIGRATIONS),)]
        assert [m.text for m in again_texts(sessions, session.id)] == ["needle in a haystack"]


async def test_many_sessions_at_once_do_not_cross(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:

        async def one(number: int) -> None:
            session, memory = begin(sessions)
            for step in range(5):
                memory.add(user_message(f"{number}/{step}"))
                await memory.settled()
            session.close()

        await asyncio.gather(*(one(number) for number in range(32)))
        texts = sorted(tuple(m.text for m in again_texts(sessions, row.id)) for row in sessions.list())
    assert texts == sorted(tuple(f"{number}/{step}" for step in range(5)) for number in range(32))


async def test_a_cancelled_wait_lets_the_write_end(tmp_path: Path) -> None:
    """Saving finishes, also when the run is cut off while it saves."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("x"))
        waiting = asyncio.ensure_future(memory.settled())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        session.close()
        assert [m.text for m in again_texts(sessions, session.id)] == ["x"]


async def test_recording_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    """While another process holds the file for 100 ms, the loop goes on turning."""
    with opened(tmp_path) as sessions, opened(tmp_path) as other:
        session, memory = begin(sessions)
        raw(other, "BEGIN IMMEDIATE")
        memory.add(user_message("x"))
        waiting = asyncio.ensure_future(memory.settled())
        turns, began = 0, time.monotonic()
        while time.monotonic() - began < 0.05:
            await asyncio.sleep(0.001)
            turns += 1
        assert turns >= 5
        assert not waiting.done()
        raw(other, "COMMIT")
        await waiting
        session.close()


def test_asking_whether_there_are_sessions_creates_nothing(tmp_path: Path) -> None:
    assert not Sessions.exist(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
    with opened(tmp_path / "sessions"):
        assert Sessions.exist(tmp_path / "sessions")


def test_a_store_is_independent_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SessionStore(tmp_path)
    monkeypatch.chdir(os.sep)
    assert store.sessions() == []
    store.close()


async def test_a_long_session_is_less_than_twice_its_text_and_a_fork_adds_one_row(tmp_path: Path) -> None:
    """The measures of `benchmarks/sessions.py` that no clock can blur."""
    with opened(tmp_path) as sessions:
        session = sessions.create()
        messages, _ = await fill(session, 150)
        session.close()
        events = raw(sessions, "SELECT count(*) FROM event")[0][0]
        for _ in range(3):
            sessions.fork("last")
        assert raw(sessions, "SELECT count(*) FROM event") == [(events + 3,)]
    assert (tmp_path / "sessions.db").stat().st_size < 2 * raw_bytes(messages)
