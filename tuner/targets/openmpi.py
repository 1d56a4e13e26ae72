"""Open MPI: the component `tuned` of its collectives, and the file of rules that it reads.

Two traps. The component HAN comes before `tuned` and would decide without a word: its priority goes to 0. A rule for a
communicator's size serves all larger ones too, up to the next size that has rules: the next size's rules say 0, which
leaves the decision to the library.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from collectives.errors import LaunchError
from collectives.tables.table import Rule, Table
from tuner import launch
from tuner.space import Candidate, candidate
from tuner.targets.target import DEFAULT, Target, intervals, ranks_of, tool, tuned

NAMES = {"allreduce": "allreduce", "broadcast": "bcast", "reduce": "reduce"}
IDS = {"allreduce": 2, "broadcast": 7, "reduce": 11}  # of COLLTYPE in ompi/mca/coll/base/coll_base_functions.h
SEGMENTED = ("segmented_ring", "chain", "pipeline", "split_binary_tree", "binary_tree", "binary", "binomial")
SEGMENTS = (1 << 13, 1 << 16)
ENTRY = re.compile(r":param:coll_tuned_(\w+)_algorithm:enumerator:value:(\d+):(\S+)")
SEGMENT = "segment_bytes"


class OpenMPI(Target):
    name, library = "openmpi", "Open MPI"

    def numbers(self, collective: str) -> dict[str, int]:
        """{algorithm: its number}, as ompi_info says."""
        said = tool("ompi_info", "--param", "coll", "tuned", "--level", "9", "--parsable")
        found = {name: int(number) for which, number, name in ENTRY.findall(said) if which == NAMES[collective]}
        if not found:
            knob = f"coll_tuned_{NAMES[collective]}_algorithm"
            raise LaunchError(f"{launch.library().version} does not list {knob}: it cannot be tuned")
        return {name: number for name, number in found.items() if number}

    def candidates(self, collective: str) -> list[Candidate]:
        found = []
        for name in self.numbers(collective):
            found.append(Candidate(name))
            found += [Candidate(name, ((SEGMENT, size),)) for size in SEGMENTS if name in SEGMENTED]
        return found

    def forced(self, collective: str, candidate: Candidate) -> dict[str, str]:
        if candidate == DEFAULT:
            return {}
        knob = f"OMPI_MCA_coll_tuned_{NAMES[collective]}_algorithm"
        return {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_han_priority": "0",
            knob: str(self.numbers(collective)[candidate.algorithm]),
            f"{knob}_segmentsize": str(candidate.params.get(SEGMENT, 0)),
        }

    def files(self, table: Table) -> dict[str, str]:
        """Rules in the first version of the format, which every release reads."""
        ranks, names = ranks_of(table), tuned(table)
        lines = [f"{len(names)} # collectives"]
        for name in names:
            rules, numbers = intervals(table, name), self.numbers(name)
            lines += [f"{IDS[name]} # {NAMES[name]}", "2 # sizes of communicators"]
            lines += [f"{ranks} # ranks", f"{len(rules)} # rules: from so many bytes, algorithm, fan-out, segment"]
            lines += [self._line(rule, numbers) for rule in rules]
            lines += [f"{ranks + 1} # ranks and more: as the library itself decides", "1 # rule", "0 0 0 0"]
        return {".rules": "\n".join(lines) + "\n"}

    def _line(self, rule: Rule, numbers: dict[str, int]) -> str:
        chosen = candidate(rule.algorithm)
        number = 0 if chosen == DEFAULT else numbers.get(rule.algorithm)
        if number is None:
            raise LaunchError(f"{rule}: this Open MPI has no {rule.algorithm}; it has {', '.join(numbers)}")
        return f"{rule.min_bytes} {number} 0 {rule.params.get(SEGMENT, 0)}"

    def using(self, files: Mapping[str, Path]) -> dict[str, str]:
        return {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(files[".rules"]),
            "OMPI_MCA_coll_han_priority": "0",
        }

    def refused(self, stderr: str) -> str | None:
        found = re.search(r"[^\n]*(?:invalid|out of range|coll_tuned_dynamic_rules|Unable to parse)[^\n]*", stderr)
        return found[0].strip() if found else None


JSON_USE = "OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename={path}"


def as_json(table: Table) -> dict[str, object]:
    """The same rules in the form that Open MPI 6.0 reads: the first that matches counts, and maxima are included."""
    ranks, collectives = ranks_of(table), {}
    for name in tuned(table):
        rules = [rule for rule in intervals(table, name) if rule.algorithm != DEFAULT.algorithm]
        entries: list[dict[str, object]] = [
            {
                "msg_size_min": rule.min_bytes,
                "msg_size_max": "inf" if rule.max_bytes is None else rule.max_bytes,
                "alg": rule.algorithm,
            }
            | ({"seg_size": rule.params[SEGMENT]} if SEGMENT in rule.params else {})
            for rule in rules
        ]
        collectives[NAMES[name]] = [{"comm_size_min": ranks, "comm_size_max": ranks, "rules": entries}]
    return {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
