"""What ranks with emulated GPUs pass by mistake. Rank 0 prints {case: [what each rank saw]} as JSON; then the job ends.

The last rank does it wrongly; each case has a communicator of its own.
"""

import json
import time
from array import array
from collections.abc import Callable
from typing import Any

from collectives.cuda import device as on_device
from collectives.errors import CollectiveError
from tests.cuda.emulator import DeviceArray, Emulator
from tests.programs import world

LAST = world.RANK == world.SIZE - 1
DEADLINE = 5.0


def seen(call: Callable[[], Any]) -> list[Any]:
    began = time.monotonic()
    try:
        call()
    except (CollectiveError, ValueError, TypeError, BufferError) as error:
        return [type(error).__name__, str(error), time.monotonic() - began]
    return ["", "", time.monotonic() - began]


def case(wrong: Callable[[Any, Emulator], Any], *fails: str, before: bool = False) -> list[Any]:
    """What a call of which the last rank makes something else raises; `before`: after one that all made well."""
    gpu = Emulator(fails=fails if LAST and not before else ())
    on_device.driver = lambda: gpu  # type: ignore[assignment, attr-defined]
    comm = world.communicator(timeout=DEADLINE)
    if before:
        comm.allreduce(gpu.new("float32", 64))
        gpu.synchronize(0)
        gpu.fails = fails if LAST else ()
    what = wrong if LAST else lambda comm, gpu: comm.allreduce(gpu.new("float32", 64))
    found = seen(lambda: what(comm, gpu))
    if not found[0]:  # who noticed nothing yet does at the next call
        found = seen(lambda: (comm.allreduce(gpu.new("float32", 64)), comm.barrier()))
    return found


def strided(comm: Any, gpu: Emulator) -> Any:
    x = gpu.new("float32", 128)
    y = DeviceArray(x.address, "float32", (64,))
    y.strides = (8,)
    return comm.allreduce(y)


def good(comm: Any, gpu: Emulator) -> Any:
    return comm.allreduce(gpu.new("float32", 64))


def stays_away(comm: Any, gpu: Emulator) -> Any:
    """Its host makes the call, and its kernel never starts: the others' kernels give up."""
    gpu.launch = lambda *_: None  # type: ignore[method-assign]
    good(comm, gpu)
    time.sleep(DEADLINE + 1)
    raise CollectiveError("was away")


def waited_for(comm: Any, gpu: Emulator) -> Any:
    work = comm.allreduce(gpu.new("float32", 64), blocking=False)
    return work.synchronize(4 * DEADLINE)


def away() -> list[Any]:
    gpu = Emulator()
    on_device.driver = lambda: gpu  # type: ignore[assignment, attr-defined]
    comm = world.communicator(timeout=DEADLINE / 2)
    good(comm, gpu)
    gpu.synchronize(0)
    return seen(lambda: (stays_away if LAST else waited_for)(comm, gpu))


CASES: dict[str, Callable[[], list[Any]]] = {
    "a host's array": lambda: case(lambda comm, _: comm.allreduce(array("f", [1.0] * 64))),
    "a host's array, later": lambda: case(lambda comm, _: comm.allreduce(array("f", [1.0] * 64)), before=True),
    "another count": lambda: case(lambda comm, gpu: comm.allreduce(gpu.new("float32", 65)), before=True),
    "not contiguous": lambda: case(strided),
    "another device": lambda: case(good, "other device", before=True),
    "managed memory": lambda: case(good, "managed"),
    "no driver": lambda: case(good, "properties"),
    "a dtype that kernels have not": lambda: case(lambda comm, gpu: comm.allreduce(gpu.new("int16", 64))),
    "an unknown parameter": lambda: case(lambda comm, gpu: comm.allreduce(gpu.new("float32", 64), lanes=3)),
    "a rank whose kernel never comes": away,
}


def unmapped() -> str:
    """Where windows cannot be mapped, all ranks go through the host, and symmetric memory is refused on all."""
    gpu = Emulator(fails=("open",) if LAST else ())
    on_device.driver = lambda: gpu  # type: ignore[assignment, attr-defined]
    comm = world.communicator(timeout=DEADLINE)
    x = gpu.new("int32", 5).write(b"\1\0\0\0" * 5)
    comm.allreduce(x)
    gpu.synchronize(0)
    assert x.read() == world.SIZE.to_bytes(4, "little") * 5
    found = seen(lambda: comm.empty(8, "float32", device="cuda"))
    comm.close()
    assert not gpu.opened
    return str(found[1])


def main() -> None:
    results: dict[str, Any] = {"through the host": world.everyone(unmapped())}
    for name, run in CASES.items():
        results[name] = world.everyone(run())
    if world.RANK == 0:
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
