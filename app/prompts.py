"""Finds and renders prompt templates: `prompts/<agent>/<name>.j2`, Jinja2, an undefined name is an error."""

from __future__ import annotations

from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from app.paths import PROJECT_ROOT
from app.schema.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Environment


def prompt_folder() -> Path:
    """The project's `prompts/`; in an installed package its copy inside the package."""
    folder = PROJECT_ROOT / "prompts"
    return folder if folder.is_dir() else Path(str(resources.files("app") / "_prompts"))


class Prompts:
    """Templates of one folder. A `persona` folder inside it may shadow any file."""

    def __init__(self, folder: Path | None = None, *, persona: str | None = None) -> None:
        self._folder = folder or prompt_folder()
        self._persona = persona

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import FileSystemLoader, StrictUndefined
        from jinja2.sandbox import SandboxedEnvironment

        places = [self._folder / self._persona, self._folder] if self._persona else [self._folder]
        # The output is a prompt, not HTML, so nothing is escaped; sandboxed, because users may bring templates.
        loader = FileSystemLoader(places)
        return SandboxedEnvironment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

    def render(self, name: str, **values: object) -> str:
        """Render `<name>.j2`. `ConfigError` when the template is missing, broken or uses an undefined name."""
        from jinja2 import TemplateError

        try:
            return self._environment.get_template(f"{name}.j2").render(**values).strip()
        except TemplateError as error:
            message = f"the prompt {name}.j2 cannot be rendered: {error}"
            raise ConfigError(message, hint=f"look into {self._folder}") from error
