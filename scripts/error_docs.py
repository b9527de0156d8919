"""Writes `docs/errors.md` from the list of codes: `python -m scripts.error_docs` in the repository's folder."""

from __future__ import annotations

from pathlib import Path

from app.schema.errors import CODES

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

HEAD = """\
# Codes of errors and notices

Every error, every failed result and every notice carries one of these codes. Route on the code; texts are for people
and may change. *Retried* tells whether a model call that failed this way is made again by itself.

Besides these, `HTTP_<status>` names a status without a code of its own, and an upper-cased finish reason names a
provider's private way of ending a reply. Neither is retried.

This page is written by `python -m scripts.error_docs`.

| code | meaning | retried |
|---|---|---|
"""


def errors_page() -> str:
    rows = [f"| `{code}` | {info.meaning} | {'yes' if info.retried else 'no'} |\n" for code, info in CODES.items()]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(errors_page(), encoding="utf-8")
