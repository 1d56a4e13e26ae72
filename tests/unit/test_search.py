"""The search on times that are drawn, not measured: it finds what is faster, keeps the default where nothing is."""

import random
from time import sleep
from typing import Any

import pytest

from collectives.tables.table import Table
from tuner.clock import Clock
from tuner.decision import Constraints, Measured, decide, price
from tuner.measure import Outcome, Stopped
from tuner.objective import OBJECTIVES
from tuner.rules import border, place_of, rules_of, table_of
from tuner.search import Search, Study
from tuner.space import BASELINE, Candidate, candidate, space

NODES = [[0, 1, 2, 3]]
DEFAULT = Candidate("recursive_doubling")
RING = candidate("ring", {"segment_bytes": 65536, "slots": 3})


class Machine:
    """A session whose times come from a function of (candidate, bytes), with noise, drift and outliers."""

    def __init__(self, us, noise=0.05, seed=0, failing=()):
        self.us, self.noise, self.rng, self.failing = us, noise, random.Random(seed), failing
        self.jobs, self.measured, self.interrupt_after, self.break_after = 0, [], None, None

    def measure(self, job):
        self.jobs += 1
        if self.jobs == self.break_after:
            raise Stopped("ring broke the communicator")
        sleep(0.0005)
        wanted = [Candidate(name, tuple(sorted(params.items()))) for name, params in job.candidates]
        running = [each for each in wanted if each.algorithm not in self.failing]
        looks = {each: self.us(each, job.nbytes) for each in running}
        if job.hopeless:
            running = [each for each in running if looks[each] <= job.hopeless * looks[running[0]]]
        times: dict[Candidate, list[float]] = {each: [] for each in running}
        for _ in range(job.blocks):
            drift = 1 + 0.5 * (self.jobs % 7)
            for each in running:
                hiccup = 30 if self.rng.random() < 0.02 else 1
                times[each].append(looks[each] * drift * hiccup * self.rng.lognormvariate(0, self.noise))
            self.measured += running
        return Outcome(
            times=times,
            looks=looks,
            faults={each: "rank 1: no" for each in wanted if each not in looks},
            block_seconds=0.0005 / max(1, job.blocks),
            interrupted=self.jobs == self.interrupt_after,
            wrong={},
        )


def tune(machine, sizes, budget=60.0, storage=None, **options):
    measured = [Measured(nbytes, DEFAULT, baseline=True) for nbytes in sizes]
    spaces = [space("allreduce", NODES, nbytes) for nbytes in sizes]
    studies = [Study(each, f"{n}", storage, n) for each, n in zip(spaces, sizes, strict=True)]
    search = Search(machine, "allreduce", "float32", "sum", Clock(budget), 0, **options)
    return search.run(measured, studies), measured, studies


def latency_then_bandwidth(each, nbytes):
    """Recursive doubling wins up to 64 KiB, one pipelined ring beyond; others are a little or far behind."""
    if each == BASELINE:
        return 5 + nbytes / 500
    if each == DEFAULT:
        return 2 + nbytes / 1000
    if each.algorithm == "ring" and each.items:
        return (30 + nbytes / 3000) * (1 if each == RING else 1.15)
    return (3 if each.algorithm != "binomial_tree" else 20) * (2 + nbytes / 1000)


def test_the_faster_candidate_wins_where_it_is_faster():
    sizes = [8, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22]
    ended, measured, _ = tune(Machine(latency_then_bandwidth), sizes)
    assert ended is None
    assert [size.winner for size in measured[:3]] == [DEFAULT] * 3
    assert [size.winner for size in measured[4:]] == [RING] * 2
    assert all(BASELINE in size.race for size in measured)
    rules = rules_of("allreduce", "float32", "sum", measured)
    assert rules[0].algorithm == "recursive_doubling"
    assert (rules[-1].algorithm, rules[-1].params, rules[-1].max_bytes) == ("ring", RING.params, None)
    assert rules[-1].measured_bytes == 1 << 22
    times = [us or 0.0 for us in (rules[-1].low_us, rules[-1].median_us, rules[-1].high_us)]
    assert times == sorted(times)
    assert times[0] > 0


def test_equal_candidates_leave_the_default():
    sizes = [2 ** (3 + k) for k in range(12)]
    replaced = 0
    for seed in range(8):
        _, measured, _ = tune(Machine(lambda *_: 10.0, noise=0.2, seed=seed), sizes, budget=0.4)
        replaced += sum(size.winner != DEFAULT for size in measured)
    assert replaced <= 5  # of 96


