"""torch.distributed over the backend "treering": every call beside what its ranks' inputs say it must give.

Arguments: names of CASES; none of them: all. Each prints `NAME: right` on each rank.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed
import torch.distributed._functional_collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from collectives.errors import CollectiveError, UnsupportedError
from integrations.torch_backend import TreeringGroup
from integrations.torch_fsdp import register
from integrations.torch_launch import init_process_group

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
OPS = {
    "SUM": lambda x: x.sum(0), "PRODUCT": lambda x: x.prod(0), "MIN": lambda x: x.amin(0), "MAX": lambda x: x.amax(0),
    "AVG": lambda x: x.mean(0), "BAND": lambda x: fold(torch.bitwise_and, x),
    "BOR": lambda x: fold(torch.bitwise_or, x), "BXOR": lambda x: fold(torch.bitwise_xor, x),
}  # fmt: skip
dist: Any = torch.distributed  # half of what is called here has no annotations, or others
functional: Any = torch.distributed._functional_collectives
gather_into = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its newer name
reduce_into = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def given(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rank's input: small whole numbers, so that sums are exact."""
    numbers = torch.randint(0, 3, (count,), generator=torch.Generator().manual_seed(100 * rank + count))
    return torch.complex(numbers.float(), numbers.float() + 1) if dtype.is_complex else numbers.to(dtype)


