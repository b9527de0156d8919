"""Bad disks, bad files, other processes: a sentence, a safe state, no loss. Names carry the public report's number."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest

from app.llm import history
from app.memory.memory import Memory
from app.memory.packing import squeezed, unsqueezed
from app.memory.salvage import salvage
from app.memory.session_export import import_session
from app.memory.session_store import MIGRATIONS
from app.memory.sessions import Sessions
from app.schema.errors import SessionError
from app.schema.message import ModelSource, ToolCallBlock, assistant_message, tool_result_message, user_message
from tests.memory.keeping import again, begin, called, opened, raw, results, said

ROOT = Path(__file__).resolve().parents[2]


def texts(memory: Memory) -> list[str]:
    return [message.text for message in memory.messages]


async def test_p05_b134_a_torn_tail_is_cut_off_and_nothing_fuses(tmp_path: Path) -> None:
    """A process killed while it appends: the last frames of the write-ahead log are torn."""
    with opened(tmp_path / "live") as sessions:
        session, memory = begin(sessions)
        for number in range(4):
            memory.add(user_message(f"whole {number}"))
            await memory.settled()
        whole = (tmp_path / "live" / "sessions.db-wal").stat().st_size
        memory.add(user_message("torn " + "x" * 3000))
        await memory.settled()
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("sessions.db", "sessions.db-wal"):
            (copy / name).write_bytes((tmp_path / "live" / name).read_bytes())
        session.close()
    os.truncate(copy / "sessions.db-wal", whole + 100)
    for extra in range(2):
        with opened(copy) as sessions:
            session, memory, _ = again(sessions)
            expected = [f"whole {number}" for number in range(4)] + [f"after {number}" for number in range(extra)]
            assert texts(memory) == expected
            memory.add(user_message(f"after {extra}"))
            session.close()
    with opened(copy) as sessions:
        assert texts(sessions.read(sessions.list()[0])[0][""][0]) == [*expected, "after 1"]


CHILD = """
import asyncio, os, resource, signal, sys
from pathlib import Path
from app.memory.memory import Memory
from app.memory.sessions import Sessions
from app.schema.errors import SessionError
from app.schema.message import user_message

