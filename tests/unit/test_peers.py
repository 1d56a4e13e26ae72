"""The benchmark beside other libraries: what it makes of its figures, and what a rank does that needs no other."""

import json
import sys
import threading
from pathlib import Path
from time import perf_counter_ns, sleep

import pytest

from benchmarks import peers, peers_plot
from benchmarks.peers_plot import Row
from benchmarks.start import Start
from tuner.statistics import Interval


def launch_of(library, nbytes=1024, *, ours=1.0, theirs=2.0, dtype="float32", collective="allreduce", **more):
    """What a launch finds, with as many repetitions as there are factors; the pairs' ratio is ours/theirs."""
    factors = (1.0, 5.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0, 1.0)
    times = {"treering": ours, "library": theirs, "copy": 0.5, **more}
    case = {
        "collective": collective, "dtype": dtype, "bytes": nbytes, "faults": {}, "start_skew_ns": 20,
        "times": {name: [us * factor for factor in factors] for name, us in times.items()},
        "choices": {"treering": "one_shot"},
    }  # fmt: skip
    return {"library": library, "version": f"{library} 1", "cases": [case]}


def met(found, ranks=2):
    return {goal.what: goal.met for goal in peers_plot.goals(found, ranks)}


def test_each_library_is_compared_within_its_own_launches():
    (row,) = peers_plot.rows([
        launch_of("mpich", ours=4.0, theirs=8.0),  # a launch in a slow minute
        launch_of("openmpi", ours=1.0, theirs=1.25),
        launch_of("mpich", ours=1.0, theirs=2.0),
    ])  # fmt: skip
    assert row.ratios["treering"]["mpich"].median == pytest.approx(0.5)
    library, ratio = row.best("treering") or ("", Interval(0, 0, 0))
    assert library == "openmpi"
    assert ratio.median == pytest.approx(0.8)
    assert row.by_launch["treering"]["mpich"] == [0.5, 0.5]
    assert row.ratios["treering"]["copy"].median == pytest.approx(2.0)
    assert row.choices == {"treering": ["one_shot"]}


def test_gloo_is_compared_by_medians_since_it_is_timed_apart():
    launches = [launch_of("mpich", ours=ours, gloo=gloo) for ours, gloo in ((1.0, 50.0), (2.0, 100.0), (1.0, 20.0))]
    launches[0]["cases"][0]["times"]["gloo"] = [50.0, 50.0]  # not as often as the others
    (row,) = peers_plot.rows(launches)
    assert row.ratios["treering"]["gloo"].median == pytest.approx(1 / 50)


def test_what_no_library_has_is_timed_without_one():
    launch = launch_of("mpich", dtype="bfloat16", gloo=100.0)
    del launch["cases"][0]["times"]["library"]
    found = peers_plot.rows([launch])
    assert found[0].best("treering") is None
    assert set(met(found)) == {"treering, allreduce of bfloat16, 50 times as fast as Gloo up to 16 KiB"}
    assert "-" in peers_plot.table(found).splitlines()[-1].split()


def test_slower_than_any_library_is_slower_even_where_another_one_is_worse_but_less_certain():
    row = Row("allreduce", "float32", 8)
    row.us["treering"] = Interval(1, 1, 1)
    row.ratios["treering"] = {"mpich": Interval(1.3, 0.9, 2.0), "openmpi": Interval(1.1, 1.06, 1.2)}
    never, _ = peers_plot.goals([row], 2)
    assert not never.met
    assert "slower at 8 B (openmpi" in never.found
    assert "perhaps at 8 B (mpich" in never.found
    row.ratios["treering"]["openmpi"] = Interval(1.1, 1.04, 1.2)
    never, _ = peers_plot.goals([row], 2)
    assert never.met


@pytest.mark.parametrize(
    "ranks, theirs, reached", [(2, 1.24, False), (2, 1.26, True), (4, 1.26, False), (4, 1.31, True)]
)
def test_geometric_mean(ranks, theirs, reached):
    found = peers_plot.rows([launch_of("mpich", 8, theirs=theirs / 4), launch_of("mpich", 16, theirs=theirs * 4)])
    (mean,) = (goal.met for goal in peers_plot.goals(found, ranks) if "geometric" in goal.what)
    assert mean is reached


def test_goals_beside_gloo_and_a_copy_hold_at_their_sizes():
    speeds = {8: 51, 16 << 10: 49, 32 << 10: 1, 64 << 10: 20.1, 1 << 20: 6.1, 64 << 20: 3.9}
    found = peers_plot.rows(
        launch_of("mpich", n, gloo=speed, copy=1 / 1.3 if n == 64 << 20 else 1.0) for n, speed in speeds.items()
    )
    said = met(found, ranks=3)
    assert {what.partition("times as fast as Gloo ")[2]: got for what, got in said.items() if "Gloo" in what} == {
        "up to 16 KiB": False, "at 64 KiB": True, "at 1 MiB": True, "at 64 MiB": False,
    }  # fmt: skip
    assert {what: got for what, got in said.items() if "copies" in what} == {
        "treering, allreduce, at most 1.2 plain copies at 64 MiB": False
    }
    assert not any("geometric" in what for what in said)  # nothing is promised for three ranks


