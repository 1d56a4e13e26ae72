"""Measure this machine's collectives and write a tuning table. With --storage a run that was stopped resumes."""

import argparse
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from collectives.errors import TableError
from collectives.selection import Table, load
from collectives.tables.table import GPU
from tuner import asked, confirm, units
from tuner.commands.common import (
    UsageError,
    add_call,
    add_json,
    add_ranks,
    add_sizes,
    check_call,
    check_settings,
    complain,
    enter_ranks,
    note,
    positive,
    print_json,
    value,
)  # fmt: skip
from tuner.contenders import native_lacks
from tuner.progress import progress

STEM, SAMPLES = "treering-table", ".samples.jsonl"
TARGETS = ("openmpi", "mpich", "impi")  # of tuner.targets, which is loaded where it is needed
EXAMPLES = """
  treering tune -n 4                                        # a minute; writes treering-table.json
  treering tune -n 4 --sizes 64K:16M --budget 5m --output table.json
  treering tune -n 4 --collective broadcast --output table.json      # beside the rules that are there
  treering tune -n 4 --budget 1h --storage trials.journal   # stopped, and started again, it goes on
  treering tune -n 2 --ddp train:make_model --output table.json      # DDP buckets, by whole steps
  treering tune --hosts node1:8,node2:8                     # by ssh; or under srun or mpirun without -n
"""


def add(parser: argparse.ArgumentParser) -> None:
    add_ranks(parser)
    add_call(parser)
    add_sizes(parser, "8:16M")
    parser.add_argument("--budget", type=value(units.parse_duration), default="60s", metavar="TIME",
                        help="for measuring all sizes: 60s, 5m, 1h (default: %(default)s)")  # fmt: skip
    parser.add_argument("--trials", type=value(positive), metavar="N", help="measure so many candidates at each size")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="repeats the proposals (default: %(default)s)")
    parser.add_argument("--storage", metavar="URL",
                        help="keep trials there, and go on from those that are: a file, or sqlite:///FILE")  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path(f"{STEM}.json"), metavar="FILE",
                        help="the table (default: %(default)s); raw samples go beside it")  # fmt: skip
    parser.add_argument("--check", type=Path, metavar="TABLE",
                        help="write nothing, but measure a sample of this table's rules anew and say what has moved; "
                             "exit status 1 where something else is faster now")  # fmt: skip
    parser.add_argument("--ddp", metavar="MODULE:FACTORY",
                        help="tune DDP buckets by whole steps of a PyTorch model: FACTORY() returns (model, batch) "
                             "or (model, loss), and what is best goes into the table")  # fmt: skip
    parser.add_argument("--gloo", action="store_true",
                        help="time PyTorch's Gloo too, after all else, for `treering show --plot`")  # fmt: skip
    asked.add(parser)
    parser.add_argument("--target", choices=TARGETS, metavar="LIBRARY",
                        help="tune the MPI library's own collective instead: openmpi, mpich or impi")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="whose memory: all candidates are timed on the ranks' own GPUs for cuda "
                             "(default: %(default)s)")  # fmt: skip
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.check:
        from tuner.commands import check

        return check.run(args)
    check_call(args)
    check_files(args)
    asked.check(args)
    if args.target:
        return tune_target(args)
    for name in ("TREERING_TABLE", "TREERING_ALGORITHM"):  # what is measured is named call by call
        os.environ.pop(name, None)
    check_settings(None)
    world = enter_ranks(args)
    if args.device == "cuda":
        return tune_gpu(args, world)
    if args.ddp:
        return tune_ddp(args, world)
    import collectives
    from tuner.measure import Session

    with collectives.Communicator(world) as comm:
        samples, last_job = samples_file(args) if world.rank == 0 else (None, 0)
        session = Session(world, comm, samples, last_job)
        with interrupts(session):
            if world.rank:
                session.follow()
                session.close()
                return 0
            try:
                return lead(args, session)
            except UsageError as error:  # all ranks leave together, so none needs to be aborted
                complain(args.command, error)
                return 2
            finally:
                session.stop()
                session.close()
                if samples:
                    samples.close()


def tune_gpu(args: argparse.Namespace, world: Any) -> int:
    """Every candidate on memory of GPUs; rules that the table has for other memory stay."""
    import collectives
    from tuner import gpu

    with collectives.Communicator(world) as comm, progress(f"tuning {args.collective} on GPUs") as told:
        arrays, measured = gpu.arrays_of(args.dtype, comm._group.node.rank), []
        for place, nbytes in enumerate(args.sizes):
            told(place / len(args.sizes), units.size(nbytes))
            measured.append((nbytes, gpu.measure(comm, arrays, args.collective, nbytes, dtype=args.dtype)))
        table = Table(treering=collectives.__version__, topology=gpu.place_of_gpu(comm), rules=[])
    if world.rank == 0:
        there = earlier(args.output, table.topology)
        if there is not None and there.topology.fingerprint == table.topology.fingerprint:
            kept = [rule for rule in there.rules if (rule.collective, rule.storage) != (args.collective, GPU)]
            table = msgspec.structs.replace(there, topology=table.topology, rules=kept)
        table.rules += gpu.rules(args.collective, measured)
        table.save(args.output)
        if args.json:
            print_json(msgspec.to_builtins(table))
        else:
            from tuner.commands.show import show

            show(table)
        note(f"wrote {args.output}")
    return 0


