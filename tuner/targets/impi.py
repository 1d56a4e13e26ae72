"""Intel MPI: one variable for each collective says which algorithm serves which sizes on how many ranks."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from collectives.errors import LaunchError
from collectives.tables.table import Rule, Table
from tuner import launch
from tuner.space import Candidate
from tuner.targets.target import DEFAULT, Target, intervals, libmpi, ranks_of, tuned

# In the order of their numbers, from 1 on; of the developer reference of release 2021.
ALGORITHMS = {
    "allreduce": (
        "recursive_doubling", "rabenseifner", "reduce_broadcast", "topology_aware_reduce_broadcast",
        "binomial_gather_scatter", "topology_aware_binomial_gather_scatter", "shumilin_ring", "ring", "knomial",
        "shared_memory_flat", "shared_memory_knomial", "shared_memory_knary",
    ),
    "broadcast": (
        "binomial", "recursive_doubling", "ring", "topology_aware_binomial", "topology_aware_recursive_doubling",
        "topology_aware_ring", "shumilin", "knomial", "shared_memory_flat", "shared_memory_knomial",
        "shared_memory_knary",
    ),
    "reduce": (
        "shumilin", "binomial", "topology_aware_shumilin", "topology_aware_binomial", "rabenseifner",
        "topology_aware_rabenseifner", "knomial", "shared_memory_flat", "shared_memory_knomial", "shared_memory_knary",
    ),
}  # fmt: skip
KNOBS = {"allreduce": "I_MPI_ADJUST_ALLREDUCE", "broadcast": "I_MPI_ADJUST_BCAST", "reduce": "I_MPI_ADJUST_REDUCE"}
LARGEST = (1 << 31) - 1  # of a size that it reads
FILE = ".env"


class IntelMPI(Target):
    name, library = "impi", "Intel MPI"

    def candidates(self, collective: str) -> list[Candidate]:
        if KNOBS[collective].encode() not in libmpi().read_bytes():
            raise LaunchError(f"{launch.library().version} has no {KNOBS[collective]}: it cannot be tuned")
        return [Candidate(name) for name in ALGORITHMS[collective]]

    def forced(self, collective: str, candidate: Candidate) -> dict[str, str]:
        if candidate == DEFAULT:
            return {}
        return {KNOBS[collective]: str(self._number(collective, candidate.algorithm))}

    def _number(self, collective: str, algorithm: str) -> int:
        return ALGORITHMS[collective].index(algorithm) + 1

    def files(self, table: Table) -> dict[str, str]:
        """Lines for a shell: `set -a; . FILE`, before mpiexec."""
        lines = []
        for collective in tuned(table):
            named = [rule for rule in intervals(table, collective) if rule.algorithm != DEFAULT.algorithm]
            if named:
                value = ";".join(self._clause(rule, ranks_of(table)) for rule in named)
                lines.append(f"{KNOBS[collective]}={shlex.quote(value)}\n")
        return {FILE: "".join(lines)}

    def _clause(self, rule: Rule, ranks: int) -> str:
        """Sizes that no clause names are left to the library."""
        if rule.algorithm not in ALGORITHMS[rule.collective]:
            raise LaunchError(f"{rule}: Intel MPI has no {rule.algorithm} that this knows")
        end = LARGEST if rule.max_bytes is None else rule.max_bytes
        return f"{self._number(rule.collective, rule.algorithm)}:{rule.min_bytes}-{end}@{ranks}-{ranks}"

    def using(self, files: Mapping[str, Path]) -> dict[str, str]:
        lines = files[FILE].read_text(encoding="utf-8").splitlines()
        return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}

    def refused(self, stderr: str) -> str | None:
        found = re.search(r"[^\n]*(?:Incorrect algorithm|will be ignored)[^\n]*", stderr)
        return found[0].strip() if found else None