def test_ties_go_to_the_neighbours_winner_then_to_the_simpler():
    reference = [10 + 0.01 * k for k in range(30)]

    def size(native_serves=False, **faster):
        asked = Constraints(allow_native=native_serves)
        made = Measured(1 << 20, DEFAULT, baseline=False, asked=asked, race={DEFAULT: reference})
        for each, gain in faster.items():
            made.race[candidate(each) if each != "cut" else RING] = [us * gain for us in reference]
        return made

    def winner(made):
        decide([made])
        return made.winner

    assert winner(size(ring=0.99)) == DEFAULT  # too little to count
    assert winner(size(ring=0.9)) == Candidate("ring")
    assert winner(size(ring=0.9, cut=0.899)) == Candidate("ring")
    run = [size(ring=0.8, cut=0.79), size(cut=0.8, two_shot=0.81), size(cut=0.7), size(two_shot=0.7), size()]
    decide(run)
    assert [each.winner for each in run] == [RING, RING, RING, Candidate("two_shot"), DEFAULT]
    assert winner(size(ring=0.9, cut=0.8)) == RING
    assert winner(size(ring=0.9, native=0.5)) == Candidate("ring")
    assert winner(size(native_serves=True, ring=0.9, native=0.5)) == BASELINE
    assert winner(Measured(8, DEFAULT, baseline=False)) == DEFAULT


def test_a_candidate_that_is_faster_but_for_its_outliers_wins_by_the_median_alone():
    reference = [10 + 0.01 * k for k in range(200)]
    often = [us * (4 if k % 10 == 0 else 0.8) for k, us in enumerate(reference)]

    def winner(objective):
        made = Measured(8, DEFAULT, False, asked=Constraints(OBJECTIVES[objective]))
        made.race = {
            DEFAULT: reference,
            Candidate("ring"): often,
            Candidate("two_shot"): [us * 0.9 for us in reference],
        }
        decide([made])
        (rule,) = rules_of("allreduce", "float32", "sum", [made])
        assert rule.runner_up is not None
        assert rule.runner_up.over_best is not None
        assert rule.runner_up.over_best[1] > 1
        return rule.algorithm

    assert winner("median") == "ring"
    assert winner("p95") == "two_shot"


def test_conditions_keep_candidates_from_serving_and_their_price_is_measured():
    def us(each, nbytes):
        return 100 * {"ring": 0.5, "two_shot": 0.8}.get(each.algorithm, 1.0)

    asked = Constraints(in_order=lambda each: each.algorithm != "ring")
    machine: Any = Machine(us)
    sizes = [Measured(nbytes, Candidate("one_shot"), baseline=True, asked=asked) for nbytes in (8, 1 << 20)]
    spaces = [space("allreduce", NODES, size.nbytes, deterministic=True) for size in sizes]
    studies = [Study(each, f"{k}", None, k) for k, each in enumerate(spaces)]
    search = Search(
        machine, "allreduce", "float32", "sum", Clock(3.0), 0, asked=asked,
        free=lambda nbytes: space("allreduce", NODES, nbytes),
    )  # fmt: skip
    assert search.run(sizes, studies) is None
    assert {size.winner.algorithm for size in sizes if size.winner} == {"two_shot"}
    assert {best.algorithm for size in sizes if (best := size.freest())} == {"ring"}
    assert price(sizes) == pytest.approx(1.6, rel=0.05)
    for size in sizes:
        (rule,) = rules_of("allreduce", "float32", "sum", [size])
        assert rule.runner_up is not None
        assert rule.runner_up.algorithm != "ring"


def test_what_fails_is_left_out_and_what_is_hopeless_is_not_measured_again():
    machine = Machine(latency_then_bandwidth, failing=("two_shot",))
    _, (size,), _ = tune(machine, [1 << 20], trials=30)
    assert {each.algorithm for each in size.faults} == {"two_shot"}
    assert not any(each.algorithm == "two_shot" for each in size.race)
    assert not any(each.algorithm == "binomial_tree" for each in machine.measured)


def test_trials_are_limited_and_repeat_with_a_seed():
    seen = []
    for noise in (0.05, 0.3):
        _, (size,), (study,) = tune(Machine(latency_then_bandwidth, noise=noise), [1 << 20], trials=11)
        assert len(study.study.trials) >= 11
        seen.append([trial.params for trial in study.study.trials if trial.params][:11])
        assert len(size.ratios) <= 12
    assert seen[0] == seen[1]