def tune_target(args: argparse.Namespace) -> int:
    """The rules by which an MPI library's own collective is faster; treering has no part in what is measured."""
    from tuner.commands.show import show
    from tuner.targets.command import tune
    from tuner.targets.sweep import TELLING

    with progress(f"tuning {args.target} {args.collective}") as told:
        table, found = tune(args, told)
    for candidate, fault in found.faults.items():
        note(f"{candidate} was left out: {fault}")
    if args.json:
        print_json(msgspec.to_builtins(table))
    else:
        show(table)
    changed = sum(rule.algorithm != "default" for rule in table.rules)
    note(f"there is {found.gain:.2f} times to gain in the geometric mean, by {found.rounds} rounds of launches")
    if found.rounds < TELLING:
        note(f"{found.rounds} rounds cannot tell a gain from noise, {TELLING} can: give a longer --budget")
    note(f"wrote {args.output}: {len(table.rules)} rules, {changed} of them not the library's own decision; "
         f"`treering export {args.output} --to {args.target}` makes it a file for the library")  # fmt: skip
    return 0


def tune_ddp(args: argparse.Namespace, world: Any) -> int:
    """The DDP buckets of one model; rules that the table has serve it, and stay."""
    try:
        from integrations.torch_launch import init_process_group
    except ImportError as error:
        raise UsageError(f"--ddp needs PyTorch ({error}); pip install 'treering[torch]'") from None
    import collectives
    from tuner import ddp
    from tuner.rules import table_of

    with collectives.Communicator(world) as comm:
        table = earlier(args.output, comm.topology)
        fits = table is not None and table.topology.fingerprint == comm.topology.fingerprint
    init_process_group(comm=world)
    with collectives.Communicator(world, table=table if fits else None) as comm, progress(f"tuning {args.ddp}") as told:
        advice = ddp.tune(args.ddp, world, comm, args.budget, told if world.rank == 0 else lambda _, __: None)
        whole = table_of(comm.topology, collectives.__version__, None, [], table, advice)
    if world.rank == 0:
        whole.save(args.output)
        if args.json:
            print_json(msgspec.to_builtins(advice))
        else:
            print(ddp.shown(advice))
        note(f"wrote {args.output}: `register(model, table=...)` says so to a model with other buckets")
    return 0


def check_files(args: argparse.Namespace) -> None:
    """What would fail after the measuring, or on every rank, fails before it."""
    if args.ddp and not all(args.ddp.partition(":")):
        raise UsageError(f"--ddp {args.ddp}: write MODULE:FACTORY, as in train:make_model")
    refuse("--output", args.output, "name one in a folder that exists")
    samples = args.output.with_suffix(SAMPLES)
    refuse("--output", samples, "raw samples go there: give --output another name")
    if args.storage and "://" not in args.storage:
        storage = Path(args.storage)
        refuse("--storage", storage, "name another, or sqlite:///FILE")
        if storage.absolute() in (args.output.absolute(), samples.absolute()):
            raise UsageError(f"--storage {storage} is where the table or its samples go; name another file")


def refuse(flag: str, path: Path, mend: str) -> None:
    if why := cannot_be_written(path):
        raise UsageError(f"{flag} {path}: not a file that can be written ({why}); {mend}")


def cannot_be_written(path: Path) -> str | None:
    """Why a file cannot be made or replaced there, tried and not asked: permissions do not say all."""
    if path.is_dir():
        return "it is a directory"
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return None
    except OSError as error:
        return error.strerror or str(error)


def samples_file(args: argparse.Namespace) -> tuple[Any, int]:
    """Where raw samples go, and the last job there. Those of other rules stay, and, with a storage, of earlier runs."""
    from tuner.storage import open_samples

    call = args.collective, args.dtype, args.op
    again = not args.storage
    return open_samples(
        args.output.with_suffix(SAMPLES), lambda line: again and (line["collective"], line["dtype"], line["op"]) == call
    )


