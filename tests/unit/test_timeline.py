"""Timelines: names of files, and files of processes that were killed."""

import json
from pathlib import Path

import pytest

from collectives import timeline


@pytest.mark.parametrize(
    "path, size, found",
    [
        ("a/trace.json", 1, "a/trace.json"),
        ("a/trace.json", 4, "a/trace.3.json"),
        ("trace", 4, "trace.3"),
        ("{rank}/t.{rank}.json", 4, "3/t.3.json"),
    ],
)
def test_ranks_have_files_of_their_own(path, size, found):
    assert timeline.file_name(path, 3, size) == Path(found)


def test_what_a_killed_process_has_written_is_read(tmp_path):
    events = [{"name": f"call {i}", "args": {}} for i in range(3)]
    whole, torn = tmp_path / "0.json", tmp_path / "1.json"
    whole.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    torn.write_text("[\n" + ",\n".join(map(json.dumps, events))[:-1])
    assert timeline.merged([str(whole), str(torn)]) == [*events, *events[:2]]
