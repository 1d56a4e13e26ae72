"""A compiler for devices, where there is one: NVRTC, which CuPy compiles with, or nvcc. Neither needs a GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collectives.cuda import source

MISSING = "neither NVRTC (pip install nvidia-cuda-nvrtc) nor nvcc is installed"


@cache
def nvrtc() -> Any:
    """The library of the wheel, or None."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            if "builtins" not in path.name and "alt" not in path.name:
                return ctypes.CDLL(str(path))
    return None


def available() -> bool:
    return nvrtc() is not None or shutil.which("nvcc") is not None


def ptx(code: str, arch: int) -> str:
    """What the compiler makes of the code for an architecture, as assembler of the virtual machine."""
    return by_nvrtc(code, arch) if nvrtc() is not None else by_nvcc(code, arch)


def by_nvrtc(code: str, arch: int) -> str:
    library, program = nvrtc(), ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None) == 0
    options = [*source.OPTIONS, f"--gpu-architecture=compute_{arch}"]
    passed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), passed)
    what = "ProgramLog" if failed else "PTX"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    assert not failed, text.value.decode()
    return text.value.decode()


def by_nvcc(code: str, arch: int, *flags: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        written, made = Path(folder, "kernels.cu"), Path(folder, "kernels.ptx")
        written.write_text(code)
        command = ["nvcc", *source.OPTIONS, f"-arch=compute_{arch}", "-ptx", *flags, "-o", str(made), str(written)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return made.read_text()


def spills(assembler: str, arch: int) -> dict[str, int]:
    """Bytes that each kernel spills to memory, and reads back, once ptxas has laid out registers."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "kernels.ptx")
        written.write_text(assembler)
        command = ["ptxas", "-v", f"-arch=sm_{arch}", "-o", str(Path(folder, "kernels.cubin")), str(written)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"properties for (\w+)\n.*?, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    return {name: int(stores) + int(loads) for name, stores, loads in found}


def bodies(assembler: str) -> dict[str, str]:
    """Each kernel's instructions."""
    found: Sequence[tuple[str, str]] = re.findall(r"\.entry (\w+)\((.*?)^}", assembler, re.S | re.M)
    return dict(found)
