"""Run the agent Manus on a task and watch its events. The script plays the model; the tools are real."""

import asyncio
import tempfile
from pathlib import Path

from app.build import build_agent, build_app
from app.config.settings import Config
from app.llm.adapters.scripted import ScriptedAdapter, call, say
from app.schema.event import EventRecord, ToolFinished
from app.schema.run import RunContext

SCRIPT = [
    call(
        "str_replace_editor",
        {"command": "create", "path": "haiku.txt", "file_text": "Old pond\nA frog leaps in\nPlop\n"},
    ),
    call("bash", {"command": "wc -l haiku.txt"}),
    say("haiku.txt has three lines."),
]


def watch(record: EventRecord) -> None:
    if isinstance(record.event, ToolFinished):
        print(f"{record.event.name}: {record.event.content}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = build_app(Config(), workspace=folder, adapters={"default": ScriptedAdapter(SCRIPT)})
        result = await build_agent(app, "manus").run("Write a haiku to haiku.txt", RunContext(sink=watch))
        print(result.stop_reason, "-", result.answer)
        assert (Path(folder) / "haiku.txt").exists()
        await app.close()


asyncio.run(main())
