"""Arbitrary bytes in a log that is written, looked at and rotated in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from vllm_startup._log.splitter import LineSplitter
from vllm_startup._readings import LogLines
from vllm_startup.probes._log import FileFollower

Act = bytes | Literal["look", "rotate"]

acts: st.SearchStrategy[list[Act]] = st.lists(
    st.binary(min_size=1, max_size=60)
    | st.sampled_from([b"\n", b"\r", b"a\n", b"\0", "█\n".encode(), b"\xe2\x96", b"x" * 300])
    | st.sampled_from(["look", "look", "rotate"]),
    max_size=40,
)


class Follower:
    """A follower of a file in a folder, and all that it told."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "vllm.log"
        self.log.touch()
        self.lines: list[str] = []
        self._rotated = 0
        self._follower = FileFollower(self.log, slice_bytes=64)

    def look(self) -> None:
        """Look until nothing is left."""
        for _ in range(3):  # a rotation is found by a look of its own
            self._follower.step()
            while self._follower.behind:
                for reading in self._follower.take():
                    self.lines += reading.lines if isinstance(reading, LogLines) else ()
                self._follower.step()

    def write(self, data: bytes) -> None:
        with self.log.open("ab") as log:
            log.write(data)

    def rotate(self) -> None:
        """Put a new file in the log's place."""
        self.look()
        self._rotated += 1
        self.log.rename(self.log.with_suffix(f".{self._rotated}"))
        self.log.touch()

    def close(self) -> None:
        self._follower.close()


def in_one_piece(files: list[bytes]) -> list[str]:
    """The lines of files, one after the other; the last one's unfinished line waits."""
    lines: list[str] = []
    for number, data in enumerate(files):
        splitter = LineSplitter()
        lines += splitter.feed(data)
        if number < len(files) - 1:
            lines += splitter.finish()
    return lines


@given(acts)
def test_a_followed_log_gives_the_same_lines_as_its_files_in_one_piece(doings: list[Act]) -> None:
    files = [b""]
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(Path(folder))
        for act in doings:
            if act == "look":
                follower.look()
            elif act == "rotate":
                if files[-1]:  # an empty file is not followed up
                    follower.rotate()
                    files.append(b"")
            else:
                follower.write(act)
                files[-1] += act
        follower.look()
        follower.close()
    assert follower.lines == in_one_piece([data for data in files if data])
