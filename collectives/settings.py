"""What a communicator goes by: arguments, then environment, then table; the same on all ranks or an error."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives.algorithms import find
from collectives.errors import CollectiveError, MismatchError, TableError, UnsupportedError
from collectives.foresight.forecast import foreseen
from collectives.proof.canonical import canonical
from collectives.ranks.peers import Peers
from collectives.ranks.release import release
from collectives.says import say
from collectives.selection import FIXED_ORDER, NATIVE, Choice, Table, choose, default, load, parse_overrides
from collectives.tables.kinship import NEAR, nearest
from collectives.tables.table import GPU, ORDINARY, Rule
from collectives.topology import Topology

if TYPE_CHECKING:
    from collectives.communicator import Communicator

MOST_PROVED = 64  # ranks up to which a rule is asked for its proof
TIMEOUT_SECONDS = 1800.0  # as PyTorch's
SPIN = 10  # good with a core per rank and with more ranks than cores alike
# By which ranks part their memory, leave kernels to schedules, and compare where they call from.
SWITCHES = ("TREERING_LINKS", "TREERING_KERNELS", "TREERING_DEBUG")
UNKNOWN = (None, "not known there")  # of what another treering does not say
Override = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Settings:
    table: Table | None
    timeout: float
    overrides: Mapping[str, Override]
    overridden_by: str  # argument or environment
    spin: int = SPIN  # pauses before a wait yields
    shelf: tuple[Table, ...] = ()  # of a folder of tables, until `on` has taken the one that suits the topology

    @classmethod
    def attempt(cls, *given: Any) -> "Settings | Exception":
        """What `read` gives or raises: ranks agree on it before anyone raises."""
        try:
            return cls.read(*given)
        except (ValueError, TypeError, CollectiveError) as error:
            return error

    @classmethod
    def read(
        cls, table: str | os.PathLike[str] | Table | None, timeout: float | None, algorithm: str | None
    ) -> "Settings":
        """Arguments go before TREERING_TABLE, TREERING_TIMEOUT and TREERING_ALGORITHM. ValueError, TableError."""
        if table is None:
            table = os.environ.get("TREERING_TABLE") or None
        if timeout is None:
            timeout = seconds(os.environ.get("TREERING_TIMEOUT") or TIMEOUT_SECONDS, "TREERING_TIMEOUT")
        by = "argument" if algorithm else "environment"
        given = algorithm or os.environ.get("TREERING_ALGORITHM") or ""
        if given and "=" not in given.split(":", 1)[0]:
            given = f"allreduce={given}"
        try:
            overrides = parse_overrides(given)
            for collective, (name, params) in overrides.items():
                if name != NATIVE:
                    find(collective, name).check(**params)
        except ValueError as error:
            raise ValueError(f"{'algorithm' if algorithm else 'TREERING_ALGORITHM'}: {error}") from None
        shelf: list[Table] = []
        if isinstance(table, Table):
            shelf = [table]
        elif table is not None:
            shelf = [load(path) for path in files(table)]
        if len(shelf) == 1 and shelf[0].target:
            raise TableError(
                f"{shelf[0].origin} is for the collectives of {shelf[0].target} itself; give them to that library by "
                "`treering export`, and treering a table of its own: treering tune"
            )
        shelf = [each.check(each.origin, refused) for each in shelf if not each.target]
        limit, spin = seconds(timeout, "timeout"), pauses(os.environ.get("TREERING_SPIN"))
        if len(shelf) == 1:
            return cls(shelf[0], limit, overrides, by, spin)
        return cls(None, limit, overrides, by, spin, tuple(shelf))

    def on(self, topology: Topology) -> "Settings":
        """The same, with the table of a folder that suits this topology, if one does."""
        return replace(self, table=nearest(self.shelf, topology)) if self.shelf else self

    def with_table(self, table: str | os.PathLike[str] | Table) -> "Settings | Exception":
        """The same with another table, or why that cannot be."""
        read = Settings.attempt(table, self.timeout, None)
        return replace(self, table=read.table, shelf=read.shelf) if isinstance(read, Settings) else read

    @cached_property
    def allows_native(self) -> bool:
        """Whether the table was tuned so that a rule may name the MPI library's own collective."""
        return self.table is not None and any(rule.algorithm == NATIVE for rule in self.table.rules)

    def described(self) -> dict[str, tuple[object, str]]:
        """What ranks must agree on, by the name that a person knows: what is compared, and how it reads."""
        tables, overrides = self.shelf or ((self.table,) if self.table else ()), sorted(self.overrides.items())
        algorithms = "; ".join(f"{collective}={name} {params}" for collective, (name, params) in overrides)
        switches = {name: os.environ.get(name, "") for name in SWITCHES}
        return {
            "treering": (release(), release()),
            "table (argument or TREERING_TABLE)": (
                [table.digest() for table in tables],
                ", ".join(f"{table.origin} with digest {table.digest()}" for table in tables) or "none",
            ),
            "timeout (argument or TREERING_TIMEOUT)": (self.timeout, f"{self.timeout:g} s"),
            "algorithm (argument or TREERING_ALGORITHM)": (overrides, algorithms or "none"),
            **{name: (value, value or "not set") for name, value in switches.items()},
        }

    def choose(
        self,
        topology: Topology,
        collective: str,
        nbytes: int,
        dtype: str,
        op: str,
        algorithm: str | None,
        params: Mapping[str, Any],
        fixed: bool,
        allow_native: bool = False,
        storage: str = ORDINARY,
    ) -> Choice:
        """The call's own algorithm, or the one fixed for the communicator, or the table's, or the rule of thumb."""
        if algorithm is not None:
            chosen = Choice(algorithm, dict(params), source="argument", why="the call names it")
        elif collective in self.overrides:
            name, given = self.overrides[collective]
            why = "TREERING_ALGORITHM names it" if self.overridden_by == "environment" else "the communicator names it"
            chosen = Choice(name, {**given, **params}, source=self.overridden_by, why=why)
        else:
            kind = None if op == "none" else op
            native = allow_native and self.allows_native
            storage = ORDINARY if params else storage  # parameters are those of what serves ordinary memory
            chosen = choose(
                self.table, topology, collective, nbytes, dtype, kind, allow_native=native, deterministic=fixed,
                storage=storage, proof=partial(proved, topology.nodes) if fixed else None,
            )  # fmt: skip
            if chosen.basis == NEAR and chosen.algorithm != NATIVE:
                algorithm_ = find(collective, chosen.algorithm)
                lack = algorithm_.lack(topology.ranks, algorithm_.groups(topology))
                if lack:
                    because = f"{chosen.origin} is of a topology near to this; its {chosen.algorithm} needs {lack}"
                    chosen = default(topology, collective, nbytes, deterministic=fixed, because=because)
            if chosen.origin == "default" and self.table is not None and storage == ORDINARY:
                chosen = foreseen(self.table, topology, collective, nbytes, fixed, chosen) or chosen
            return chosen.with_params(params) if params else chosen
        if fixed and not folds_once(collective, chosen.algorithm):
            serving = ", ".join(FIXED_ORDER.get(collective, ())) or "none"
            asked = f"{collective} {chosen.algorithm}"
            raise UnsupportedError(f"{asked} folds ranks in no fixed order; order='fixed' is served by: {serving}")
        return chosen

    def announce(self, comm: "Communicator") -> None:
        """One line at start-up, where TREERING_LOG asks for it."""
        if os.environ.get("TREERING_LOG", "").lower() in ("info", "debug") and comm.rank == 0:
            t = comm.topology
            table = self.table.origin if self.table else "no table"
            mpi = f"{t.mpi} over {t.network}" if t.network else t.mpi
            say(f"{comm.size} ranks, nodes {t.shape}, links {'+'.join(t.links) or 'none'}, {mpi}, {table}")


