"""What PyTorch's own tests ask of a backend, beyond `backend`: layouts, roots, splits, groups, autograd, DDP.

Each case prints `NAME: right` on each rank.
"""

import copy
import gc
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from collectives.errors import CollectiveTimeout, CommunicatorBroken, UnsupportedError
from integrations.torch_launch import init_process_group
from tests.programs.backend import functional, gather_into, given, reduce_into, refuses, same

dist: Any = torch.distributed  # half of what is called here has no annotations, or others
with_gradients: Any = torch.distributed.nn.functional


def rows(count: int) -> Tensor:
    """Everybody's inputs."""
    return torch.stack([given(rank, count) for rank in RANKS])


def strided(count: int) -> Tensor:
    """Room for `count` elements with others between them, which nobody may touch."""
    return torch.full((count, 3), -1.0)[:, 1]


def untouched(*tensors: Tensor) -> None:
    for each in tensors:
        around = each._base
        assert around is not None
        assert bool((around[:, ::2] == -1).all())


# ---------------------------------------------------------------- cases
def every_call_on_strided_memory() -> None:
    mine, whole, all_of_it = strided(4), strided(4 * SIZE), rows(4)
    parts = [strided(4) for _ in RANKS]
    mine.copy_(given(RANK, 4))
    dist.all_gather(parts, mine)
    same(torch.stack(parts), all_of_it)
    gather_into(whole, mine)
    same(whole, all_of_it)
    out = strided(4)
    reduce_into(out, whole)
    same(out, SIZE * all_of_it[RANK])
    dist.reduce_scatter(out, parts)
    same(out, SIZE * all_of_it[RANK])
    dist.all_to_all(parts, [mine] * SIZE)
    same(torch.stack(parts), all_of_it)
    into = strided(4 * SIZE)
    dist.all_to_all_single(into, whole)
    same(into, all_of_it[RANK].repeat(SIZE))
    dist.gather(mine, parts if RANK == 0 else None)
    dist.scatter(out, parts if RANK == 0 else None)
    same(out, all_of_it[RANK])
    dist.reduce(out, 0)
    same(out, all_of_it.sum(0) if RANK == 0 else all_of_it[RANK])
    dist.broadcast(out, 0)
    same(out, all_of_it.sum(0))
    untouched(mine, whole, out, into, *parts)
    image = given(RANK, 120).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    dist.all_reduce(image)
    same(image, rows(120).sum(0))
    assert image.is_contiguous(memory_format=torch.channels_last)


def every_root() -> None:
    for root in RANKS:
        x = given(RANK, 5)
        dist.broadcast(x, root)
        same(x, given(root, 5))
        x = given(RANK, 5)
        dist.reduce(x, root)
        same(x, rows(5).sum(0) if root == RANK else given(RANK, 5))
        parts = [torch.empty(5) for _ in RANKS] if root == RANK else None
        dist.gather(given(RANK, 5), parts, root)
        assert parts is None or torch.equal(torch.stack(parts), rows(5))
        dist.scatter(x, list(rows(5)) if root == RANK else None, root, async_op=True).wait()
        same(x, given(RANK, 5))


def splits_of_nothing() -> None:
    """Rank r sends s rows to rank s, so that rank 0 gets none; then everything goes to the last rank."""
    mine = torch.full((sum(RANKS), 2), float(RANK))
    out = torch.empty(RANK * SIZE, 2)
    dist.all_to_all_single(out, mine, [RANK] * SIZE, list(RANKS), async_op=True).wait()
    same(out, torch.arange(float(SIZE)).repeat_interleave(RANK)[:, None].expand(-1, 2))
    last = RANK == SIZE - 1
    out = torch.empty(3 * SIZE if last else 0)
    dist.all_to_all_single(out, given(RANK, 3), [3] * SIZE if last else [0] * SIZE, [0] * (SIZE - 1) + [3])
    assert not last or torch.equal(out.view(SIZE, 3), rows(3))
    dist.all_to_all_single(torch.empty(0, 4), torch.empty(0, 4))