async def main():
    folder = Path(sys.argv[1])
    sessions = Sessions(folder)
    session, memory = sessions.create(), Memory()
    session.attach(memory)
    memory.add(user_message("before"))
    await memory.settled()
    wal = (folder / "sessions.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal + 40, resource.RLIM_INFINITY))
    memory.add(user_message("in between " + "x" * 20000))
    for _ in range(2):
        try:
            await memory.settled()
            print("written?")
        except SessionError as error:
            print(error.code, error.message.replace(str(folder), "HOME"), error.hint)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    memory.add(user_message("after"))
    await memory.settled()
    session.close()
    sessions.close()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of the kernel")
async def test_b136_a_write_that_is_cut_in_the_middle_is_taken_back_and_told(tmp_path: Path) -> None:
    """The kernel accepts 40 bytes and refuses the rest; later there is room again."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    sentence = "SESSION the sessions in HOME/sessions.db cannot be used: the disk "
    assert [line.startswith(sentence) for line in done.stdout.splitlines()] == [True, True], done.stdout
    with opened(tmp_path) as sessions:
        assert raw(sessions, "PRAGMA integrity_check") == [("ok",)]
        session, memory, _ = again(sessions)
        assert [text[:10] for text in texts(memory)] == ["before", "in between", "after"]
        session.close()


async def test_b136_a_full_disk_is_named_and_later_space_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("before"))
        await memory.settled()
        raw(sessions, "PRAGMA max_page_count = 1")
        memory.add(user_message("x" * 50_000))
        with pytest.raises(SessionError) as caught:
            await memory.settled()
        assert caught.value.message == f"the sessions in {tmp_path / 'sessions.db'} cannot be used: the disk is full"
        assert caught.value.hint == "free some space there and go on with --resume last"
        with pytest.raises(SessionError):
            await memory.starting(ToolCallBlock("c", "bash", "{}"), "once")
        raw(sessions, "PRAGMA max_page_count = 1000000")
        await memory.settled()
        session.close()
        kinds = [event.kind for event in sessions.store.events(1)[0]]
        assert kinds == ["created", "message", "message", "started"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 4096], ids=["zero bytes", "newline", "NULs"])
def test_b137_an_empty_file_is_a_new_one_with_a_warning(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "sessions.db").write_bytes(content)
    with opened(tmp_path) as sessions:
        assert sessions.list() == []
        if content:
            (warning,) = sessions.warnings
            assert "was empty; it was kept as sessions.db.damaged-" in warning
    kept = [path.read_bytes() for path in tmp_path.glob("sessions.db.damaged-*")]
    assert kept == ([content] if content else [])


def test_b137_only_a_header_is_set_aside(tmp_path: Path) -> None:
    content = b"SQLite format 3\0" + b"\0" * 84
    (tmp_path / "sessions.db").write_bytes(content)
    with opened(tmp_path) as sessions:
        assert sessions.list() == []
        assert len(sessions.warnings) == 1
    assert [path.read_bytes() for path in tmp_path.glob("sessions.db.damaged-*")] == [content]


async def test_p06_b137_a_newer_format_is_refused_untouched(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("x"))
        session.close()
        raw(sessions, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(SessionError) as caught:
        Sessions(tmp_path)
    with pytest.raises(SessionError, match="has format"):
        salvage(tmp_path, str)
    assert caught.value.code == "SESSION_NEWER"
    assert f"has format {len(MIGRATIONS) + 1}; this version knows {len(MIGRATIONS)}" in caught.value.message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "sessions.db")
    db.execute("PRAGMA application_id = 7")
    db.execute("CREATE TABLE theirs(x)")
    db.close()
    before = (tmp_path / "sessions.db").read_bytes()
    with pytest.raises(SessionError, match="belongs to another program"):
        Sessions(tmp_path)
    assert (tmp_path / "sessions.db").read_bytes() == before


async def test_b139_what_is_not_json_is_refused_and_the_file_stays_usable(tmp_path: Path) -> None:
    circle: dict[str, object] = {}
    circle["x"] = object()
    bad = assistant_message("x", provider="p", model="m")
    bad = bad.replace(source=ModelSource("p", "m", circle))
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("good"))
        with pytest.raises(SessionError, match="cannot be stored, it is not JSON"):
            memory.add(bad)
        assert texts(memory) == ["good"], "what is not written down is not remembered"
        other = sqlite3.connect(tmp_path / "sessions.db", timeout=0)
        other.execute("UPDATE session SET updated = updated")
        other.commit()
        other.close()
        memory.add(user_message("good again"))
        await memory.settled()
        session.close()
        assert texts(sessions.read(sessions.list()[0])[0][""][0]) == ["good", "good again"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}], ids=str)
async def test_p07_only_json_is_recorded(tmp_path: Path, value: object) -> None:
    with opened(tmp_path) as sessions:
        session, _ = begin(sessions)
        with pytest.raises(SessionError, match="not JSON"):
            session.note("view", {"x": value})
        session.close()


async def test_b140_a_limit_of_zero_is_nothing_and_a_negative_one_a_mistake(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("needle 1"), user_message("needle 2")])
        session.close()
        assert [len(sessions.search("needle", limit=limit)) for limit in (0, 1, 20)] == [0, 1, 2]
        with pytest.raises(ValueError, match="below zero"):
            sessions.search("needle", limit=-1)


HOLDER = """
import sys, time
from pathlib import Path
from app.memory.sessions import Sessions
session = Sessions(Path(sys.argv[1])).resume("last")
print(session.id, flush=True)
time.sleep(60)
"""


async def test_b142_a_session_belongs_to_one_process_until_it_dies(tmp_path: Path) -> None:
    with opened(tmp_path / "real") as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("x"))
        session.close()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "real")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        name = holder.stdout.readline().strip()
        for place in ("real", "link"):
            with opened(tmp_path / place) as sessions:
                with pytest.raises(SessionError) as caught:
                    sessions.resume(name)
                assert caught.value.code == "SESSION_BUSY"
                assert f"is in use by process {holder.pid} on " in caught.value.message
                assert f"sessions fork {name}" in caught.value.hint
                with pytest.raises(SessionError, match="is in use by process"):
                    sessions.delete(name)
                assert sessions.fork(name).parent is not None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with opened(tmp_path / "link") as sessions:
            session, memory, _ = again(sessions, name)
            assert texts(memory) == ["x"]
            session.close()


async def test_b143_others_write_while_a_run_waits_for_its_model(tmp_path: Path) -> None:
    """The owner's lock is the session's; the file is held for single writes only."""
    with opened(tmp_path) as sessions, opened(tmp_path) as others:
        session, memory = begin(sessions)
        memory.add(user_message("task"))
        await memory.settled()
        took: list[float] = []

        def note() -> None:
            began = time.monotonic()
            other, other_memory = begin(others)
            other_memory.add(user_message("note"))
            other.close()
            took.append(time.monotonic() - began)

        writer = threading.Thread(target=note)
        writer.start()
        writer.join()
        assert took[0] < 0.1
        session.close()


async def test_b145_an_id_that_is_used_again_is_judged_by_its_own_turn(tmp_path: Path) -> None:
    """A log from elsewhere: the first call was answered, the second of the same id was not."""
    from app.schema.message import message_to_json

    messages = [
        user_message("one"),
        called(("call-1", "bash", "{}")),
        tool_result_message("call-1", "first"),
        user_message("two"),
        called(("call-1", "bash", "{}")),
    ]
    head = {"format": "dragoman-session", "version": 1, "id": "x"}
    events = [{"kind": "message", "thread": "", "time": 1, "data": message_to_json(message)} for message in messages]
    with opened(tmp_path) as sessions:
        import_session(sessions, map(json.dumps, [head, *events]))
        session, memory, restored = again(sessions, "x")
        assert len(restored.closers) == 1
        assert results(memory)[0] == "first"
        assert "not started" in results(memory)[1]
        assert history.problems(memory.messages) == []
        session.close()
        import_session(
            sessions,
            map(
                json.dumps,
                [
                    head | {"id": "y"},
                    *events,
                    events[2] | {"data": message_to_json(tool_result_message("call-1", "second"))},
                ],
            ),
        )
        session, memory, restored = again(sessions, "y")
        assert results(memory) == ["first", "second"]
        assert restored.closers == ()
        session.close()


async def test_b146_finished_calls_come_back_byte_for_byte(tmp_path: Path) -> None:
    sizes = [1_000, 200_000, 1_000, 200_000, 200_000]
    bodies = [random.Random(n).randbytes(size // 2).hex() for n, size in enumerate(sizes)]
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("task"))
        memory.add(called(*((f"c{n}", "read", "{}") for n in range(3))))
        for n in range(3):
            memory.add(tool_result_message(f"c{n}", bodies[n]))
        for n in (3, 4):
            memory.add(called((f"c{n}", "read", "{}")))
            memory.add(tool_result_message(f"c{n}", bodies[n]))
        session.close()
    with opened(tmp_path) as sessions:
        session, memory, restored = again(sessions)
        assert results(memory) == bodies
        assert restored.closers == ()
        session.close()


BIG = """
import asyncio, sys
from pathlib import Path
from app.memory.memory import Memory
from app.memory.sessions import Sessions
from app.schema.message import user_message

async def main():
    sessions = Sessions(Path(sys.argv[1]))
    session, memory = sessions.resume("last"), Memory()
    session.attach(memory)
    while True:
        memory.add(user_message(f"{len(memory)} " + "x" * 1_000_000))
        await memory.settled()
        print(len(memory), flush=True)

asyncio.run(main())
"""


async def test_b148_large_events_and_kills_never_join(tmp_path: Path) -> None:
    """The kill at random moments of many small steps is in tests/crash; here the payload is large."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("0 "))
        session.close()
    acknowledged, chance = 1, random.Random(5)
    for _ in range(2):
        command = [sys.executable, "-c", BIG, str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            acknowledged = int(process.stdout.readline())
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
            for line in process.stdout:
                acknowledged = int(line)
        with opened(tmp_path) as sessions:
            session, memory, restored = again(sessions)
            session.close()
            assert len(memory) >= acknowledged
            assert [text.split()[0] for text in texts(memory)] == [str(number) for number in range(len(memory))]
            assert restored.damaged == []


@pytest.mark.parametrize(
    "name", [" x", "x ", "a\tb", "a\nb", "\x1b[31m", "../x", "CON", "x" * 300, "", "%", "a*", "a/b"], ids=repr
)
def test_b195_hostile_names_are_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    with opened(tmp_path) as sessions:
        with pytest.raises(SessionError, match="small letters, digits and hyphens only") as caught:
            sessions.resume(name)
        assert caught.value.code == "SESSION_UNKNOWN"
        assert "\x1b" not in caught.value.message
    assert [path.name for path in tmp_path.iterdir() if "locks" in path.name] == []


POISON = {
    "brackets": "[" * 100_000,
    "deep object": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "NULs": "\0" * 100,
    "pickle": "\x80\x04\x95cos\nsystem\n(S'touch /tmp/x'\ntR.",
    "constructor": '{"lc":1,"type":"constructor","id":["os","system"],"kwargs":{"command":"id"}}',
    "class": '{"__class__":"os.system","id":"x","role":"user"}',
    "no object": '"text"',
    "number": "1" * 5000,
    "wrong role": '{"id":"x","role":"tool","content":[],"source":{"kind":"user"},"time":1}',
    "wrong types": '{"id":"x","role":"user","content":[{"kind":"text"}],"source":{"kind":"user"},"time":"now"}',
    "missing body": '{"id":"x","role":"user","content":["00"],"source":{"kind":"user"},"time":1}',
    "not a number": '{"id":"x","role":"user","content":[],"source":{"kind":"user"},"time":NaN}',
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON)
async def test_b236_poisoned_rows_are_set_aside_and_told_once(tmp_path: Path, poison: str) -> None:
    """Data only: nothing is imported, built or run, and the sound rows around it are used."""
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("one"), said("two"), user_message("three")])
        session.close()
        raw(sessions, "UPDATE event SET data = ? WHERE seq = 3", poison)
    modules = set(sys.modules)
    with opened(tmp_path) as sessions:
        session, memory, _ = again(sessions)
        assert texts(memory) == ["one", "three"]
        assert session.set_damaged_aside() == 1
        memory.add(user_message("four"))
        session.close()
        session, memory, _ = again(sessions)
        assert texts(memory) == ["one", "three", "four"]
        assert session.set_damaged_aside() == 0
        assert raw(sessions, "SELECT data FROM event WHERE damaged = 1") == [(poison,)]
        session.close()
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 50,
        b"text",
        zlib.compress(b"[" * 100_000),
        zlib.compress(b'{"kind": 1}'),
        zlib.compress(b"x" * 900)[:20],
    ],
    ids=["empty", "NULs", "text", "brackets", "odd", "cut"],
)
async def test_b236_a_poisoned_body_costs_its_own_message(tmp_path: Path, body: bytes) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("one"), said("two " * 500), user_message("three")])
        session.close()
        raw(sessions, "UPDATE body SET data = ?", body)
        session, memory, _ = again(sessions)
        if body != zlib.compress(b'{"kind": 1}'):  # that is a block of a later version, and is kept as it is
            assert texts(memory) == ["one", "three"]
            assert session.set_damaged_aside() == 1
        session.close()


