"""Start a program as ranks of one node, as no MPI launcher would: python -m tests.programs.spawn RANKS PROGRAM...

Ranks that live on when another has died are left to end by themselves. Exit status 1 if any rank's is not 0.
"""

import os
import subprocess
import sys
import tempfile

if __name__ == "__main__":
    size = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        common = {"WORLD_SIZE": str(size), "TREERING_TEST_STORE": f"{folder}/store", "TREERING_TEST_NO_MPI": "1"}
        ranks = [
            subprocess.Popen([sys.executable, *sys.argv[2:]], env={**os.environ, **common, "RANK": str(rank)})
            for rank in range(size)
        ]
        statuses = [rank.wait() for rank in ranks]  # of all, whatever those of the first
        sys.exit(any(statuses))