def lists_at_once() -> None:
    xs = [given(RANK, count) for count in (3, 0, 1000)]
    dist.all_reduce_coalesced(xs)
    for x, count in zip(xs, (3, 0, 1000), strict=True):
        same(x, rows(count).sum(0))
    outs = [[torch.empty(count) for count in (3, 1000)] for _ in RANKS]
    dist.all_gather_coalesced(outs, [given(RANK, 3), given(RANK, 1000)])
    for rank in RANKS:
        same(torch.cat(outs[rank]), torch.cat([given(rank, 3), given(rank, 1000)]))
    xs = [given(RANK, 10), given(RANK, 300).double(), given(RANK, 7)]
    dist._broadcast_coalesced(dist.group.WORLD, xs, 1 << 10, SIZE - 1)
    for x in xs:
        same(x, given(SIZE - 1, len(x)))
    with dist._coalescing_manager():
        outs_of_parts = [torch.empty(2) for _ in range(2)]
        for out in outs_of_parts:
            reduce_into(out, given(RANK, 2 * SIZE))
    for out in outs_of_parts:
        same(out, rows(2 * SIZE).sum(0)[2 * RANK : 2 * RANK + 2])


def in_groups() -> None:
    """Calls and messages of some ranks, named by their number in the group or in the world."""
    odd, _ = dist.new_subgroups_by_enumeration([[0], [1, 2]]) if SIZE == 3 else (dist.group.WORLD, None)
    members = dist.get_process_group_ranks(odd)
    mine = [rank for rank in RANKS if rank in members]
    parts = [torch.empty(2) for _ in mine]
    dist.all_gather(parts, given(RANK, 2), group=odd)
    same(torch.stack(parts), torch.stack([given(rank, 2) for rank in mine]))
    x = given(RANK, 2)
    dist.broadcast(x, group_src=len(mine) - 1, group=odd)
    same(x, given(mine[-1], 2))
    out = torch.empty(1)
    reduce_into(out, given(RANK, len(mine)), group=odd)
    same(out, torch.stack([given(rank, len(mine)) for rank in mine]).sum(0)[mine.index(RANK)])
    if len(mine) > 1:
        if mine[0] == RANK:
            dist.send(torch.tensor([5.0]), mine[1], group=odd)
            dist.send_object_list(["a", {"b": 1}], mine[1], group=odd)
        elif mine[1] == RANK:
            dist.recv(out, group_src=0, group=odd)
            said: list[Any] = [None, None]
            dist.recv_object_list(said, mine[0], group=odd)
            assert (out.item(), said) == (5.0, ["a", {"b": 1}])
    found: list[Any] = [None] * len(mine)
    dist.all_gather_object(found, RANK, group=odd)
    assert found == mine
    dist.barrier(odd, async_op=True).wait()
    alone = dist.new_group([0])
    assert RANK == 0 or alone == dist.GroupMember.NON_GROUP_MEMBER


def gradients() -> None:
    """Collectives that autograd differentiates, eager and functional."""
    x: Any = given(RANK, 4).requires_grad_()
    with_gradients.all_reduce(x).sum().backward()
    same(x.grad, torch.full((4,), float(SIZE)))
    whole = torch.cat(with_gradients.all_gather(x))
    same(whole.detach(), rows(4))
    (whole * (RANK + 1)).sum().backward()
    same(x.grad, torch.full((4,), SIZE + sum(RANKS) + SIZE + 0.0))
    y: Any = given(RANK, SIZE).requires_grad_()
    (functional.all_to_all_single_autograd(y, None, None, dist.group.WORLD) * (RANK + 1)).sum().backward()
    same(y.grad, torch.arange(1.0, SIZE + 1))
    z: Any = given(RANK, 2 * SIZE).requires_grad_()
    part = functional.reduce_scatter_tensor_autograd(z, "sum", 0, dist.group.WORLD)
    same(part.detach(), rows(2 * SIZE).sum(0)[2 * RANK : 2 * RANK + 2])
    (part * (RANK + 1)).sum().backward()
    same(z.grad, torch.arange(1.0, SIZE + 1).repeat_interleave(2))
    same(functional.all_gather_tensor(given(RANK, 4), 0, dist.group.WORLD), rows(4))
    same(functional.permute_tensor(given(RANK, 2), [*RANKS[1:], 0], dist.group.WORLD), given((RANK - 1) % SIZE, 2))


