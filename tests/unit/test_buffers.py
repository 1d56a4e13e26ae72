"""What a caller may pass: every kind of memory is seen as it is, and what cannot be served is refused with a mend."""

import ctypes
import mmap
from array import array
from decimal import Decimal

import pytest
import torch

from collectives import buffers
from collectives.arrays import DLTensor
from collectives.buffers import View, has_internal_overlap, like, view
from collectives.dtypes import DTYPES, ITEMSIZE
from collectives.errors import UnsupportedError


class Dlpack:
    """A producer of DLPack and nothing else, as of before versions."""

    def __init__(self, x, device=(1, 0)):
        self.x, self.device = x, device

    def __dlpack__(self, *, stream=None):
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.device


class VersionedDlpack(Dlpack):
    def __dlpack__(self, *, stream=None, max_version=None):
        return self.x.__dlpack__(max_version=max_version)


class Managed(ctypes.Structure):
    """A versioned capsule's contents, made by hand."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


class Handmade:
    """float32 numbers by a versioned capsule with any version and flags."""

    def __init__(self, count, major=1, flags=0, code=2, bits=32, lanes=1, strides=None, offset=0):
        self.memory = (ctypes.c_float * (count + offset))(*range(count + offset))
        self.shape, self.strides = (ctypes.c_int64 * 1)(count), (ctypes.c_int64 * 1)(*(strides or (1,)))
        tensor = DLTensor(
            ctypes.addressof(self.memory), 1, 0, 1, code, bits, lanes, self.shape, self.strides, 4 * offset
        )
        self.managed = Managed(major, 0, None, None, flags, tensor)

    def __dlpack__(self, *, max_version):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), b"dltensor_versioned", None)

    def __dlpack_device__(self):
        return (1, 0)


def floats(found: View):
    return list((ctypes.c_float * found.count).from_address(found.address))


# ---------------------------------------------------------------- torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype(dtype):
    x = torch.ones(2, 3, dtype=getattr(torch, dtype))
    found = view(x, writes=True)
    assert (found.address, found.count, found.dtype, found.itemsize) == (x.data_ptr(), 6, dtype, ITEMSIZE[dtype])
    assert found.writable
    assert found.original is None


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(3.0),
        torch.zeros(0),
        torch.zeros(1, 0, 2),
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, requires_grad=True) * 2,
        torch.ones(4, 5)[1:3],
        torch.ones(4, 5)[2],
        torch.ones(1, 2, 2).transpose(0, 1)[:, 0],
        torch.ones(5, 1).expand(5, 1),
    ],
    ids=lambda x: f"{tuple(x.shape)} {type(x).__name__} {'grad' if x.requires_grad else ''}",
)
def test_contiguous_tensors_are_seen_where_they_are(x):
    found = view(x, writes=True)
    assert (found.address, found.count) == (x.data_ptr(), x.numel())
    assert found.original is None


STRIDED = {
    "column": lambda: torch.zeros(4, 5)[:, 0],
    "every second": lambda: torch.zeros(9)[::2],
    "transposed": lambda: torch.zeros(3, 4).t(),
    "channels last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.zeros(2, 3, 4).permute(2, 0, 1),
    "imaginary": lambda: torch.zeros(6, dtype=torch.complex64).imag,
    "conjugate's imaginary": lambda: torch.zeros(6, dtype=torch.complex64).conj().imag,
    "one conjugate's imaginary": lambda: torch.zeros(1, dtype=torch.complex64).conj().imag,
    "diagonal": lambda: torch.zeros(4, 4).diagonal(),
    "leaf": lambda: torch.zeros(4, 4, requires_grad=True).detach().requires_grad_().t(),
}


@pytest.mark.parametrize("make", STRIDED.values(), ids=STRIDED)
def test_strided_tensors_are_copied_and_the_callers_tensor_changes(make):
    x = make()
    with torch.no_grad():
        x.copy_(torch.arange(x.numel(), dtype=torch.float32).reshape(x.shape))
    found = view(x, writes=True)
    assert floats(found) == list(range(x.numel()))
    ctypes.memset(found.address, 0, found.n_bytes)
    assert not x.numel() or x.detach().sum() == sum(range(x.numel())), "restore copies, not the view itself"
    found.restore()
    assert not x.detach().any()


def test_strided_tensors_that_are_only_read_are_not_written_back():
    x = torch.arange(12.0).reshape(3, 4)
    found = view(x.t())
    assert floats(found) == x.t().flatten().tolist()
    assert found.original is None


@pytest.mark.parametrize(
    "x",
    [torch.ones(1).expand(5), torch.ones(3, 1).expand(3, 4), torch.ones(9).as_strided((3, 3), (2, 1)),
     torch.ones(9).unfold(0, 3, 1)],
)  # fmt: skip
def test_elements_that_share_memory_may_be_read_and_not_written(x):
    assert floats(view(x)) == [1] * x.numel()
    with pytest.raises(ValueError, match=r"out is an expanded tensor.*share memory; pass out\.contiguous\(\)"):
        view(x, "out", writes=True)


def test_what_overlaps():
    assert not has_internal_overlap(torch.ones(2, 3, 4).permute(2, 0, 1))
    assert not has_internal_overlap(torch.ones(5, 1).expand(5, 1))
    assert not has_internal_overlap(torch.ones(9).as_strided((2, 2), (2, 3)))
    assert has_internal_overlap(torch.ones(9).as_strided((2, 3), (1, 1)))
    assert has_internal_overlap(torch.ones(1, 3).expand(2, 3))


REFUSED = {
    "sparse": (lambda: torch.ones(3).to_sparse(), TypeError, r"sparse_coo tensor; pass a dense one \(x.to_dense\(\)\)"),
    "mkldnn": (lambda: torch.ones(3, 3).to_mkldnn(), TypeError, "pass a dense one"),
    "meta": (lambda: torch.ones(3, device="meta"), UnsupportedError, r"on meta; only CPU memory.*pass x\.cpu\(\)"),
    "complex": (lambda: torch.ones(3, dtype=torch.complex64), TypeError, "complex64.*view_as_real"),
    "bool": (lambda: torch.ones(3, dtype=torch.bool), TypeError, "torch.bool, which is not reduced; there are float16"),
    "fp8": (lambda: torch.ones(3).to(torch.float8_e4m3fn), TypeError, "float8_e4m3fn, which is not reduced"),
    "no memory": (lambda: torch._efficientzerotensor(3), TypeError, r"without memory.*pass x\.clone\(\)"),
    "number": (lambda: 3.0, TypeError, "x is a float, which holds no memory that can be shared; pass a torch tensor"),
    "nothing": (lambda: None, TypeError, "x is a NoneType"),
    "list": (lambda: [1.0, 2.0], TypeError, "x is a list, which holds no memory"),
    "text": (lambda: "abc", TypeError, "x is a str"),
    "decimal": (lambda: Decimal(1), TypeError, "x is a Decimal"),
    "characters": (lambda: array("u", "abc"), TypeError, "elements of format 'w', which are not reduced; there are f"),
    "truths": (lambda: memoryview(bytearray(3)).cast("?"), TypeError, "format '?'"),
    "big endian": (lambda: (ctypes.c_float.__ctype_be__ * 3)(), TypeError, "format '>f'"),
    "structure": (lambda: (Managed * 2)(), TypeError, "format 'T{"),
    "every second": (lambda: memoryview(array("f", [1, 2, 3, 4]))[::2], ValueError, "x is not contiguous; pass a cont"),
    "backwards": (lambda: memoryview(array("f", [1, 2, 3, 4]))[::-1], ValueError, "x is not contiguous"),
    "strided DLPack": (lambda: Dlpack(torch.ones(4, 4).t()), ValueError, "x is not contiguous; pass a contiguous arr"),
    "DLPack device": (lambda: Dlpack(torch.ones(4), (2, 0)), UnsupportedError, r"on DLPack device \(2, 0\); only CPU"),
    "DLPack bool": (lambda: Dlpack(torch.ones(4, dtype=torch.bool)), TypeError, "DLPack dtype .*which is not reduced"),
    "DLPack complex": (lambda: Handmade(4, code=5, bits=64), TypeError, "DLPack dtype unknown64"),
    "DLPack fp8": (lambda: Handmade(4, code=2, bits=8), TypeError, "DLPack dtype float8"),
    "DLPack lanes": (lambda: Handmade(4, lanes=2), TypeError, "which is not reduced"),
    "DLPack 2": (lambda: Handmade(4, major=2), UnsupportedError, "x comes by DLPack 2; DLPack 1 and"),
}  # fmt: skip


@pytest.mark.parametrize("make, kind, says", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_with_a_mend(make, kind, says):
    with pytest.raises(kind, match=says):
        view(make())


# ---------------------------------------------------------------- the buffer protocol
@pytest.mark.parametrize("code, dtype", [(code, name) for name, code in buffers.TYPECODES.items()])
def test_arrays_of_every_typecode(code, dtype):
    x = array(code, [1, 2, 3])
    found = view(x, writes=True)
    assert (found.address, found.count, found.dtype) == (x.buffer_info()[0], 3, dtype)
    with pytest.raises(BufferError):
        x.append(4)  # while it is looked at, it stays where it is
    del found
    x.append(4)


@pytest.mark.parametrize("code", ["l", "L"])
def test_long_integers_are_what_they_are_here(code):
    assert view(array(code, [1])).dtype == {"l": "int", "L": "uint"}[code] + str(8 * array(code).itemsize)


def test_every_other_kind_of_buffer():
    data = bytearray(range(24))
    assert (view(data).dtype, view(data).count) == ("uint8", 24)
    assert view(memoryview(data).cast("i", [2, 3])).count == 6
    assert view(memoryview(data)[:4].cast("f", [])).count == 1
    odd = view(memoryview(data)[1:9].cast("f"), writes=True)
    assert (odd.address, odd.count) == (view(data).address + 1, 2), "memory need not be aligned"
    assert view((ctypes.c_double * 3)()).dtype == "float64"
    assert view((ctypes.c_int16 * 3 * 2)()).count == 6
    assert view(mmap.mmap(-1, 10), writes=True).count == 10
    for empty in (b"", bytearray(), array("d"), memoryview(b"")):
        assert view(empty).count == 0


@pytest.mark.parametrize(
    "x",
    [b"abcd", memoryview(b"abcd"), memoryview(bytearray(4)).toreadonly(), Handmade(4, flags=1), Handmade(4, flags=2)],
)
def test_read_only_memory_may_be_read_and_not_written(x):
    assert view(x).count == 4
    with pytest.raises(BufferError, match="out is read-only, and would be written; pass a writable buffer"):
        view(x, "out", writes=True)


# ---------------------------------------------------------------- DLPack
@pytest.mark.parametrize("kind", [Dlpack, VersionedDlpack])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_of_every_dtype_and_version(kind, dtype):
    if dtype in ("uint16", "uint32", "uint64"):
        x = torch.ones(12, dtype=getattr(torch, dtype[1:])).view(getattr(torch, dtype)).reshape(1, 6, 2)
    else:
        x = torch.ones(1, 6, 2, dtype=getattr(torch, dtype))
    found = view(kind(x), writes=True)
    assert (found.address, found.count, found.dtype, found.itemsize) == (x.data_ptr(), 12, dtype, ITEMSIZE[dtype])


def test_dlpack_offsets_strides_and_lives():
    assert floats(view(Handmade(3, offset=2), writes=True)) == [2, 3, 4]
    assert view(Handmade(1, strides=(77,))).count == 1
    assert view(Handmade(0, strides=(77,))).count == 0
    assert view(Dlpack(torch.ones(3, 1, 2)[:, :, :])).count == 6
    found = view(Dlpack(torch.full((1000,), 7.0)))  # nobody else holds the tensor
    torch.zeros(1000)
    assert floats(found) == [7] * 1000


# ---------------------------------------------------------------- new arrays, overlaps
@pytest.mark.parametrize(
    "x, kind",
    [(torch.ones(2, 2, dtype=torch.bfloat16), torch.Tensor), (array("d", [1]), array), (b"ab", memoryview),
     (memoryview(array("h", [1, 2])), memoryview), (Handmade(2), memoryview)],
)  # fmt: skip
def test_new_arrays_are_of_the_kind_that_was_passed(x, kind):
    found = view(x)
    made = like(x, found, 5)
    assert isinstance(made, kind)
    assert (view(made).dtype, view(made).count, view(made, writes=True).writable) == (found.dtype, 5, True)


def test_halves_without_torch_need_out():
    x = Dlpack(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="no array of bfloat16 without torch; pass out="):
        like(x, view(x), 5)


def test_views_that_overlap():
    memory = torch.zeros(10)
    whole, low, high, none = view(memory), view(memory[:5]), view(memory[5:]), view(memory[5:5])
    assert whole.overlaps(low)
    assert high.overlaps(whole)
    assert not low.overlaps(high)
    assert not none.overlaps(whole)
    assert not whole.overlaps(none)
