"""The stuck guard alone, then at work: when it hints, refuses and ends."""

from __future__ import annotations

import itertools

import pytest

from app.agents.stuck import COMPARED_CHARS, HINT_AT, REFUSE_AT, STUCK_AT, StuckGuard, signature
from app.agents.toolcall import GOING_IN_CIRCLES
from app.llm.adapters.scripted import ScriptedAdapter, Turn, call, say
from app.schema.message import PluginSource, ToolCallBlock
from tests.agents.rig import Mark, Note, Rig, assert_valid, results


def one(name: str, arguments: str = "{}") -> list[ToolCallBlock]:
    return [ToolCallBlock("id", name, arguments)]


def verdicts(names: str, *, result: str = "same") -> list[str]:
    guard = StuckGuard()
    return [guard.record(one(name), [result]) for name in names]


def test_constants_mean_what_they_say() -> None:
    assert (HINT_AT, REFUSE_AT, STUCK_AT) == (3, 5, {1: 7, 2: 5, 3: 5})


def test_the_same_call_is_hinted_at_three_and_stuck_at_seven() -> None:
    assert verdicts("aaaaaaa") == ["fine", "fine", "hint", "hint", "hint", "hint", "stuck"]


def test_the_same_call_is_refused_from_the_fifth_on() -> None:
    guard = StuckGuard()
    refused: list[bool] = []
    for _ in range(5):
        refused.append(guard.refuses(one("a")))
        guard.record(one("a"), ["same"])
    assert refused == [False, False, False, False, True]
    assert not guard.refuses(one("b"))


def test_a_refusal_counts_as_the_same_step() -> None:
    guard = StuckGuard()
    for _ in range(4):
        guard.record(one("a"), ["same"])
    assert [guard.record_refusal() for _ in range(3)] == ["hint", "hint", "stuck"]
    assert guard.repeats == 7


@pytest.mark.parametrize("cycle", ["ab", "abc"])
def test_a_cycle_is_hinted_after_three_rounds_and_stuck_after_five(cycle: str) -> None:
    seen = verdicts(cycle * 5)
    first_hint, first_stuck = seen.index("hint") + 1, seen.index("stuck") + 1
    assert (first_hint, first_stuck) == (3 * len(cycle), 5 * len(cycle))


def test_a_cycle_of_four_is_not_judged() -> None:
    assert set(verdicts("abcd" * 6)) == {"fine"}


def test_changed_results_are_progress() -> None:
    guard = StuckGuard()
    assert {guard.record(one("a"), [str(number)]) for number in range(20)} == {"fine"}


def test_a_changed_result_resets_the_count() -> None:
    guard = StuckGuard()
    seen = [guard.record(one("a"), [result]) for result in ("x", "x", "x", "y", "y", "y")]
    assert seen == ["fine", "fine", "hint", "fine", "fine", "hint"]


def test_q02_another_call_resets_the_count() -> None:
    assert verdicts("aabaa") == ["fine"] * 5


def test_q01_arguments_are_compared_by_meaning() -> None:
    same = [one("a", '{"x": 1, "y": 2}'), one("a", '{"y":2,"x":1}')]
    assert signature(same[0]) == signature(same[1])
    assert signature(one("a", "")) == signature(one("a", "{}"))
    assert signature(one("a", "{bad ")) == "a({bad)"
    assert signature(one("a", "{}")) != signature(one("b", "{}"))


def test_what_stands_between_head_and_tail_of_a_long_result_does_not_count() -> None:
    guard = StuckGuard()
    for number in range(2):
        guard.record(one("a"), ["h" * COMPARED_CHARS + f"saved as {number}" + "t" * COMPARED_CHARS])
    assert guard.repeats == 2


def hints(model: ScriptedAdapter) -> list[bool]:
    return [request.messages[-1].source == PluginSource("hint") for request in model.requests]


async def test_q01_m8_the_same_call_eight_times(rig: Rig) -> None:
    mark = Mark()
    agent, model = rig.scripted([call("mark", {"text": "a"})] * 8, mark)
    result = await agent.run("go")
    assert (result.stop_reason, result.exit_code, result.steps, result.requests) == ("stuck", 3, 7, 7)
    assert result.error is not None
    assert result.error.code == "STUCK"
    assert 'mark({"text": "a"})' in result.error.message
    assert hints(model) == [False] * 3 + [True] * 4
    assert model.requests[3].messages[-1].text == GOING_IN_CIRCLES.format(what='mark({"text": "a"})')
    assert mark.log == ["+a", "-a"] * 4
    assert results(agent)[3:] == [
        "a",
        *(
            f"mark: not run: this exact call was made {count} times in a row with the same result. Do something else."
            for count in (4, 5, 6)
        ),
    ]
    assert all("several times" not in message.text for message in agent.memory.messages)
    assert_valid(agent.memory.messages)


async def test_m9_two_calls_in_strict_alternation(rig: Rig) -> None:
    turns = [call("mark", {"text": text}) for text in "ab" * 6]
    agent, model = rig.scripted(turns, Mark())
    result = await agent.run("go")
    assert (result.stop_reason, len(model.requests)) == ("stuck", 10)
    assert hints(model).index(True) == 6


async def test_changed_results_let_the_same_call_go_on(rig: Rig) -> None:
    count = itertools.count()

    class Counter(Mark):
        name = "counter"

        async def run(self, args, ctx):  # pyright: ignore
            return str(next(count))

    agent, _ = rig.scripted([call("counter")] * 12 + [say("ok")], Counter())
    assert (await agent.run("go")).answer == "ok"


async def test_a_refused_call_works_again_after_another_one(rig: Rig) -> None:
    turns = [call("mark", {"text": "a"})] * 5 + [call("mark", {"text": "b"}), call("mark", {"text": "a"}), say("ok")]
    mark = Mark()
    agent, _ = rig.scripted(turns, mark)
    assert (await agent.run("go")).answer == "ok"
    assert mark.log.count("+a") == 5


async def test_q02_the_next_run_starts_with_a_clean_count(rig: Rig) -> None:
    turns = [call("mark", {"text": "a"})] * 3 + [say("one")] + [call("mark", {"text": "a"})] * 2 + [say("two")]
    agent, model = rig.scripted(turns, Mark())
    await agent.run("go")
    await agent.run("again")
    assert hints(model) == [False, False, False, True, False, False, False]


async def test_a_put_off_terminate_beside_changing_failures_is_progress(rig: Rig) -> None:
    end = ("terminate", {"status": "success", "answer": "ok"})
    turns = [Turn(calls=(("bash", {"command": "date +%N; exit 1"}), end)) for _ in range(8)]
    agent, model = rig.scripted([*turns, Turn(calls=(end,))], Note())
    assert (await agent.run("go")).answer == "ok"
    model.assert_finished()
