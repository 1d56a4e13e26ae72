"""What may serve a call on a GPU: kernels over each other's memory, schedules, or the way through the host."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collectives.algorithms import every, find, names
from collectives.cuda import layout as at
from collectives.errors import UnsupportedError

IPC, STAGED, AWARE = PATHS = ("cuda-ipc", "staged", "cuda-aware")
ONE_SHOT, TWO_SHOT, DIRECT = "one_shot", "two_shot", "direct"
KERNELS: dict[str, tuple[str, ...]] = {  # by hand, of each collective; they fold all ranks in order, once
    "allreduce": (ONE_SHOT, TWO_SHOT), "reduce_scatter": (DIRECT,), "allgather": (DIRECT,), "broadcast": (DIRECT,),
    "reduce": (DIRECT,), "gather": (), "scatter": (), "alltoall": (),
}  # fmt: skip
LARGEST_ONE_SHOT = 256 << 10  # bytes of all ranks together, by default
BLOCKS, THREADS, CHUNK_BYTES = (1, 4, 16, 32, 64), (128, 256, 512), (8 << 10, 32 << 10)
PIECE_BYTES, SLOTS = (1 << 20, 4 << 20, 16 << 20), (2, 3, 4)
BLOCK_BYTES = 16 << 10  # that a block has at least to do, by default
DEFAULTS: dict[str, dict[str, int | None]] = {
    "kernel": {"blocks": None, "threads": 512, "chunk_bytes": 32 << 10},
    STAGED: {"piece_bytes": 4 << 20, "slots": 3}, AWARE: {"threads": 512},
}  # fmt: skip


@dataclass(frozen=True)
class DeviceChoice:
    """An algorithm with all of its parameters, and the path by which its data travel."""

    path: str
    algorithm: str
    params: tuple[tuple[str, Any], ...]
    reason: str

    def __getitem__(self, name: str) -> Any:
        return dict(self.params).get(name)

    @property
    def folds_once(self) -> bool:
        return self.algorithm in (ONE_SHOT, TWO_SHOT, DIRECT, AWARE)


def default(collective: str, nbytes: int, ranks: int, path: str) -> tuple[str, str]:
    """The rule of thumb: name, and why."""
    if path != IPC:
        return path, "ranks do not map each other's memory"
    if collective != "allreduce":
        return DIRECT, "one kernel for all of it" if KERNELS[collective] else "every chunk by itself, in one round"
    if nbytes * ranks <= LARGEST_ONE_SHOT:
        return ONE_SHOT, "one meeting of all ranks, for a short message"
    return TWO_SHOT, "the fewest bytes, and two meetings a piece"


def choose(
    collective: str,
    nbytes: int,
    ranks: int,
    paths: tuple[str, ...],
    algorithm: str | None,
    params: Mapping[str, Any],
    *,
    because: str = "by default",
) -> DeviceChoice:
    """What serves. `paths`: those that these ranks have, the best first. ValueError for what does not exist,
    UnsupportedError for what cannot serve here."""
    reason = because
    if algorithm is None:
        algorithm, why = default(collective, nbytes, ranks, paths[0])
        reason = f"{because} {algorithm}: {why}"
    path, settings = parameters(collective, algorithm)
    refusal = find(collective, algorithm).refusal(ranks) if "parts" in settings else None
    if refusal:
        raise UnsupportedError(refusal)
    if path not in paths:
        raise UnsupportedError(f"{collective} {algorithm} needs {path}; these ranks have {', '.join(paths)}")
    unknown = sorted(set(params) - set(settings))
    if unknown:
        raise ValueError(
            f"{collective} {algorithm} on a GPU has no parameter {unknown[0]!r}; it has {', '.join(settings) or 'none'}"
        )
    full = settings | dict(params)
    check(full)
    return DeviceChoice(path, algorithm, tuple(sorted(full.items())), reason)


def parameters(collective: str, algorithm: str) -> tuple[str, dict[str, Any]]:
    """The path of an algorithm, and its parameters with their defaults. ValueError where it does not exist."""
    if algorithm == AWARE and not KERNELS[collective]:
        raise ValueError(f"{collective} is not made of messages of device memory; {DIRECT} and {STAGED} serve")
    if algorithm in PATHS:
        return algorithm, dict(DEFAULTS.get(algorithm, {}))
    if algorithm in KERNELS[collective]:
        return IPC, dict(DEFAULTS["kernel"])
    found = {parameter.name: parameter.default for parameter in find(collective, algorithm).parameters}
    found.pop("kernel_bytes", None)
    return IPC, {"threads": DEFAULTS["kernel"]["threads"], **found, "parts": 1}


def refused_rule(collective: str, algorithm: str, params: Mapping[str, Any]) -> str | None:
    """Why a table's rule cannot serve on any GPU."""
    try:
        choose(collective, 0, 2, PATHS, algorithm, params)
    except UnsupportedError:  # for two ranks
        return None
    except (ValueError, KeyError) as error:
        return str(error)
    return None


def check(params: Mapping[str, Any]) -> None:
    """ValueError for a number that kernels cannot take."""
    for name, value in params.items():
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name} is {value}; it is a positive number")
    threads, blocks, chunk = (params.get(name) for name in ("threads", "blocks", "chunk_bytes"))
    if threads is not None and (threads % 32 or threads > at.MOST_THREADS):
        raise ValueError(f"threads is {threads}; it is a multiple of 32, up to {at.MOST_THREADS}")
    if blocks is not None and blocks > at.MAX_BLOCKS:
        raise ValueError(f"blocks is {blocks}; there are at most {at.MAX_BLOCKS}")
    if chunk is not None and chunk % 64:
        raise ValueError(f"chunk_bytes is {chunk}; it is a multiple of 64")


def candidates(
    collective: str, nbytes: int, ranks: int, paths: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a tuner may try, names with parameters; without what cannot help at this size."""
    if IPC in paths:
        for name in KERNELS[collective]:
            for blocks in BLOCKS:
                if blocks == 1 or blocks * BLOCK_BYTES // 4 <= nbytes:
                    for threads in THREADS:
                        for chunk in CHUNK_BYTES if nbytes > blocks * ranks * CHUNK_BYTES[0] else CHUNK_BYTES[-1:]:
                            yield name, {"blocks": blocks, "threads": threads, "chunk_bytes": chunk}
        for algorithm in every(collective):
            plain = algorithm.name not in (*KERNELS[collective], "single_copy") and not algorithm.symmetric
            if plain and not algorithm.refusal(ranks) and not algorithm.needs_nodes:
                for parts in (1, 4, 16) if nbytes > 16 << 10 else (1,):
                    yield algorithm.name, {"parts": parts}
    if STAGED in paths:
        for piece in PIECE_BYTES:
            for slots in SLOTS if nbytes > piece else SLOTS[:1]:
                yield STAGED, {"piece_bytes": piece, "slots": slots}
    if AWARE in paths and KERNELS[collective]:
        yield AWARE, {}


def known(collective: str) -> tuple[str, ...]:
    """The names that `algorithm=` takes for arrays on a GPU."""
    aware = (AWARE,) * bool(KERNELS[collective])
    return tuple(dict.fromkeys((*KERNELS[collective], *names(collective), STAGED, *aware)))
