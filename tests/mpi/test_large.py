"""Counts past 2^31, with the memory that they take."""

import os

import pytest

NEEDED_BYTES = 10 << 30


@pytest.mark.slow
def test_a_message_of_more_than_2_to_the_31_bytes(mpich):
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of free memory, and there are {free >> 30}")
    done = mpich(2, "large", timeout=500)
    assert done.stdout.count("bytes are right") == 2