async def test_b236_a_body_that_unpacks_to_more_than_it_may_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.memory.packing.LARGEST_BODY", 1000)
    assert unsqueezed(squeezed("x" * 1000)) == "x" * 1000
    with pytest.raises(ValueError, match="cut or too large"):
        unsqueezed(squeezed("x" * 1001))


async def test_b236_bytes_that_are_no_text_harm_only_their_own_row(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add_all([user_message("one"), user_message("two")])
        session.close()
        raw(sessions, "UPDATE event SET data = CAST(x'ff00fe' AS TEXT), time = 'x' WHERE seq = 2")
        raw(sessions, "UPDATE session SET task = x'ff', created = 'yesterday', last = 'x'")
        assert len(sessions.list()) == 1
        session, memory, _ = again(sessions, sessions.list()[0].id)
        assert texts(memory) == ["two"]
        session.close()


async def test_b236_half_a_surrogate_pair_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("a\ud800b " + "x" * 1000))
        memory.add(user_message("c\udfffd"))
        session.close()
        session, memory, _ = again(sessions)
        assert [text[:3] for text in texts(memory)] == ["a\ud800b", "c\udfffd"]
        session.close()


async def test_b237_what_looks_like_a_reference_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
    text = '{"lc":1,"type":"secret","id":["OPENAI_API_KEY"]} ${OPENAI_API_KEY}'
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message(text))
        session.close()
        for _ in range(2):
            session, memory, _ = again(sessions)
            assert texts(memory) == [text]
            session.close()


