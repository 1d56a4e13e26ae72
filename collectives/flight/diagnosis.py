"""From the words of a failed call to an error that says what, where and the mend."""

import time
from functools import cache
from typing import TYPE_CHECKING

from collectives import layout as at
from collectives.algorithms import names
from collectives.contract import COLLECTIVES
from collectives.dtypes import DTYPES, OPS
from collectives.errors import CollectiveError, CollectiveTimeout, MismatchError, PeerLost
from collectives.flight.sites import site_named
from collectives.native import layout as st

if TYPE_CHECKING:
    from collectives.channel import Channel
    from collectives.native.program import Program

BARRIER = "barrier"
COUNTS = "counts of an alltoall"  # which ranks tell each other before it
CALLS = (*COLLECTIVES, COUNTS)
NO_OP = "none"
OPERATIONS = (NO_OP, *OPS)
HOST, DEVICE, REFUSED = MEMORIES = ("the host's", "a GPU's", "none: its arguments cannot be served there")
ERRORS: dict[int, type[CollectiveError]] = {
    st.TIMEOUT: CollectiveTimeout, st.PEER_LOST: PeerLost, st.LEFT: PeerLost,
}  # fmt: skip
PATIENCE_SECONDS = 0.3  # for others of the node to publish what they call
KINDS = {at.SEND: "a send to", at.RECV: "a receive from"}
STATUS = {
    st.TIMEOUT: "passed its deadline", st.MPI_FAILED: "had an error of the MPI library", st.MISMATCH: "disagreed",
    st.PEER_LOST: "lost a peer", st.INTERRUPTED: "was interrupted", st.ABORTED: "aborted", st.STOPPED: "was stopped",
    st.LEFT: "has ended without making this call", st.READ_FAILED: "could not read a peer's memory",
}  # fmt: skip


def fingerprint(
    collective: str, dtype: str, op: str, root: int, count: int, algorithm: str, params: object, memory: str = HOST
) -> list[int]:
    """What ranks must agree on, as the board's words; `fields` reads them back."""
    known = ("", *names(collective)) if collective in COLLECTIVES else ("",)
    index = known.index(algorithm) if algorithm in known else 0
    settled = hash_of(f"{algorithm} {sorted(params.items()) if isinstance(params, dict) else params}")
    kind = CALLS.index(collective) | DTYPES.index(dtype) << 8 | OPERATIONS.index(op) << 16
    kind |= MEMORIES.index(memory) << 24 | root << 32
    return [kind, count, index | settled << 8, 0]


@cache
def hash_of(text: str) -> int:
    """48 bits, equal in all processes."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "little")


def fields(words: list[int]) -> dict[str, object]:
    """The board's words as what a person passed, in the order in which a difference matters."""
    kind, count, choice, chain, *site = words
    collective = CALLS[kind & 0xFF]
    known = ("", *names(collective)) if collective in COLLECTIVES else ("",)
    return {
        "collective": collective,
        "memory": MEMORIES[kind >> 24 & 0xFF],
        "dtype": DTYPES[kind >> 8 & 0xFF],
        "op": OPERATIONS[kind >> 16 & 0xFF],
        "root": kind >> 32,
        "count": count,
        "algorithm": (known[choice & 0xFF] if choice & 0xFF < len(known) else "") or hex(choice >> 8),
        "parameters": hex(choice >> 8),
        "call site": site_named(site[0]) if site else "",
        "an earlier call": hex(chain),
    }


def describe(rank: str, program: "Program") -> str:
    """The call of a program, for an error's beginning. rank: as topology.name has it."""
    state = program.state
    what = fields([int(w) for w in state[st.FINGERPRINT_0 : st.FINGERPRINT_3 + 1]])
    if what["collective"] == BARRIER:
        return f"{rank}: barrier (call {state[st.SEQ]})"
    op = f" {what['op']}" if what["op"] != NO_OP else ""
    return (
        f"{rank}: {what['collective']}{op} of {what['count']} {what['dtype']} by {what['algorithm']} "
        f"(call {state[st.SEQ]})"
    )


def where(channel: "Channel", program: "Program") -> str:
    """Where the program stands: phase, lane, round, step and peer, with the peer's host where there are several."""
    state = program.state
    if state[st.GATED]:
        return "before its start: this rank is far ahead of another one of its node"
    if state[st.ERROR_LANE] < 0:
        return f"in phase {state[st.PHASE]}, with no message outstanding"
    if state[st.ERROR_KIND] == at.FUSED:
        return "in the node's kernel, at a rank that has not come as far"
    return (
        f"in phase {state[st.PHASE]}, lane {state[st.ERROR_LANE]}, segment {state[st.ERROR_SEGMENT]}, "
        f"round {state[st.ERROR_ROUND]}, step {state[st.ERROR_STEP]}, at "
        f"{KINDS.get(state[st.ERROR_KIND], 'a step with')} {channel.topology.name(int(state[st.ERROR_PEER]))}"
    )


