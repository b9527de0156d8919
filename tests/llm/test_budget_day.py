"""A day's spending: it outlives the process, is shared by processes side by side, and never stops a run by itself."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from app.config.settings import BudgetSettings, LimitSettings
from app.llm.spending import FILE_NAME, DayLedger, close_ledgers, process_ledger, run_ledger
from app.schema.errors import BudgetExceeded, TokenLimitExceeded
from app.schema.usage import Amount, Ledger, Limits, Usage, Worst

DAY = BudgetSettings(day=LimitSettings(max_tokens=1_000, max_cost=1.0, max_requests=20))

SPENDER = """
import sys
from pathlib import Path
from app.config.settings import BudgetSettings, LimitSettings
from app.llm.spending import process_ledger, run_ledger
from app.schema.errors import BudgetExceeded
from app.schema.usage import Usage, Worst
settings = BudgetSettings(day=LimitSettings(max_tokens=1_000))
ledger = run_ledger(settings, process_ledger(settings, Path(sys.argv[1])), one_agent=True)
sent = 0
while True:
    try:
        hold = ledger.hold("main", Worst(4, 6, 0.0))
    except BudgetExceeded:
        break
    hold.settle(Usage(4, 6), 0.0)
    sent += 1
print(sent)
"""


def new_run(home: Path, settings: BudgetSettings = DAY) -> Ledger:
    """The ledger of a run in what could be a new process."""
    return run_ledger(settings, process_ledger(settings, home), one_agent=True)


def day_of(ledger: Ledger) -> DayLedger:
    day = list(ledger.chain())[-1]
    assert isinstance(day, DayLedger)
    return day


def test_spending_of_an_earlier_process_counts(tmp_path: Path) -> None:
    first = new_run(tmp_path)
    first.hold("main", Worst(300, 300, 0.5)).settle(Usage(300, 100), 0.25)
    close_ledgers(first)
    second = new_run(tmp_path)
    assert day_of(second).spent == Amount(400, 0.25, 1)
    with pytest.raises(TokenLimitExceeded) as caught:
        second.hold("main", Worst(600, 1, 0.0))
    assert caught.value.message == (
        "today's runs may spend 1000 tokens; 400 are spent and the next request needs up to 601"
    )
    assert caught.value.hint == "raise [budget.day] max_tokens or go on tomorrow"
    with pytest.raises(BudgetExceeded, match=r"may cost \$1\.0000; \$0\.2500 is spent"):
        second.hold("main", Worst(1, 1, 0.76))
    assert day_of(second).spent == Amount(400, 0.25, 1)


def test_another_process_sees_what_is_held(tmp_path: Path) -> None:
    one, other = new_run(tmp_path), new_run(tmp_path)
    hold = one.hold("main", Worst(900))
    with pytest.raises(TokenLimitExceeded):
        other.hold("main", Worst(101))
    hold.release()
    other.hold("main", Worst(101)).release()
    assert (day_of(one).spent, day_of(one).held, day_of(other).spent) == (Amount(0, 0, 2), Amount(), Amount(0, 0, 2))


def test_processes_side_by_side_never_overshoot(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", SPENDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    sent = [int(each.communicate(timeout=60)[0]) for each in running]
    assert sum(sent) == 100
    assert day_of(new_run(tmp_path)).spent == Amount(1_000, 0.0, 100)


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    code = SPENDER.split("sent = 0")[0] + "ledger.hold('main', Worst(900, 0, 0.0)); print(1, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "1\n"
    ledger = new_run(tmp_path)
    with pytest.raises(TokenLimitExceeded):
        ledger.hold("main", Worst(101))
    child.kill()
    child.communicate()
    ledger.hold("main", Worst(999)).release()


def test_a_new_day_starts_at_nothing(tmp_path: Path) -> None:
    today = ["2026-12-01"]
    ledger = DayLedger(tmp_path / FILE_NAME, Limits(1_000), today=lambda: today[0])
    ledger.hold("main", Worst(900)).settle(Usage(900), None)
    with pytest.raises(TokenLimitExceeded):
        ledger.hold("main", Worst(101))
    today[0] = "2026-12-02"
    ledger.hold("main", Worst(1_000)).settle(Usage(10), None)
    assert ledger.spent == Amount(10, 0.0, 1)


def test_without_a_limit_of_the_day_no_file_is_written(tmp_path: Path) -> None:
    settings = BudgetSettings(max_tokens=10, process=LimitSettings(max_tokens=10))
    new_run(tmp_path, settings).hold("main", Worst(1)).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rubbish", [b"not a database at all, but long enough to be one" * 40, b"\0" * 4096])
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, rubbish: bytes) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(rubbish)
    ledger = new_run(tmp_path)
    ledger.hold("main", Worst(900)).settle(Usage(900), 0.1)
    day = day_of(ledger)
    assert "it was set aside as spending.db.damaged-" in day.trouble
    assert [path.read_bytes() for path in tmp_path.glob("*.damaged-*")] == [rubbish]
    with pytest.raises(TokenLimitExceeded):
        ledger.hold("main", Worst(101))
    assert day.spent.tokens == 900


def test_damage_in_the_middle_of_a_run_keeps_what_this_process_spent(tmp_path: Path) -> None:
    ledger = new_run(tmp_path)
    ledger.hold("main", Worst(500)).settle(Usage(500), 0.1)
    close_ledgers(ledger)
    (tmp_path / FILE_NAME).write_bytes(b"rubbish" * 1_000)
    with pytest.raises(TokenLimitExceeded, match="500 are spent"):
        ledger.hold("main", Worst(501))
    ledger.hold("main", Worst(500)).release()


def test_a_folder_that_cannot_be_written_leaves_the_count_to_the_process(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("no folder")
    ledger = new_run(home)
    ledger.hold("main", Worst(900)).settle(Usage(900), 0.1)
    assert "the limits of [budget.day] may be exceeded" in day_of(ledger).trouble
    with pytest.raises(TokenLimitExceeded, match="today's runs may spend 1000 tokens; 900 are spent"):
        ledger.hold("main", Worst(101))


def test_a_file_that_somebody_else_keeps_locked_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.llm.spending.BUSY_S", 0.01)
    ledger = new_run(tmp_path)
    ledger.hold("main", Worst(100)).release()
    blocker = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    ledger.hold("main", Worst(100)).settle(Usage(100), None)
    assert "locked" in day_of(ledger).trouble
    blocker.close()