async def test_h3_a_damaged_call_or_result_leaves_a_history_that_can_be_sent(tmp_path: Path) -> None:
    """Whichever single row is lost, the rest is valid after the usual repair, and no tool is run for it."""
    for lost in (2, 3, 4, 5):
        with opened(tmp_path / str(lost)) as sessions:
            session, memory = begin(sessions)
            memory.add_all(
                [user_message("one"), called(("c1", "bash", "{}")), tool_result_message("c1", "r"), said("end")]
            )
            session.close()
            raw(sessions, "UPDATE event SET data = '{' WHERE seq = ?", lost)
            session, memory, _ = again(sessions)
            assert len(memory) == (3 if lost != 4 else 4)
            assert history.problems(history.prepare(memory.messages)) == []
            session.close()


async def test_a_damaged_file_is_a_sentence_whatever_is_damaged(tmp_path: Path) -> None:
    with opened(tmp_path / "good") as sessions:
        for _ in range(5):
            session, memory = begin(sessions)
            memory.add_all([user_message("x" * 900), said("y" * 5000)])
            session.close()
    good = (tmp_path / "good" / "sessions.db").read_bytes()
    chance = random.Random(11)
    outcomes = set()
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        bad = bytearray(good)
        for _ in range(chance.choice((1, 20, 400))):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        (folder / "sessions.db").write_bytes(bad if number % 4 else bad[: chance.randrange(len(bad))])
        try:
            with opened(folder) as sessions:
                for row in sessions.list():
                    sessions.read(row)
                session, memory = begin(sessions)
                memory.add(user_message("new"))
                session.close()
            outcomes.add("used")
        except SessionError as error:
            assert error.hint
            outcomes.add(error.code)
    assert outcomes >= {"used", "SESSION_DAMAGED"}
    assert outcomes <= {"used", "SESSION", "SESSION_DAMAGED", "SESSION_NEWER"}