def everybody(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([given(rank, count, dtype) for rank in range(SIZE)])


def fold(op: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    found = x[0]
    for row in x[1:]:
        found = op(found, row)
    return found


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted.to(found.dtype).reshape(found.shape), rtol=0, atol=0)


def refuses(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=words):
        call()


# ---------------------------------------------------------------- cases
def reductions() -> None:
    """Every operation, and every dtype with one or two of them: that all go together is the communicator's own test."""
    for dtype in DTYPES:
        ops = ["SUM"] if dtype.is_complex or dtype.is_floating_point else ["SUM", "BXOR"]
        if dtype in (torch.float32, torch.bool):
            ops = ["SUM", "PRODUCT", "MIN", "MAX"]
        if dtype in (torch.int32, torch.bool):
            ops += ["BAND", "BOR"]
        for name in ops + ["AVG"] * (SIZE == 2 and dtype is torch.complex64):  # exact on two ranks
            x, op = given(RANK, 37, dtype), getattr(dist.ReduceOp, name)
            wanted = OPS[name](everybody(37, dtype)).to(dtype)
            dist.all_reduce(x, op)
            same(x, wanted)
            x = given(RANK, 37, dtype)
            dist.reduce(x, SIZE - 1, op)
            same(x, wanted if RANK == SIZE - 1 else given(RANK, 37, dtype))
            out = torch.empty(4, dtype=dtype)
            reduce_into(out, given(RANK, 4 * SIZE, dtype), op)
            same(out, OPS[name](everybody(4 * SIZE, dtype)).to(dtype)[4 * RANK : 4 * RANK + 4])


def moves() -> None:
    for dtype in (*DTYPES, torch.float8_e4m3fn):
        mine, rows = given(RANK, 12, dtype), everybody(12, dtype)
        x = mine.clone()
        dist.broadcast(x, SIZE - 1)
        same(x.float(), rows[SIZE - 1].float())
        if dtype is torch.float8_e4m3fn:
            continue  # torch compares and stacks too little of it
        outs = [torch.empty(3, 4, dtype=dtype) for _ in range(SIZE)]
        dist.all_gather(outs, mine.view(3, 4))
        same(torch.stack(outs), rows)
        whole = torch.empty(SIZE, 12, dtype=dtype)
        gather_into(whole, mine)
        same(whole, rows)
        outs = [torch.empty(12, dtype=dtype) for _ in range(SIZE)] if RANK == 0 else []
        dist.gather(mine, outs or None, 0)
        assert not outs or torch.equal(torch.stack(outs), rows)
        out = torch.empty(12, dtype=dtype)
        dist.scatter(out, list(rows) if RANK == SIZE - 1 else None, SIZE - 1)
        same(out, rows[RANK])
        out = torch.empty(2 * SIZE, dtype=dtype)
        dist.all_to_all_single(out, given(RANK, 2 * SIZE, dtype))
        same(out, everybody(2 * SIZE, dtype).view(SIZE, SIZE, 2)[:, RANK])
        counts = [[1 + (source + to) % 3 for to in range(SIZE)] for source in range(SIZE)]
        pieces = [everybody(64, dtype)[source].split(counts[source] + [64 - sum(counts[source])]) for source in RANKS]
        wanted = [pieces[source][RANK] for source in RANKS]
        outs = [torch.empty_like(each) for each in wanted]
        dist.all_to_all(outs, list(pieces[RANK][:SIZE]))
        same(torch.cat(outs), torch.cat(wanted))
        out = torch.empty(sum(map(len, wanted)), 1, dtype=dtype)
        mine = torch.cat(pieces[RANK][:SIZE]).unsqueeze(1)
        dist.all_to_all_single(out, mine, [len(each) for each in wanted], counts[RANK])
        same(out, torch.cat(wanted))


def lists_of_several_lengths() -> None:
    outs = [torch.empty(rank + 1) for rank in RANKS]
    dist.all_gather(outs, given(RANK, RANK + 1))
    for rank, out in enumerate(outs):
        same(out, given(rank, rank + 1))
    out = torch.empty(RANK + 1)
    dist.reduce_scatter(out, [given(RANK, rank + 1) for rank in RANKS])
    same(out, everybody(RANK + 1).sum(0))
    out = torch.empty(2, 3)
    dist.reduce_scatter(out, list(given(RANK, 6 * SIZE).view(SIZE, 2, 3)))
    same(out, everybody(6 * SIZE).sum(0).view(SIZE, 6)[RANK])


def layouts() -> None:
    """Tensors that are not contiguous, empty ones, ones that require gradients, outputs inside inputs."""
    base = torch.zeros(4, 6)
    base.t()[:, 1:3].copy_(given(RANK, 12).view(6, 2))
    dist.all_reduce(base.t()[:, 1:3])
    same(base.t()[:, 1:3], everybody(12).sum(0))
    assert not base[0::3].any()
    out = torch.zeros(12, 2 * SIZE)
    gather_into(out[:, ::2].t(), given(RANK, 12).view(3, 4).t())
    same(out[:, ::2].t(), everybody(12).view(SIZE, 3, 4).transpose(1, 2).reshape(SIZE, 12))
    into = torch.zeros(12, 2)
    if RANK == 0:
        dist.send(given(0, 24)[::2], 1)
    elif RANK == 1:
        dist.recv(into[:, 0], 0)
        same(into[:, 0], given(0, 24)[::2])
    for shape in ((0,), (2, 0, 3)):
        dist.all_reduce(torch.empty(shape))
        dist.broadcast(torch.empty(shape), 0)
        gather_into(torch.empty(0), torch.empty(shape))
    parameter = nn.Parameter(given(RANK, 5))
    dist.all_reduce(parameter.data)
    dist.broadcast(parameter, 0)
    same(parameter.data, everybody(5).sum(0))
    whole = given(RANK, 4 * SIZE)
    reduce_into(whole[4 * RANK : 4 * RANK + 4], whole)
    same(whole[4 * RANK : 4 * RANK + 4], everybody(4 * SIZE).sum(0)[4 * RANK : 4 * RANK + 4])
    scalar = torch.tensor(float(RANK))
    dist.all_reduce(scalar, dist.ReduceOp.MAX)
    assert scalar.item() == SIZE - 1


def asynchronous() -> None:
    """Several calls at once, waited for in any order; works and futures."""
    xs = [given(RANK, 10 + 1000 * i) for i in range(6)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    outs = [torch.empty(7) for _ in range(SIZE)]
    works.append(dist.all_gather(outs, given(RANK, 7), async_op=True))
    works.append(dist.barrier(async_op=True))
    for work in reversed(works):
        work.wait()
        assert work.is_success()
    for x in xs:
        same(x, everybody(len(x)).sum(0))
    same(torch.stack(outs), everybody(7))
    x = given(RANK, 9)
    doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), 2 * everybody(9).sum(0))
    y = given(RANK, 9)
    work = dist.all_reduce(y, async_op=True)
    while not work.is_completed():
        pass
    same(work.result()[0], everybody(9).sum(0))
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in (xs := [given(RANK, 5), given(RANK, 6)]):
            dist.all_reduce(x)
    manager.wait()
    outs = [torch.empty(count * SIZE) for count in (5, 6)]
    with dist._coalescing_manager():
        for count, out in zip((5, 6), outs, strict=True):
            gather_into(out, given(RANK, count))
    for count, x, out in zip((5, 6), xs, outs, strict=True):
        same(x, everybody(count).sum(0))
        same(out, everybody(count))


