"""What a schedule costs before it runs: one rank's emission and lowering, and a proof of all ranks.

    python -m benchmarks.emission [--ranks 1024] [--proofs 64] [--json FILE]

Milliseconds of processor time for each registered algorithm, with nodes of 8 ranks; one MiB of float32.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from collectives.algorithms import every
from collectives.contract import contract
from collectives.extents import Bound, chunk_offsets
from collectives.plan import Target, lower
from collectives.plans import CHUNKED, holds
from collectives.verify import verify


def milliseconds(function: Any, *args: Any) -> tuple[float, Any]:
    begin = time.process_time()
    made = function(*args)
    return 1e3 * (time.process_time() - begin), made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--proofs", type=int, default=64, help="ranks of the proofs")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    rows, count = [], 1 << 18
    print(f"{'':34}{f'emit, {options.ranks}':>12}{'lower':>9}{f'prove, {options.proofs}':>12}   ms")
    for a in every():
        p, q = options.ranks, options.proofs
        nodes, few = ([range(i, min(i + 8, n)) for i in range(0, n, 8)] for n in (p, q))
        me = p // 2 + 5 if p > 8 else p - 1
        emitted, schedule = milliseconds(lambda a=a, p=p, me=me, nodes=nodes: a.schedule(range(p), me, nodes=nodes))
        bound = Bound(chunk_offsets(count, p if a.collective in CHUNKED else 1), 16)
        lowered, _ = milliseconds(lower, schedule, Target(4, bound, holds(a.collective, p, me)))
        proved, _ = milliseconds(verify, a.schedules(q, nodes=few), contract(a.collective, q))
        rows.append(
            {"collective": a.collective, "algorithm": a.name, "emit": emitted, "lower": lowered, "prove": proved}
        )
        print(f"{a.collective:15}{a.name:19}{emitted:12.2f}{lowered:9.2f}{proved:12.1f}", flush=True)
    if options.json:
        content = {"ranks": options.ranks, "proof_ranks": options.proofs, "milliseconds": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
