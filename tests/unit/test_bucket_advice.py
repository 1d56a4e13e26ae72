"""DDP's overlap and bucket size: how they are chosen, written into a table, and spoken of."""

import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from collectives.errors import TableError
from collectives.settings import refused
from collectives.tables.advice import BucketAdvice, Measured
from collectives.tables.table import Place, Table, load, parse
from integrations import overlap
from integrations.bucket_advice import faster, signature
from tuner import ddp
from tuner.commands.common import UsageError

PLACE = Place(nodes=1, ranks_per_node=[2], fingerprint="here")


def way(cap, ms, **more):
    times = {"median_ms": ms, "low_ms": ms, "high_ms": ms}
    ratios = {"over_default": ms / 20, "over_default_low": ms / 20, "over_default_high": ms / 20}
    return Measured(bucket_cap_mb=cap, buckets=[1024], **{**times, **ratios, **more})


def advice(*ways, best=1, name="abc"):
    return BucketAdvice(model="train:make", signature=name, best=best, measured=list(ways))


# ---------------------------------------------------------------- in a table
def test_advice_lives_in_a_table(tmp_path):
    there = advice(way(None, 20.0), way(5.0, 15.0, algorithm="ring", params={"segment_bytes": 65536}))
    table = Table(topology=PLACE, rules=[], ddp=[there])
    table.save(tmp_path / "t.json")
    assert load(tmp_path / "t.json").advice("abc") == there
    assert load(tmp_path / "t.json").advice("other") is None
    assert table.digest() != Table(topology=PLACE, rules=[]).digest()


@pytest.mark.parametrize(
    "found, said",
    [
        ([advice(way(None, 20.0), best=1)], "best is 1, and 1 ways were measured"),
        ([advice(way(None, 20.0, low_ms=21.0), best=0)], "median_ms 20.0 does not lie in 21.0 to 20.0"),
        ([advice(way(None, 20.0, over_default_high=float("inf")), best=0)], "not finite"),
        ([advice(way(None, 20.0), way(1.0, 9.0, algorithm="rng"))], "rng"),
        ([advice(way(None, 20.0), best=0)] * 2, "a second advice for signature abc"),
    ],
)
def test_wrong_advice_is_named(found, said):
    with pytest.raises(TableError, match=r"ddp\[\d\] \(train:make\)") as error:
        Table(topology=PLACE, rules=[], ddp=found).check("t.json", refused)
    assert said in str(error.value)


def test_advice_without_a_measured_way_is_an_error():
    raw: dict[str, Any] = {"topology": {"nodes": 1, "ranks_per_node": [2], "fingerprint": "x"}, "rules": []}
    raw["ddp"] = [{"model": "m", "signature": "s", "best": 0, "measured": []}]
    with pytest.raises(TableError, match="measured"):
        parse(json.dumps(raw).encode())


# ---------------------------------------------------------------- what is said
@pytest.mark.parametrize(
    "cap, said",
    [
        (None, "bucket_cap_mb=5 was 25% faster than no bucket_cap_mb for this model: 15 ms a step instead of 20"),
        (50.0, "bucket_cap_mb=5 was 21% faster than bucket_cap_mb=50 for this model: 15 ms a step instead of 19"),
        (7.0, "plain DDP's buckets (bucket_cap_mb=7 was not measured)"),
        (6.0, None),  # as good
    ],
)
def test_a_model_with_other_buckets_is_told(cap, said):
    found = faster(advice(way(None, 20.0), way(5.0, 15.0), way(50.0, 19.0), way(6.0, 15.1)), cap)
    assert said == found or (said is not None and found is not None and said in found)


def test_a_signature_stands_for_what_is_trained():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    assert signature(model) == signature(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert signature(model) != signature(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).double())
    model[0].weight.requires_grad_(False)
    assert signature(model) != signature(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))


# ---------------------------------------------------------------- how the tuner chooses
@pytest.mark.parametrize("mb, found", [(0.5, [1.0]), (1.5, [1.0, 4.0]), (40, [1.0, 4.0, 10.0, 25.0, 50.0])])
def test_bucket_sizes_part_the_model_and_one_does_not(mb, found):
    assert ddp.useful(ddp.CAPS_MB, int(mb * 2**20)) == found


def test_plain_buckets_stay_unless_others_are_faster_beyond_the_noise():
    noise = [1 + 0.2 * (i % 5) for i in range(20)]
    default, same, little, much = (ddp.Way(cap, None, None, None, [f * n for n in noise[cap:] + noise[:cap]])
                                   for cap, f in enumerate((1.0, 1.0, 0.99, 0.5)))  # fmt: skip
    assert ddp.fastest([default, same, little]) is default
    assert ddp.fastest([default, same, much, little]) is much


@pytest.mark.parametrize(
    "name, said",
    [
        ("no_such_module:make", "no_such_module"),
        ("json:nothing", "nothing"),
        ("sys:path", "path is a list, not a function"),
    ],
)
def test_factories_that_are_none_are_named(name, said):
    with pytest.raises(UsageError, match=f"--ddp {name}") as error:
        ddp.factory_of(name)
    assert said in str(error.value)


def test_factories_return_a_model_and_a_batch_or_a_loss():
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    for second in (x, (x,), {"input": x}, lambda wrapped: wrapped(x).sum()):
        found, loss = ddp.made_by(partial(tuple, [model, second]), "a:b")
        assert found is model
        loss(model).backward()
    with pytest.raises(UsageError, match="must return"):
        ddp.made_by(lambda: model, "a:b")


# ---------------------------------------------------------------- overlap
def said(cores, threads):
    return sum(1 << core for core in cores).to_bytes(overlap.MASK_BYTES, "little") + threads.to_bytes(8, "little")


@pytest.mark.parametrize(
    "node, spare",
    [
        ([said(range(2), 1), said(range(2), 1)], 0),  # two ranks on two cores
        ([said(range(4), 1), said(range(4), 1)], 1),
        ([said(range(4), 2), said(range(4), 2)], 0),  # torch's threads have them
        ([said(range(4), 4), said(range(4), 4)], -1),
        ([said([0], 1), said([1], 1)], 0),  # bound to a core each
        ([said([0, 1], 1), said([2, 3], 1)], 1),
        ([said(range(2), 1)] * 4, -1),
        ([said(range(2), 1)], 1),
    ],
)
def test_a_helper_needs_a_core_that_nobody_computes_on(node, spare):
    assert overlap.spare(node) == spare


@pytest.mark.parametrize("helped, verdict", [(0.9, "thread"), (1.1, "inline")])
def test_a_trial_takes_the_faster_way(helped, verdict):
    trial, modes = overlap.Trial(settling=2, each=3), []
    while trial.verdict is None:
        modes.append(trial.mode)
        trial.took(helped if trial.mode == "thread" else 1.0)
    assert modes == ["inline", "inline", *["inline", "thread"] * 3]
    assert trial.mode == trial.verdict == verdict
