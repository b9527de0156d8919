"""Path confinement against random trees, and texts that come back byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from app.schema.errors import DragomanError
from app.tools.files import WorkspaceFiles, decode_text

names = st.sampled_from(["a", "b", "out", "up", ".", "..", "ws", "~", "secret", "", " ", "/"])


@given(st.lists(names, min_size=1, max_size=6), st.booleans())
def test_no_path_leads_outside(parts: list[str], absolute: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        root = base / "ws"
        (root / "a/b").mkdir(parents=True)
        (root / "out").symlink_to(base)
        (root / "a/up").symlink_to("../..")
        (base / "secret").write_text("untouched")
        files = WorkspaceFiles(root)
        text = ("/" if absolute else "") + "/".join(parts)
        try:
            path = files.resolve(text)
            files.write(path, b"x")
        except (DragomanError, OSError):
            pass
        else:
            assert root in path.parents
        assert sorted(entry.name for entry in base.iterdir()) == ["secret", "ws"]
        assert (base / "secret").read_text() == "untouched"


@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode("gb18030", "ignore")))
def test_a_decoded_text_encodes_to_the_same_bytes(data: bytes) -> None:
    file = decode_text(data)
    if file is not None:
        assert file.encode(file.text) == data
