"""A compacted conversation in a session: it comes back as the model saw it, and the log behind it is whole."""

from __future__ import annotations

from pathlib import Path

from app.llm import history
from app.memory.compaction import Compactor
from app.memory.memory import Memory, is_summary
from app.memory.summary import Asked
from app.schema.message import TextBlock, ToolCallBlock, assistant_message, user_message
from app.schema.run import RunContext
from tests.agents.rig import Rig
from tests.memory.keeping import again, begin, opened
from tests.memory.test_compaction import exchange, summing_up, words


async def compact(rig: Rig, memory: Memory, ctx: RunContext) -> None:
    llm, _ = rig.scripted_llm(summing_up("the s3cr3t-key was used"), context_window=3_000)
    assert await Compactor(llm, workspace=rig.workspace).before_request(memory, Asked(), ctx) is not None


async def test_k08_a_resumed_session_shows_what_was_shown_before(tmp_path: Path, ctx: RunContext) -> None:
    rig = Rig(tmp_path)
    with opened(tmp_path / "home") as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("the task"))
        for number in range(30):
            memory.add_all(exchange(number, words(60, number)))
        await compact(rig, memory, ctx)
        memory.add_all(exchange(99))
        view = memory.view()
        await memory.settled()
        session.close()
        _, back, restored = again(sessions)
        assert restored.damaged == []
        assert [message.id for message in back.view()] == [message.id for message in view]
        assert back.messages == memory.messages
        [summary] = [message for message in back.view() if is_summary(message)]
        assert "the *** was used" in summary.text
        assert history.problems(back.view()) == []
    await rig.close()


async def test_a_call_that_was_cut_off_after_a_compaction_is_closed(tmp_path: Path, ctx: RunContext) -> None:
    rig = Rig(tmp_path)
    with opened(tmp_path / "home") as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("the task"))
        for number in range(30):
            memory.add_all(exchange(number, words(60, number)))
        await compact(rig, memory, ctx)
        call = ToolCallBlock("open", "bash", "{}")
        memory.add(assistant_message([TextBlock("now"), call], provider="p", model="m"))
        await memory.settled()
        session.close()
        _, back, _ = again(sessions)
        assert back.open_calls == ()
        assert history.problems(back.view()) == []
        assert len(back.view()) < 30
        # What comes after the resume is shown behind it.
        back.add(user_message("go on"))
        assert back.view()[-1].text == "go on"
    await rig.close()


async def test_a_fork_before_the_compaction_has_the_whole_view(tmp_path: Path, ctx: RunContext) -> None:
    rig = Rig(tmp_path)
    with opened(tmp_path / "home") as sessions:
        session, memory = begin(sessions)
        memory.add(user_message("the task"))
        for number in range(30):
            memory.add_all(exchange(number, words(60, number)))
        await memory.settled()
        before = sessions.store.last_seq(sessions.find(session.id).number)
        await compact(rig, memory, ctx)
        await memory.settled()
        fork = sessions.fork(session.id, at=before)
        session.close()
        _, back, _ = again(sessions, fork.id)
        assert len(back.view()) == 61
        _, back, _ = again(sessions, session.id)
        assert len(back.view()) < 61
    await rig.close()
