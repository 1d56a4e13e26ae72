"""What algorithms emit, as a hash each: python -m tests.replay.schedules writes schedules.json anew.

A refactoring leaves every schedule as it is, step by step. Where one is meant to change, the file changes with it.
"""

import json
from hashlib import blake2b
from pathlib import Path

from collectives.algorithms import every
from collectives.contract import ROOTED
from collectives.nest import count, levels, shape
from collectives.proof.sweep import settings
from collectives.schedule import Schedule

FILE = Path(__file__).with_name("schedules.json")
RANKS = (1, 2, 3, 4, 5, 6, 8, 13, 16)
NODES = ("2x3", "4x4", "3+1", "2+3+2", "2x2x3", "(2+1)+(1x3)")


def hashes() -> dict[str, dict[str, str]]:
    """{collective algorithm: {ranks or nodes: hash of the schedules of all ranks, in every setting}}."""
    found: dict[str, dict[str, str]] = {}
    for a in every():
        groups = {str(p): (p, None) for p in RANKS} | {x: (count(shape(x)), shape(x)) for x in NODES}
        for name, (p, nodes) in groups.items():
            fits = nodes is None or (a.needs_nodes and (a.nested or len(levels(nodes)) == 2))
            if fits and not a.lack(p, nodes):
                text = blake2b(digest_size=8)
                for params in settings(a):
                    for schedule in a.schedules(p, nodes=nodes, root=p // 2 * (a.collective in ROOTED), **params):
                        text.update(said(schedule).encode())
                found.setdefault(f"{a.collective} {a.name}", {})[name] = text.hexdigest()
    return found


def said(schedule: Schedule) -> str:
    """Every word of it."""
    return ";".join(
        f"{number} {lane.slots} {'|'.join(map(str, lane.cells))} "
        + "/".join(",".join(f"{s.kind} {s.span} {s.peer} {s.buffer} {s.own} {s.place}" for s in r) for r in lane.rounds)
        for phase in schedule.phases
        for number, lane in phase.lanes.items()
    )


def main() -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(them)}" for name, them in hashes().items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