def files(table: str | os.PathLike[str]) -> list[Path]:
    """The table's file, or those of a folder of tables, by name. TableError where a folder has none."""
    path = Path(table)
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise TableError(f"{path}: a folder without tables; name one that `treering tune --output` wrote them into")
    return found


def refused(rule: Rule) -> str | None:
    """Why a table's rule cannot serve: its algorithm or a parameter does not exist."""
    try:
        if rule.storage == GPU:
            from collectives.cuda.choice import refused_rule

            return refused_rule(rule.collective, rule.algorithm, rule.params)
        if rule.algorithm != NATIVE:
            find(rule.collective, rule.algorithm).check(**rule.params)
    except ValueError as error:
        return str(error)
    return None


def pauses(given: str | None) -> int:
    """TREERING_SPIN. ValueError unless it is a number of pauses."""
    if not given:
        return SPIN
    if not given.isascii() or not given.isdigit():
        raise ValueError(f"TREERING_SPIN is {given!r}; it is how many pauses a wait makes before it yields, 0 or more")
    return int(given)


def proved(nodes: tuple[tuple[int, ...], ...], collective: str, algorithm: str, params: Mapping[str, Any]) -> bool:
    """Whether the algorithm folds the ranks of these nodes in order, proved where that is quick."""
    return sum(map(len, nodes)) <= MOST_PROVED and canonical(collective, algorithm, params, nodes)


def folds_once(collective: str, algorithm: str) -> bool:
    """Whether the algorithm folds all ranks in order, rounding once."""
    return collective in FIXED_ORDER and algorithm in FIXED_ORDER[collective]


def seconds(value: object, name: str) -> float:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}; it is a number of seconds") from None
    if not 0 < found < 1e9:
        raise ValueError(f"{name} is {found}; it is a number of seconds above 0")
    return found


def agree(comm: Peers, settings: Settings | Exception) -> Settings:
    """The settings, once all ranks are seen to have the same. Collective.

    Raises MismatchError on all ranks where they differ; the exception itself where this rank could not read its own,
    and on all others a CollectiveError that says so.
    """
    mine = settings.described() if isinstance(settings, Settings) else str(settings)
    told = [json.loads(said) for said in comm.exchange(json.dumps([socket.gethostname(), mine]).encode())]
    hosts, everyone = zip(*told, strict=True)
    if isinstance(settings, Exception):
        raise settings
    place = [f" on {host}" if len(set(hosts)) > 1 else "" for host in hosts]
    for rank, theirs in enumerate(everyone):
        if isinstance(theirs, str):
            raise CollectiveError(f"rank {rank}{place[rank]} cannot start: {theirs}")
    for field in settings.described():
        said = [theirs.get(field, UNKNOWN) for theirs in everyone]
        if any(value != said[0][0] for value, _ in said):
            values = [text + where for (_, text), where in zip(said, place, strict=True)]
            raise MismatchError(field, range(comm.size), values, "at start", "give all ranks the same")
    return settings
