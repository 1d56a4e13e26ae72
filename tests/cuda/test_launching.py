"""What the host decides without a driver: paths, parameters, grids, arguments, parts, and who opens whose memory."""

from __future__ import annotations

import pytest
import torch

from collectives.buffers import View
from collectives.cuda import choice, launcher
from collectives.cuda import layout as at
from collectives.cuda.tables import part_counts, parts_of
from collectives.cuda.window import Shape
from collectives.errors import UnsupportedError
from tuner.gpu import arrays_of

BOTH = (choice.IPC, choice.STAGED)


def request(collective: str, count: int = 1000, out: bool = False) -> launcher.Request:
    x = View(1 << 20, count, "float32", 4, None)
    return launcher.Request(collective, "sum", 1, count, x, View(1 << 24, count, "float32", 4, None) if out else x)


@pytest.mark.parametrize(
    "collective,nbytes,paths,algorithm",
    [
        ("allreduce", 1 << 10, BOTH, "one_shot"), ("allreduce", 1 << 24, BOTH, "two_shot"),
        ("reduce_scatter", 8, BOTH, "direct"), ("broadcast", 8, (choice.STAGED,), "staged"),
    ],
)  # fmt: skip
def test_rule_of_thumb(collective, nbytes, paths, algorithm):
    chosen = choice.choose(collective, nbytes, 4, paths, None, {})
    assert chosen.algorithm == algorithm
    assert chosen.path == (choice.IPC if choice.IPC in paths else choice.STAGED)
    assert algorithm in chosen.reason


def test_what_cannot_be_chosen():
    with pytest.raises(UnsupportedError, match="needs cuda-ipc; these ranks have staged"):
        choice.choose("allreduce", 8, 2, (choice.STAGED,), "ring", {})
    with pytest.raises(ValueError, match="has no parameter 'lanes'; it has blocks, threads, chunk_bytes"):
        choice.choose("allreduce", 8, 2, BOTH, "one_shot", {"lanes": 2})
    for name, value, words in (
        ("threads", 48, "multiple of 32"),
        ("blocks", 65, "at most 64"),
        ("chunk_bytes", 9, "of 64"),
    ):
        with pytest.raises(ValueError, match=words):
            choice.choose("allreduce", 8, 2, BOTH, "two_shot", {name: value})
    with pytest.raises(ValueError, match="no algorithm called 'rnig'"):
        choice.choose("allreduce", 8, 2, BOTH, "rnig", {})


def test_every_candidate_can_be_chosen():
    """What the tuner may try, for all collectives and sizes."""
    for collective in launcher.EXCHANGES:
        for nbytes in (4, 1 << 14, 1 << 20, 1 << 26):
            found = list(choice.candidates(collective, nbytes, 4, BOTH))
            assert {name for name, _ in found} >= {*choice.KERNELS[collective], choice.STAGED}
            for name, params in found:
                assert dict(choice.choose(collective, nbytes, 4, BOTH, name, params).params).items() >= params.items()


def test_grids_are_resident_and_alike():
    assert [launcher.grid(n, 132, None) for n in (1, 16 << 10, 1 << 18, 1 << 30)] == [1, 1, 16, at.MAX_BLOCKS]
    assert launcher.grid(1 << 30, 12, 64) == 12
    assert launcher.grid(1 << 30, 132, 4) == 4


def test_arguments():
    shape = Shape()
    chosen = choice.choose("allreduce", 4000, 4, BOTH, "two_shot", {"chunk_bytes": 1 << 20})
    call = launcher.call(request("allreduce"), chosen, shape, (3, 256))
    assert (call.piece, call.unit, call.gives) == (shape.slot_bytes, 4, 1)
    assert (call.owner, call.taker) == (at.EVERYONE, at.EVERYONE)
    assert (call.region, call.offset) == (3, 256)
    direct = choice.choose("reduce", 4000, 4, BOTH, None, {})
    call = launcher.call(request("reduce", out=True), direct, shape, (0, 0))
    assert (call.owner, call.taker, call.input, call.output) == (1, at.NOBODY, 1 << 20, 1 << 24)
    assert launcher.call(request("reduce_scatter", out=True), direct, shape, (0, 0)).packed == at.OUTPUT_CHUNK


def test_symmetric_memory_of_an_allreduce_serves_in_place_only():
    """Out of place the others would write a result where its input is still read."""
    assert request("allreduce").shared is not None
    assert request("allreduce", out=True).shared is None


def test_parts_of_a_message_are_whole_packs_and_have_fifos():
    for count, parts, itemsize in ((1003, 3, 4), (7, 2, 8), (100, 7, 2), (64, 1, 2)):
        each, last = part_counts(count, parts, itemsize)
        assert each * itemsize % 16 == 0
        assert each * (parts - 1) + last == count
    assert parts_of("allreduce", 16, 2, 4, 1000) == 8
    assert parts_of("allgather", 16, 1, 1, 1000) == 1
    with pytest.raises(UnsupportedError, match="pass fewer slots"):
        parts_of("allreduce", 1, 2, 8, 1000, blocks=12)


def test_a_window_has_room_for_all_that_kernels_find_in_it():
    for size in (2, 16):
        shape = Shape(256, 192)
        group = shape.group(1, list(range(1, size + 1)), 10, 20, 30)
        assert list(group.window)[:size] == list(range(1, size + 1))
        assert group.staging_at + at.MAX_BLOCKS * 2 * (size + 1) * 256 == group.fifos_at
        assert group.fifos_at + at.MAX_BLOCKS * size * at.FIFO_DEPTH * 192 == shape.window_bytes(size)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tuning_without_a_gpu_says_why():
    with pytest.raises(UnsupportedError, match=r"no GPU can be used here \(.*\): tune without --device cuda"):
        arrays_of("float32", 0)