def messages() -> None:
    """Rings of every length at once, tags out of order, any source, long messages before a collective."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (0, 1, 5000, 300_000):
        out = torch.empty(count)
        works = [dist.isend(given(RANK, count), right), dist.irecv(out, left)]
        for work in works:
            work.wait()
        same(out, given(left, count))
    outs = [torch.empty(3), torch.empty(3)]
    works = [dist.isend(given(RANK, 3 + tag)[:3], right, tag=tag) for tag in range(2)]
    works += [dist.irecv(outs[tag], left, tag=tag) for tag in (1, 0)]
    big, came = given(RANK, 200_000), torch.empty(200_000)
    works.append(dist.isend(big, right, tag=7))
    dist.all_reduce(torch.ones(5))  # neither waits for the other
    works.append(dist.irecv(came, left, tag=7))
    for work in works:
        work.wait()
    same(came, given(left, 200_000))
    for tag, out in enumerate(outs):
        same(out, given(left, 3 + tag)[:3])
    out = torch.empty(4)
    if RANK == 0:
        assert sorted(dist.recv(out) for _ in RANKS[1:]) == list(RANKS[1:])
    else:
        dist.send(torch.ones(4), 0)
    dist.barrier()  # what follows is not for any source
    ops = [dist.P2POp(dist.irecv, out, left), dist.P2POp(dist.isend, given(RANK, 4), right)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(out, given(left, 4))
    many = [dist.isend(torch.tensor([i]), right) for i in range(600)]  # more than a socket holds
    one = torch.empty(1, dtype=torch.int64)
    for i in range(600):
        dist.recv(one, left)
        assert one.item() == i
    for work in many:
        work.wait()


def objects() -> None:
    found: list[object] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "text": "x" * 1000 * RANK})
    assert found == [{"rank": rank, "text": "x" * 1000 * rank} for rank in RANKS]
    said = [RANK, {"from": RANK}]
    dist.broadcast_object_list(said, src=SIZE - 1)
    assert said == [SIZE - 1, {"from": SIZE - 1}]
    dist.gather_object(RANK, found if RANK == 0 else None, 0)
    mine: list[object] = [None]
    dist.scatter_object_list(mine, [f"for {rank}" for rank in RANKS] if RANK == 0 else None, 0)
    assert mine == [f"for {RANK}"]
    assert RANK or found == list(RANKS)


def groups() -> None:
    """Sub-groups, alone and beside each other; meshes, and what is built on them."""
    last = dist.new_group([SIZE - 1, 0])  # torch sorts them
    if RANK in (0, SIZE - 1):
        x = torch.tensor([RANK])
        dist.all_reduce(x, group=last)
        assert x.item() == SIZE - 1
        dist.broadcast(x.fill_(RANK), 0, group=last)
        assert x.item() == 0
        assert isinstance(last, TreeringGroup)
    alone = dist.new_group([RANK], use_local_synchronization=True)
    dist.all_reduce(torch.ones(3), group=alone)
    again = dist.new_group(timeout=dist.default_pg_timeout)
    works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for group in (again, None)]
    for work in reversed(works):
        work.wait()
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("rows", "columns"))
    assert mesh["columns"].get_group().size() == SIZE
    whole = torch.arange(4.0 * SIZE).view(2 * SIZE, 2)
    shared = distribute_tensor(whole, mesh["columns"], [Shard(0)])
    same(shared.redistribute(placements=[Replicate()]).to_local(), whole)
    total: Any = shared.sum()
    same(total.full_tensor(), whole.sum())
    dist.destroy_process_group(again)


def compiled_functions() -> None:
    """torch's functional collectives, which call from C++."""
    world, sums = dist.group.WORLD, everybody(4).sum(0)
    same(functional.all_reduce(given(RANK, 4), "sum", world), sums)
    same(functional.broadcast(given(RANK, 4), 0, world), given(0, 4))
    same(functional.all_to_all_single(given(RANK, SIZE), None, None, world), everybody(SIZE)[:, RANK])
    for found in functional.all_reduce_coalesced([given(RANK, 4), given(RANK, 4)], "sum", world):
        same(found, sums)
    native = torch.ops._c10d_functional
    name, wait = world.group_name, native.wait_tensor
    same(wait(native.all_gather_into_tensor(given(RANK, 4), SIZE, name)), everybody(4))
    wanted = everybody(4 * SIZE).sum(0)[4 * RANK : 4 * RANK + 4]
    same(wait(native.reduce_scatter_tensor(given(RANK, 4 * SIZE), "sum", SIZE, name)), wanted)