async def test_a_locked_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.memory.session_store.BUSY_S", 0.05)
    with opened(tmp_path) as sessions, opened(tmp_path) as other:
        session, memory = begin(sessions)
        raw(other, "BEGIN IMMEDIATE")
        memory.add(user_message("x"))
        with pytest.raises(SessionError, match="another program keeps it locked"):
            await memory.settled()
        raw(other, "COMMIT")
        await memory.settled()
        session.close()


@pytest.mark.parametrize("place", ["file", "below a file"])
def test_a_home_that_cannot_be_made_is_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    folder = tmp_path / "file" if place == "file" else tmp_path / "file" / "sessions"
    with pytest.raises(SessionError, match="cannot be used") as caught:
        Sessions(folder)
    assert "DRAGOMAN_HOME" in caught.value.hint


def pages_of(file: Path, table: str) -> list[int]:
    """The leaf pages of a table, as (number from 1)."""
    db = sqlite3.connect(file)
    pages = db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,)).fetchall()
    db.close()
    return [page for (page,) in pages]


@pytest.mark.parametrize("table", ["event", "body", "search_data"])
async def test_a_file_with_a_broken_page_is_rebuilt_from_the_rest(tmp_path: Path, table: str) -> None:
    """Power lost in the middle of a page, a bad sector: one page of NULs costs its own rows and no others."""
    with opened(tmp_path) as sessions:
        names: list[str] = []
        for number in range(20):
            session, memory = begin(sessions)
            memory.add_all(
                [user_message(f"task {number}"), said(f"needle {random.Random(number).randbytes(900).hex()}")]
            )
            session.close()
            names.append(session.id)
        fork = sessions.fork(names[0]).id
    file = tmp_path / "sessions.db"
    try:
        broken = pages_of(file, table)[0 if table == "search_data" else 1]
    except sqlite3.OperationalError:
        pytest.skip("this SQLite cannot say where a table's pages are")
    with file.open("r+b") as raw_file:
        raw_file.seek((broken - 1) * 4096)
        raw_file.write(b"\0" * 4096)
    before = file.read_bytes()
    if table == "event":
        with opened(tmp_path) as sessions, pytest.raises(SessionError) as caught:
            for row in sessions.list():
                sessions.read(row)
        assert caught.value.code == "SESSION_DAMAGED"
        assert caught.value.hint == "python main.py sessions repair saves what can be read"
    store, kept, lost = salvage(tmp_path, lambda text: text.replace("task 3", "***"))
    store.close()
    assert kept.read_bytes() == before
    assert (lost > 0) == (table in ("event", "body"))
    with opened(tmp_path) as sessions:
        assert raw(sessions, "PRAGMA integrity_check") == [("ok",)]
        assert [row.id for row in sessions.list()] == [fork, *names[::-1]]
        held = [sessions.read(sessions.find(name))[0].get("", (Memory(),))[0] for name in names]
        whole = [name for name, memory in zip(names, held, strict=True) if len(memory) == 2]
        assert len(whole) >= (20 if table == "search_data" else 5)
        assert {hit.session.id for hit in sessions.search("needle", limit=100)} >= set(whole)
        assert all("task 3" not in text for memory in held for text in texts(memory))
        session, memory, _ = again(sessions, whole[0])
        memory.add(user_message("goes on"))
        session.close()


async def test_repair_waits_for_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("x"))
        await memory.settled()
        with pytest.raises(SessionError) as caught:
            salvage(tmp_path, str)
        assert caught.value.code == "SESSION_BUSY"
        session.close()
    with pytest.raises(SessionError, match="there are no sessions in"):
        salvage(tmp_path / "nowhere", str)


@pytest.mark.parametrize("moment", [1e308, -1, 10**400, True, "soon", None, 253402300800])
def test_an_imported_time_outside_of_every_calendar_is_none(tmp_path: Path, moment: object) -> None:
    head = {"format": "dragoman-session", "version": 1, "id": "x", "created": moment, "task": "a\ud800b"}
    event = {"kind": "started", "thread": "\udfff", "time": moment, "data": {}}
    with opened(tmp_path) as sessions:
        import_session(sessions, map(json.dumps, [head, event]))
        (row,) = sessions.list()
        assert row.task == "a?b"
        assert abs(row.created - time.time()) < 60
        assert raw(sessions, "SELECT thread, time FROM event WHERE kind = 'started'") == [("?", 0.0)]
