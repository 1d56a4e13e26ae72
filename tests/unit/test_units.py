"""Sizes, times and shapes as people write them."""

import pytest

from collectives.selection import parse_overrides
from collectives.sizes import parse_size
from tuner import units
from tuner.space import candidate


def test_sizes_are_read_as_people_write_them():
    assert units.parse_sizes("8:64") == [8, 16, 32, 64]
    assert units.parse_sizes("1K:16K:4,0,1MiB") == [0, 1024, 4096, 16384, 1 << 20]
    assert units.parse_sizes("100:1000") == [100, 200, 400, 800, 1000]
    assert [parse_size(text) for text in ("64k", "1.5K", "2GB", "3 MiB")] == [65536, 1536, 2 << 30, 3 << 20]
    assert [units.parse_duration(text) for text in ("60", "90s", "2m", "1.5h", "500ms")] == [60, 90, 120, 5400, 0.5]
    assert units.parse_counts("1-3,8") == [1, 2, 3, 8]
    assert units.parse_shapes("2x2,3+1") == [[[0, 1], [2, 3]], [[0, 1, 2], [3]]]
    assert parse_overrides("allreduce=ring:segment_bytes=64KiB,slots=2") == {
        "allreduce": ("ring", {"segment_bytes": 65536, "slots": 2})
    }
    for text in ("", "8:16:1", "8:16:x", "0:8", "1.0001K", "9T", "1:1T:2,2:1T:3,3:1T:2,5:1T:2,7:1T:2,11:1T:2"):
        with pytest.raises(ValueError, match=r"write|at most|whole factor|starts above"):
            units.parse_sizes(text)


def test_sizes_and_times_are_short_and_exact():
    assert [units.size(n) for n in (0, 8, 1536, 65536, 1 << 20, None)] == [
        "0 B",
        "8 B",
        "1536 B",
        "64 KiB",
        "1 MiB",
        "inf",
    ]
    assert [units.time(us) for us in (0.92, 14.123, 265.4, 2650, 3.2e6, None)] == [
        "0.92 us", "14.1 us", "265 us", "2.65 ms", "3.2 s", "-"
    ]  # fmt: skip
    assert str(candidate("ring", {"slots": 2, "segment_bytes": 64})) == "ring:segment_bytes=64,slots=2"