def ways_of_ddp() -> None:
    """Hooks of PyTorch's own, PowerSGD's too, no_sync, ranks with unequal numbers of batches: all as over Gloo."""
    gloo = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 50))
    torch.manual_seed(RANK)
    batches = torch.randn(6, 8, 40)

    def trained(hook: str, group: Any) -> list[Tensor]:
        made = DistributedDataParallel(copy.deepcopy(model), process_group=group)
        if hook == "PowerSGD":
            state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
            made.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook == "half":
            made.register_comm_hook(group, default_hooks.fp16_compress_hook)
        optimizer = (
            ZeroRedundancyOptimizer(made.parameters(), torch.optim.SGD, lr=0.1, process_group=group)
            if hook == "zero"
            else torch.optim.SGD(made.parameters(), lr=0.1)
        )
        mine = batches[: 3 + RANK] if hook == "uneven" else batches
        with Join([made], enable=hook == "uneven"):
            for number, batch in enumerate(mine):
                if hook == "no_sync" and number % 2:
                    with made.no_sync():
                        made(batch).square().mean().backward()
                    continue
                made(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach() for parameter in made.parameters()]

    for hook in ("PowerSGD", "half", "zero", "no_sync", "uneven"):
        for ours, theirs in zip(trained(hook, dist.group.WORLD), trained(hook, gloo), strict=True):
            tolerance = 1e-2 if hook == "half" else 1e-5  # a half is rounded in another order
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def buckets_move_into_shared_memory() -> None:
    """Those of models, also of equal ones and of later ones; nothing else of the same size. They are given back."""
    shared = dist.group.WORLD._gradients
    torch.manual_seed(0)
    linear = nn.Linear(200, 200, bias=False)
    batches = torch.randn(SIZE, 5, 200)
    linear(batches.view(-1, 200)).square().mean().backward()
    wanted = linear.weight.grad
    dist.all_reduce(torch.zeros(40_000))  # of another kind of call, and of the same bytes
    models = [DistributedDataParallel(copy.deepcopy(linear)) for _ in range(2)]
    for _ in range(9):
        for model in models:
            model.zero_grad()
            model(batches[RANK]).square().mean().backward()
            torch.testing.assert_close(model.module.weight.grad, wanted)
    assert len(shared._held) == 2 * (SIZE > 1)
    doubled = torch.ones(40_000)
    work = dist.all_reduce(doubled, async_op=True)
    work.wait()
    same(doubled, torch.full((40_000,), float(SIZE)))
    assert doubled.data_ptr() not in shared._held
    model = DistributedDataParallel(nn.Linear(200, 100))
    models.clear()
    gc.collect()  # DDP's parts know each other
    for _ in range(5):
        model(batches[RANK]).sum().backward()
    assert len(shared._held) == (SIZE > 1)


def what_else_there_is() -> None:
    """Names, operations of NCCL's alone, nothing at all, a compiled program, and a group that is gone."""
    world = dist.group.WORLD
    assert (dist.get_backend(), dist.get_backend_config()) == ("treering", "cpu:treering")
    refuses(UnsupportedError, "scale, then sum", lambda: dist.all_reduce(rows(2), dist._make_nccl_premul_sum(2.0)))
    nothing = [torch.empty(0) for _ in RANKS]
    dist.reduce(nothing[0], 0)
    dist.reduce_scatter(torch.empty(0), nothing)
    dist.gather(torch.empty(0), nothing if RANK == 0 else None)
    dist.scatter(torch.empty(0), nothing if RANK == 0 else None)
    dist.all_to_all(nothing, [torch.empty(0) for _ in RANKS])

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: Tensor) -> Tensor:
        total = functional.all_reduce(x, "sum", world)
        dist.all_reduce(x)
        return torch.cat([total + x, functional.all_gather_tensor(total, 0, world)])

    total = rows(3).sum(0)
    same(compiled(given(RANK, 3)), torch.cat([2 * total, total.repeat(SIZE)]))
    gone = dist.new_group()
    dist.all_reduce(torch.ones(2), group=gone)
    dist.destroy_process_group(gone)
    refuses(CommunicatorBroken, "closed", lambda: dist.barrier(gone))


def waits_with_a_limit_of_their_own() -> None:
    """They end nothing: what was waited for comes later."""
    if RANK == 0:
        late = dist.irecv(torch.empty(1), 1)
        refuses(CollectiveTimeout, "not done after", lambda: late.wait(timedelta(seconds=0.05)))
    dist.barrier()
    if RANK == 1:
        dist.send(torch.ones(1), 0)
    elif RANK == 0:
        late.wait()


CASES = (
    every_call_on_strided_memory, every_root, splits_of_nothing, lists_at_once, in_groups, gradients, ways_of_ddp,
    buckets_move_into_shared_memory, what_else_there_is, waits_with_a_limit_of_their_own,
)  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    init_process_group("treering", timeout=60)
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    RANKS = range(SIZE)
    for case in CASES:
        case()
        print(f"{case.__name__}: right", flush=True)