def training() -> None:
    """DDP, with and without a hook of the user's, and FSDP2, over ours and over Gloo with our collectives."""

    def model() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    torch.manual_seed(1)
    data = torch.randn(4 * SIZE, 6, dtype=torch.float64)
    alone = model().eval()
    alone(data).square().mean().backward()
    ddp = DistributedDataParallel(model().eval(), bucket_cap_mb=1e-4)
    hooked = DistributedDataParallel(model().eval())
    hooked.register_comm_hook(None, user_hook)
    sharded = model().eval()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    gloo = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
    served = model().eval()
    fully_shard(served, mesh=gloo)
    register(served)
    for trained in (ddp, hooked, sharded, served):
        for _ in range(3):
            trained.zero_grad()
            trained(data[4 * RANK : 4 * RANK + 4]).square().mean().backward()
        for one, other in zip(alone.parameters(), trained.parameters(), strict=True):
            found = other.grad.full_tensor() if hasattr(other.grad, "full_tensor") else other.grad
            torch.testing.assert_close(found, one.grad)


def user_hook(state: None, bucket) -> torch.futures.Future[Tensor]:
    """Waits within the backward pass, which may wait for nobody else."""
    future = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def errors() -> None:
    """Refused before anything is sent, so that the group goes on."""
    meta, sparse = torch.empty(2, device="meta"), torch.eye(2).to_sparse()
    refuses(UnsupportedError, "only CPU memory", lambda: dist.all_reduce(meta))
    refuses(UnsupportedError, "only CPU memory", lambda: dist.broadcast(meta, 0))
    refuses(TypeError, "dense", lambda: dist.all_reduce(sparse))
    refuses(TypeError, "avg", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG))
    refuses(TypeError, "booleans", lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG))
    refuses(ValueError, "equal parts", lambda: gather_into(torch.empty(SIZE + 1), torch.ones(1)))
    refuses(ValueError, "entries", lambda: dist.all_gather([torch.empty(1)] * (SIZE + 1), torch.ones(1)))
    splits = [1] * (SIZE - 1) + [5]
    refuses(ValueError, "add up", lambda: dist.all_to_all_single(torch.ones(SIZE), torch.ones(SIZE), splits, splits))
    expanded = torch.ones(1).expand(4)
    refuses(ValueError, "expanded", lambda: dist.all_reduce(expanded))
    refuses(UnsupportedError, "serves the CPU", lambda: dist.group.WORLD._get_backend(torch.device("cuda")))
    if RANK == 0:
        dist.send(torch.ones(3), 1)
    elif RANK == 1:
        refuses(CollectiveError, "12 bytes came|longer than", lambda: dist.recv(torch.empty(2), 0))
    dist.all_reduce(torch.ones(1))


CASES = (
    reductions, moves, lists_of_several_lengths, layouts, asynchronous, messages, objects, groups, compiled_functions,
    training, errors,
)  # fmt: skip


def run(names: Iterable[str]) -> None:
    for case in CASES:
        if not names or case.__name__ in names:
            case()
            print(f"{case.__name__}: right", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    init_process_group("treering", timeout=60)
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    RANKS = range(SIZE)
    run(sys.argv[1:])
    dist.destroy_process_group()
    print("left in order", flush=True)
