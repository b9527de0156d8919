"""Let a planner make a plan and an agent do its steps; each may have a model of its own."""

import asyncio
import tempfile

from app.build import build_app, build_flow
from app.config.settings import Config
from app.llm.adapters.scripted import ScriptedAdapter, call, say
from app.schema.event import EventRecord, PlanChanged
from app.schema.run import RunContext

PLANNER = [
    call("planning", {"command": "create", "title": "Count words", "steps": ["Write the text", "Count its words"]}),
    say("The text is written and has two words."),
]
WORKER = [
    call("str_replace_editor", {"command": "create", "path": "text.txt", "file_text": "hello world\n"}),
    say("text.txt is written."),
    call("bash", {"command": "wc -w text.txt"}),
    say("It has 2 words."),
]


def watch(record: EventRecord) -> None:
    if isinstance(record.event, PlanChanged):
        print(record.event.plan.as_text(), end="\n\n")


async def main() -> None:
    # The configurations [llm.planner] and [llm.manus] are found by the agents' names.
    adapters = {"planner": ScriptedAdapter(PLANNER), "manus": ScriptedAdapter(WORKER), "default": ScriptedAdapter([])}
    with tempfile.TemporaryDirectory() as folder:
        app = build_app(Config(), workspace=folder, adapters=adapters)
        result = await build_flow(app).run("Write hello world to text.txt and count its words", RunContext(sink=watch))
        print(result.answer)
        await app.close()


asyncio.run(main())
