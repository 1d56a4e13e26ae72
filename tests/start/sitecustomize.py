"""Imported by every rank at its start: on SIGUSR2 it writes its threads' Python stacks to a file of its own.

Where a test asks for it, there is no mpi4py.
"""

import faulthandler
import os
import signal
import sys

if folder := os.environ.get("TREERING_TEST_STACKS"):
    # Open as long as the process lives: the handler writes from wherever the process is stuck.
    stacks = open(os.path.join(folder, str(os.getpid())), "w")  # noqa: SIM115
    stacks.write(f"process {os.getpid()}: {' '.join(sys.orig_argv[1:])[:200]}\n")
    stacks.flush()
    faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)

if os.environ.get("TREERING_TEST_NO_MPI"):
    sys.modules["mpi4py"] = None  # type: ignore[assignment] # importing it is an ImportError