def test_table_and_files(tmp_path, capsys):
    launches = [launch_of("mpich", n, ours=n / 8, theirs=n / 4, tuned=n / 16) for n in (8, 64, 4096)]
    context = {**peers_plot.machine(), "ranks": 2, "libraries": {"mpich": "MPICH 5"}}
    into, drawing = tmp_path / "peers.json", tmp_path / "peers.png"
    assert peers_plot.give(context, launches, [], into, drawing) == 0
    said = capsys.readouterr().out
    assert "4 KiB" in said
    assert "0.500 [0.500, 0.500] mpich" in said
    assert "0.250 [0.250, 0.250] mpich" in said
    content = json.loads(into.read_text())
    assert [row["us"]["mpich"]["median"] for row in content["rows"]] == [2.0, 16.0, 1024.0]
    assert content["geometric_means"][1] == {
        "ours": "tuned", "collective": "allreduce", "dtype": "float32", "ratio": pytest.approx(0.25),
    }  # fmt: skip
    assert drawing.read_bytes().startswith(b"\x89PNG")


def test_a_contender_that_was_wrong_fails_the_command(capsys):
    launch = launch_of("mpich")
    launch["cases"][0]["faults"]["library"] = "rank 1: ArithmeticError: its result is wrong"
    assert peers_plot.give({**peers_plot.machine(), "ranks": 2, "libraries": {}}, [launch], [], None, None) == 1
    assert "FAILED   mpich, allreduce of float32, 1 KiB, on mpich: rank 1" in capsys.readouterr().out
    assert peers_plot.give({**peers_plot.machine(), "ranks": 2, "libraries": {}}, [], [], None, None) == 1


def test_all_begin_once_the_last_one_has_come():
    size, turns = 3, 4
    board = memoryview(bytearray(64 * size)).cast("q")
    starts = [Start(board, rank, size, crowded=True) for rank in range(size)]
    came, began = ([[0] * turns for _ in range(size)] for _ in range(2))

    def run(rank):
        for turn in range(turns):
            if turn % size == rank:
                sleep(0.02)
            came[rank][turn] = perf_counter_ns()
            began[rank][turn] = starts[rank]()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for turn in range(turns):
        assert min(each[turn] for each in began) >= max(each[turn] for each in came)


@pytest.mark.parametrize("dtype", peers.ITEMSIZE)
@pytest.mark.parametrize("collective", peers.COLLECTIVES)
@pytest.mark.parametrize("rank", [0, 2])
def test_results_are_checked_to_the_bit(collective, dtype, rank):
    torch = pytest.importorskip("torch")
    size, count = 3, 1000
    message = peers.Message((collective, dtype, count * peers.ITEMSIZE[dtype]), rank, size)
    inputs = [peers.Message((collective, dtype, message.nbytes), each, size) for each in range(size)]
    for each in inputs:
        each.is_wrong(lambda: None)  # leaves its input as it was given
    given = [each.x.double() for each in inputs]
    total = torch.cat(given) if collective == "allgather" else torch.stack(given).sum(0)
    right = {"broadcast": inputs[0].x, "reduce": inputs[rank].x if rank else total}.get(collective, total)[message.made]
    made = message.x if message.out is None else message.out

    def call():
        made.copy_(right)

    def off_by_one_place():
        made.copy_(right)
        made[-1] += 1

    assert not message.is_wrong(call)
    assert message.is_wrong(off_by_one_place)
    nothing_is_to_be_done = (collective == "broadcast" and not rank) or (collective == "reduce" and rank)
    assert message.is_wrong(lambda: None) == (not nothing_is_to_be_done)


@pytest.mark.parametrize("flags, said", [
    (["--collectives", "allreduce,alltoall"], "alltoall: there are allreduce"),
    (["--libraries", "lam"], "lam: there are mpich"),
    (["--sizes", "6"], "a whole number of elements"),
])  # fmt: skip
def test_wrong_use(flags, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers", *flags])
    with pytest.raises(SystemExit) as stopped:
        peers.main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_library_without_environment_is_left_out_and_the_mend_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["peers", "--libraries", "openmpi", "--sizes", "8"])
    monkeypatch.setattr(peers, "PYTHON", str(tmp_path / "{}" / "bin" / "python"))
    assert peers.main() == 1
    assert "make openmpi" in capsys.readouterr().err


def test_a_launch_that_fails_says_its_last_words(tmp_path):
    program = [sys.executable, "-c", "print('no room'); raise SystemExit(3)"]
    with pytest.raises(ChildProcessError, match=r"(?s)exit status 3.*no room"):
        peers.finished(program, 60, Path(tmp_path) / "said.txt")
    with pytest.raises(ChildProcessError, match="killed after"):
        peers.finished([sys.executable, "-c", "import time; time.sleep(60)"], 0.2, Path(tmp_path) / "said.txt")
