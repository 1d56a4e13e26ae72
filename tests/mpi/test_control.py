"""The rings written by hand, which benchmarks/executor.py measures the executor against, compute what it computes."""


def test_rings_by_hand_agree_with_the_executor(mpi):
    done = mpi(3, "control")
    assert done.stdout.count("hand-written rings agree") == 3
