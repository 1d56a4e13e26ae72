"""MPICH: the variables that force an algorithm, and the decision tree, in JSON, that it can read at start.

A tree replaces the library's whole, and a collective that it lacks is an abort: so what is written is the library's own
tree, which lies in the library as text, with one branch more. On a node MPICH serves programs that asked for one thread
by `release_gather` before it looks there; programs of mpi4py ask for several, and are what this is for.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from collectives.errors import LaunchError
from collectives.tables.table import Table
from tuner import launch
from tuner.space import Candidate
from tuner.targets.target import DEFAULT, Target, intervals, libmpi, ranks_of, tool, tuned

NAMES = {"allreduce": "allreduce", "broadcast": "bcast", "reduce": "reduce"}
# Which would not stand alone: `nb` and `smp` choose again, `ccl` is another library. The others take parameters, which
# a variable has by default and a tree has not: recursive multiplying never ends by a tree that names no radix.
CHOOSING = ("auto", "nb", "smp", "ccl")
LEFT_OUT = (*CHOOSING, "tree", "pipelined_tree", "recexch", "recursive_multiplying", "k_reduce_scatter_allgather")
FILE, VARIABLE = ".mpich.json", "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"
Tree = dict[str, Any]


class MPICH(Target):
    name, library = "mpich", "MPICH"

    def candidates(self, collective: str) -> list[Candidate]:
        stem = f"MPIR_CVAR_{NAMES[collective].upper()}"
        offered = _values(tool("mpivars", as_rank=True), f"{stem}_INTRA_ALGORITHM")
        if not offered:
            raise LaunchError(f"{launch.library().version} has no {stem}_INTRA_ALGORITHM: it cannot be tuned")
        return [Candidate(name) for name in offered if name not in LEFT_OUT and _reads(_algorithm(collective, name))]

    def forced(self, collective: str, candidate: Candidate) -> dict[str, str]:
        if candidate == DEFAULT:
            return {}
        stem = f"MPIR_CVAR_{NAMES[collective].upper()}"
        return {f"{stem}_POSIX_INTRA_ALGORITHM": "mpir", f"{stem}_INTRA_ALGORITHM": candidate.algorithm}

    def files(self, table: Table) -> dict[str, str]:
        tree, ranks = _own_tree(), ranks_of(table)
        for collective in tuned(table):
            known = tree[f"collective={NAMES[collective]}"]
            before, branches = known["comm_type=intra"], {}
            for rule in intervals(table, collective):
                key = "avg_msg_size=any" if rule.max_bytes is None else f"avg_msg_size<={rule.max_bytes}"
                branches[key] = self._branch(collective, rule.algorithm, before)
            known["comm_type=intra"] = {
                f"comm_size<{ranks}": before, f"comm_size<={ranks}": branches, "comm_size=any": before,
            }  # fmt: skip
        return {FILE: json.dumps(tree) + "\n"}

    def _branch(self, collective: str, algorithm: str, before: Tree) -> Tree:
        if algorithm == DEFAULT.algorithm:
            return before
        name = _algorithm(collective, algorithm)
        if not _reads(name):
            raise LaunchError(f"{launch.library().version} reads no {name}; tune again with this release")
        return {f"algorithm={name}": {}}

    def using(self, files: Mapping[str, Path]) -> dict[str, str]:
        return {VARIABLE: str(files[FILE])}

    def refused(self, stderr: str) -> str | None:
        found = re.search(r"(?i)[^\n]*(?:invalid algorithm|unknown .*algorithm|CVAR[^\n]*invalid)[^\n]*", stderr)
        return found[0].strip() if found else None


def _algorithm(collective: str, name: str) -> str:
    return f"MPIR_{NAMES[collective].capitalize()}_intra_{name}"


def _values(said: str, variable: str) -> list[str]:
    """The values that a variable takes, as mpivars lists them after it."""
    after = re.split(rf"{variable} *=", said, maxsplit=1)[1:]
    values = []
    for line in after[0].splitlines()[1:] if after else ():
        if line.startswith("\t") or " - " not in line:
            break
        values.append(line.partition(" - ")[0].strip())
    return values


@cache
def _content() -> bytes:
    return libmpi().read_bytes()


def _reads(name: str) -> bool:
    """Whether the library knows an algorithm by this name in a tree."""
    return f"algorithm={name}\0".encode() in _content()


def _own_tree() -> Tree:
    found = re.search(rb'\{"collective=[^\0\n]*MPIR_Allreduce_intra[^\0\n]*\}', _content())
    if found is None:
        raise LaunchError(
            f"{launch.library().version} holds no decision tree, and a file of ours would lack the others"
        )
    tree: Tree = json.loads(found[0])
    return tree
