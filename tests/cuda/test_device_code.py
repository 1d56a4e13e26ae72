"""What compilers make of the kernels for devices: that they compile for all, and which instructions are there."""

from __future__ import annotations

import re
import shutil

import pytest

from collectives.cuda import source
from tests.cuda import device_compiler as compiler

pytestmark = pytest.mark.skipif(not compiler.available(), reason=compiler.MISSING)

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
KINDS = (
    ("float32", "sum"),
    ("bfloat16", "avg"),
    ("float16", "sum"),
    ("float64", "max"),
    ("int32", "xor"),
    ("int64", "prod"),
)
SIGNALLING = ("one_shot", "exchange", "steps", "signals")


@pytest.fixture(scope="module")
def hopper() -> str:
    """Kernels of every dtype, for compute capability 9.0."""
    return compiler.ptx(source.text(KINDS), 90)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_for_every_architecture(arch):
    found = compiler.bodies(compiler.ptx(source.text([("bfloat16", "sum")]), arch))
    assert set(found) == {source.entry(name, "bfloat16", "sum") for name in source.KERNELS}


def test_flags_are_released_and_acquired_by_the_whole_system(hopper):
    """x86 orders more than devices do, so that tests on the CPU cannot miss an order that only devices lack."""
    found = compiler.bodies(hopper)
    for dtype, op in KINDS:
        for kernel in SIGNALLING:
            body = found[source.entry(kernel, dtype, op)]
            assert "st.release.sys.global.u32" in body, kernel
            assert "ld.acquire.sys.global.u32" in body, kernel
            assert not re.search(r"(?:st\.release|ld\.acquire)\.(?:cta|gpu|cluster)", body), kernel
        assert "atom.add.acq_rel.gpu" in found[source.entry("steps", dtype, op)]


def test_signals_stand_between_barriers(hopper):
    """A release by one thread covers what others of its block wrote only behind a barrier; one passes an acquire on."""
    kinds = {"bar.sync": "B", "barrier.sync": "B", "st.release.sys": "R", "ld.acquire.sys": "A"}
    body = compiler.bodies(hopper)["signals_float32_sum"]
    order = "".join(kinds[found] for found in re.findall("|".join(map(re.escape, kinds)), body))
    assert re.search("B[RA]*R[RA]*A[RA]*B", order), order


def test_memory_is_read_128_bits_at_a_time_and_never_from_the_read_only_cache(hopper):
    for name, body in compiler.bodies(hopper).items():
        if not name.startswith("signals"):
            assert "ld.global.v4.u32" in body, name
            assert "st.global.v4.u32" in body, name
        assert not re.search(r"ld\.global(?:\.\w+)*\.nc|ldg", body), name


def test_nothing_is_contracted(hopper):
    """A multiplication and an addition in one would make a mean's bits depend on its operands' order."""
    for name, body in compiler.bodies(hopper).items():
        assert not re.search(r"\b(?:fma|mad)\.(?:\w+\.)*(?:f16|bf16|f32|f64)", body), name


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas comes with the CUDA toolkit's nvcc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hot_kernels_spill_no_registers(dtype):
    found = compiler.spills(compiler.ptx(source.text([(dtype, "sum")]), 90), 90)
    assert len(found) == len(source.KERNELS)
    assert not any(found.values()), found