@contextmanager
def interrupts(session: Any) -> Iterator[None]:
    """The first interrupt ends the measuring at the next job, on all ranks; the second one ends the process."""

    def interrupted(_: int, __: object) -> None:
        session.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lead(args: argparse.Namespace, session: Any) -> int:
    """What rank 0 does: search, then write the table from what there is."""
    import collectives
    from tuner import stages
    from tuner.commands.show import finding_told, show
    from tuner.decision import Measured
    from tuner.rules import rules_of, table_of
    from tuner.seeding import links_of
    from tuner.storage import storage_of

    topology = session.comm.topology
    wanted = asked.constraints(args, topology)
    lacking = native_lacks(args.dtype, args.op, args.collective)
    if lacking:
        note(f"{lacking}: no baseline by the MPI library's own {args.collective}")
    try:
        storage = storage_of(args.storage)
    except Exception as error:
        raise unusable(args.storage, error) from error
    studies = [study_of(args, storage, topology, nbytes) for nbytes in args.sizes]
    sizes = [
        Measured(nbytes, stages.by_thumb(args, session, nbytes), baseline=lacking is None, asked=wanted)
        for nbytes in args.sizes
    ]
    if resumed := sum(study.resumed for study in studies):
        note(f"resumed {resumed} finished trials from {args.storage}")
    there = earlier(args.output, topology)
    with progress(f"tuning {args.collective}") as told:
        found = stages.run(args, session, sizes, studies, there, told)
    if args.gloo and not found.ended:
        from tuner.beside import SHARE, time_gloo

        if lacks := time_gloo(session, args.collective, args.dtype, args.op, args.sizes, SHARE * args.budget):
            note(f"without Gloo: {lacks}")
    ended, measured = found.ended, [size for size in sizes if size.race]
    for size in [*sizes, *found.shared]:
        for candidate, fault in size.faults.items():
            note(f"{candidate} at {units.size(size.nbytes)} was left out: {fault}")
    if not measured:
        complain("tune", f"nothing was measured: {ended or 'no time was left; give a longer --budget'}")
        return 1
    if len(measured) < len(sizes):
        missing = ", ".join(units.size(size.nbytes) for size in sizes if not size.race)
        note(f"not measured, so the default serves there: {missing}; give a longer --budget")
    table = table_of(
        topology, collectives.__version__, args.output.with_suffix(SAMPLES).name,
        [rule for kind in (sizes, found.shared) if any(size.race for size in kind)
         for rule in rules_of(args.collective, args.dtype, args.op, kind)],
        there, links=links_of(topology.nodes, args.collective, measured),
        tuned=asked.conditions(args, measured, found.findings, found.watch.drift),
    )  # fmt: skip
    table.save(args.output)
    if args.json:
        print_json(msgspec.to_builtins(table))
    else:
        show(table)
    for finding in found.findings if args.json else ():  # else they have been shown
        note(f"guideline: {finding_told(finding)}")
    for said in filter(None, (
        str(found.watch), confirm.told(found.given_way), asked.price_told(measured) if args.deterministic else "",
        found.seeds.saved(measured),
    )):  # fmt: skip
        note(said)
    trials = sum(len(size.ratios) for size in sizes)
    between = sum(size.between for size in measured)
    note(f"wrote {args.output}: {len(table.rules)} rules from {trials} candidates at {len(measured) - between} sizes, "
         f"and winners at {between} between them")  # fmt: skip
    if found.checked:
        note(f"compared with what {args.collective} may be made of at {found.checked} of {len(args.sizes)} sizes")
    if ended:
        complain("tune", f"{ended}; the table holds what was measured before")
    return 1 if ended else 0


def study_of(args: argparse.Namespace, storage: Any, topology: Any, nbytes: int) -> Any:
    from tuner.search import Study
    from tuner.space import space

    try:
        candidates = space(
            args.collective, topology.nodes, nbytes, groups=topology.nest, deterministic=args.deterministic
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    name = " / ".join((
        args.collective, args.dtype, args.op, str(nbytes), topology.fingerprint,
        "fixed" * args.deterministic + "accurate" * (args.precision == "accurate"),
    ))  # fmt: skip
    try:
        return Study(candidates, name, storage, args.seed + nbytes)
    except Exception as error:
        if args.storage is None:
            raise
        raise unusable(args.storage, error) from error


def unusable(storage: str, error: Exception) -> UsageError:
    return UsageError(f"--storage {storage}: {str(error).splitlines()[0]}; name another file, or sqlite:///FILE")


def earlier(path: Path, topology: Any) -> Table | None:
    """The table that is there, whose other rules are kept if it is for the same topology."""
    if not path.exists():
        return None
    try:
        table = load(path)
    except TableError as error:
        note(f"replacing what is no table: {error}")
        return None
    if table.topology.fingerprint != topology.fingerprint:
        note(f"replacing {path}, a table for another topology: {table.topology.fingerprint}")
    return table
