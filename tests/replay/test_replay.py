"""A refactoring leaves what algorithms emit as it was."""

import json

from tests.replay.schedules import FILE, hashes


def test_every_schedule_is_what_it_was():
    """Where one is meant to change: python -m tests.replay.schedules, and say so in the commit."""
    was, now = json.loads(FILE.read_text(encoding="utf-8")), hashes()
    assert now.keys() == was.keys()
    assert {name: them for name, them in now.items() if them != was[name]} == {}
