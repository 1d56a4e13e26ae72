"""Programs that tests start under mpiexec, one process a rank: `python -m tests.programs.NAME`."""