def explain(channel: "Channel", program: "Program", code: int, seconds: float) -> CollectiveError:
    """Why the program failed. Ranks that disagree explain everything else, so they are looked for first."""
    call = describe(channel.topology.name(channel.comm.rank), program)
    mismatch = find_mismatch(channel, program, code, call)
    if mismatch is not None:
        return mismatch
    if code == st.MPI_FAILED:
        from mpi4py import MPI

        said = MPI.Get_error_string(int(program.state[st.ERROR_DETAIL]))
        return CollectiveError(f"{call}: the MPI library says {said!r} {where(channel, program)}")
    if code == st.READ_FAILED:
        rank = channel.ranks_of_node[program.state[st.ERROR_DETAIL]]
        if channel.has_ended(rank):
            return PeerLost(f"{call}: rank {rank} has ended; see its own output")
        return CollectiveError(
            f"{call}: the memory of rank {rank} cannot be read any more (process_vm_readv); another algorithm than "
            "single_copy does not need it"
        )
    if code == st.STOPPED:
        stopped = stopped_ranks(channel)
        kinds = {status: kind for status, kind in ERRORS.items() if any(status == s for _, s in stopped)}
        said = ", ".join(f"rank {rank} {STATUS[status]}" for rank, status in stopped if status != st.STOPPED)
        kind = next(iter(kinds.values()), CollectiveError)
        return kind(f"{call}: {said or 'another rank has stopped'}; stopped {where(channel, program)}")
    waits = waiting_ranks(channel)
    return CollectiveTimeout(
        f"{call}: not done after {seconds:.1f} s, {where(channel, program)}"
        f"{'; ' + waits if waits else ''}. A rank is late, or does not make this call; "
        "timeout= or TREERING_TIMEOUT sets another deadline"
    )


def find_mismatch(channel: "Channel", program: "Program", code: int, call: str) -> MismatchError | None:
    """Compare what the ranks of the node have published, or other nodes have sent, for the call that went wrong."""
    state = program.state
    if channel.hosts is not None and channel.hosts.other is not None:
        rank, words = channel.hosts.other
        both = sorted([(channel.comm.rank, program.published[1:]), (rank, words)])
        return first_difference([rank for rank, _ in both], [words for _, words in both], call)
    if not channel.endpoint.has_board:
        return None
    seq = int(state[st.ERROR_DETAIL] if code == st.MISMATCH else state[st.SEQ])
    found = compare(channel, seq, call)
    if found is None and code == st.STOPPED:  # by ranks that are ahead of this one
        ahead = {int(channel.endpoint.news(i)[st.PUBLISHED]) for i in range(channel.node.size)}
        later = ((n, f"{call}, stopped by call {n}") for n in sorted(ahead - {seq}))
        found = next(filter(None, (compare(channel, n, stopped) for n, stopped in later)), None)
    return found


def compare(channel: "Channel", seq: int, call: str) -> MismatchError | None:
    """Where ranks of the node differ in their call number `seq`; those who have not made it get a moment to."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        published = [channel.endpoint.entry(i, seq) for i in range(channel.node.size)]
        if all(published) or time.monotonic() > until:
            break
        time.sleep(0.002)
    there = [(channel.ranks_of_node[i], words) for i, words in enumerate(published) if words]
    return first_difference([rank for rank, _ in there], [words for _, words in there], call)


def first_difference(ranks: list[int], published: list[list[int]], call: str) -> MismatchError | None:
    passed = [fields(words) for words in published]
    for field in passed[0] if passed else ():
        values = [str(each[field]) for each in passed]
        if len(set(values)) > 1:
            return MismatchError(field, ranks, values, call)
    return None


def stopped_ranks(channel: "Channel") -> list[tuple[int, int]]:
    told = [channel.hosts.stopped] if channel.hosts is not None and channel.hosts.stopped is not None else []
    if not channel.endpoint.has_board:
        return told
    news = ((rank, int(channel.endpoint.news(i)[st.BOARD_STATUS])) for i, rank in enumerate(channel.ranks_of_node))
    return told + [(rank, status) for rank, status in news if status and rank != channel.comm.rank]


def waiting_ranks(channel: "Channel") -> str:
    """Who has made which call, as far as is known, so that the one that is late is seen."""
    seen = dict(channel.hosts.calls) if channel.hosts is not None else {}
    if channel.endpoint.has_board:
        seen |= {rank: channel.endpoint.news(i)[st.PUBLISHED] for i, rank in enumerate(channel.ranks_of_node)}
    return ", ".join(f"rank {rank} has made {calls} calls" for rank, calls in sorted(seen.items()))