def test_finished_trials_are_not_measured_again(tmp_path):
    storage = f"sqlite:///{tmp_path}/t.db"
    _, _, (first,) = tune(Machine(latency_then_bandwidth), [1024], storage=storage)
    assert len(first.known) == len(first.possible)
    machine = Machine(latency_then_bandwidth)
    _, (size,), (second,) = tune(machine, [1024], storage=storage)
    assert second.resumed == len(first.possible)
    assert size.ratios.keys() >= first.possible
    assert set(machine.measured) < first.possible | {BASELINE}  # the race alone
    assert size.winner == DEFAULT


def test_a_trial_of_a_process_that_has_ended_is_given_up_and_one_that_lives_is_not(tmp_path):
    storage = f"sqlite:///{tmp_path}/t.db"
    study = Study(space("allreduce", NODES, 1024), "x", storage, 0)
    study.enqueue([DEFAULT, Candidate("ring")])
    dead, candidate_of_dead = study.ask()
    dead.set_user_attr("owner", dead.user_attrs["owner"].rpartition(":")[0] + ":999999999")
    study.ask()
    again = Study(space("allreduce", NODES, 1024), "x", storage, 0)
    assert [trial.state.name for trial in again.study.trials] == ["FAIL", "RUNNING"]
    again.enqueue([candidate_of_dead])
    assert again.ask()[1] == candidate_of_dead


@pytest.mark.parametrize("after", [1, 3, 10])
def test_an_interrupt_or_a_failure_keeps_what_was_measured(after):
    for how, said in (("interrupt_after", "interrupted"), ("break_after", "ring broke the communicator")):
        machine = Machine(latency_then_bandwidth)
        setattr(machine, how, after)
        ended, measured, _ = tune(machine, [8, 1 << 20])
        assert ended == said
        assert machine.jobs == after
        assert all(size.winner is not None for size in measured)
        assert rules_of("allreduce", "float32", "sum", measured)[-1].max_bytes is None


def test_no_time_leaves_the_default_without_times():
    ended, measured, _ = tune(Machine(latency_then_bandwidth), [8, 64], budget=1e-9)
    assert ended is None
    (rule,) = rules_of("allreduce", "float32", "sum", measured)
    assert (rule.algorithm, rule.median_us, rule.min_bytes, rule.max_bytes) == ("recursive_doubling", None, 0, None)


# Rules


class Topology:
    nodes, ranks_per_node, links = ((0, 1),), (2,), ("shared-memory",)
    cpu, mpi, network, device, fingerprint = "C", "M", "", None, "1x2"


def test_symmetric_memory_asks_whether_one_pass_is_better_there():
    one_pass = Candidate("one_pass")
    machine: Any = Machine(lambda candidate, nbytes: nbytes / 10 if candidate == one_pass else 50)
    sizes = [Measured(nbytes, DEFAULT, baseline=True) for nbytes in (64, 4096, 8192)]
    decide(sizes)
    search = Search(machine, "allreduce", "float32", "sum", Clock(0.5), 0)
    found = search.run_symmetric(sizes)
    assert search.ended is None
    assert [size.winner for size in found] == [one_pass, DEFAULT, DEFAULT]
    rules = rules_of("allreduce", "float32", "sum", found)
    assert [(rule.storage, rule.algorithm) for rule in rules] == [
        ("symmetric", "one_pass"),
        ("symmetric", DEFAULT.algorithm),
    ]
    assert set(machine.measured) == {one_pass, DEFAULT, BASELINE}


def test_borders_lie_between_the_sizes():
    assert border(4096, 8192) == 5792
    assert border(8, 16) == 11
    assert border(8, 9) == 8
    assert border(0, 8) == 0
    for low, high in ((1, 2), (63, 64), (1000, 1001), (1 << 20, 1 << 30)):
        assert low <= border(low, high) < high


def test_a_new_table_keeps_an_earlier_ones_other_rules():
    size = Measured(8, DEFAULT, baseline=False)
    decide([size])
    floats = rules_of("allreduce", "float32", "sum", [size])
    moved = rules_of("broadcast", "float64", "max", [size])
    assert moved[0].key == ("broadcast", "any", "any", "ordinary")
    first = table_of(Topology, "1", "s", floats, None)
    both = table_of(Topology, "1", "s", moved, first)
    assert [rule.collective for rule in both.rules] == ["allreduce", "broadcast"]
    assert table_of(Topology, "1", "s", floats, both).rules == both.rules
    elsewhere = Table(topology=place_of(Topology), rules=moved)
    elsewhere.topology = type(elsewhere.topology)(nodes=1, ranks_per_node=[2], fingerprint="other")
    assert table_of(Topology, "1", "s", floats, elsewhere).rules == floats
