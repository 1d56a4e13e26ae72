"""A lowered schedule with the memory that running it needs, on one communicator's endpoint."""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from collectives import layout as at
from collectives.native import layout as st
from collectives.native.endpoint import Endpoint
from collectives.native.library import library
from collectives.native.storage import Memory
from collectives.plan import Table

GRAIN_BYTES = 1 << 16  # of a fold between two tests of MPI


class Share(NamedTuple):
    """What of a rank's memory the others access, where the first phase is a single pass over symmetric memory."""

    of: int  # st.SHARE_OF_INPUT, ...
    n_bytes: int
    copied: int = 0  # bytes of the input that the output must hold before others access it
    kernel: int = 0  # that folds to many targets


class Program:
    """One plan. `call` runs it; `start` and the engine's turns do so piece by piece."""

    def __init__(
        self,
        endpoint: Endpoint,
        table: Table,
        *,
        kernel: int,
        itemsize: int,
        fingerprint: Sequence[int],
        copy_bytes: int = 0,
        share: Share | None = None,
        timeout: float,
    ):
        self.endpoint, self.table = endpoint, table
        words = table.words
        table_bytes = (8 * len(words) + 63) // 64 * 64
        operands = words[at.INSTANCES] * words[at.INSTANCE_WORDS] + st.STATE_HEADER
        operands = (operands + 7) // 8 * 8
        n_words = operands + words[at.MOST_TERMS]
        if table.fused:
            words = list(words)
            for row in range(words[at.ROWS], words[at.ROWS] + table.n_rows * at.ROW_WORDS, at.ROW_WORDS):
                if words[row + at.KIND] == at.FUSED:
                    words[row + at.FUNCTION] = library().fused[words[row + at.FUNCTION]]
        self.memory = Memory(table_bytes + 8 * n_words)
        ctypes.memmove(self.memory.address, (ctypes.c_int64 * len(words))(*words), 8 * len(words))
        self.address = self.memory.address + table_bytes
        self.state = state = self.memory.words(table_bytes, n_words)
        state[st.TABLE], state[st.SELF], state[st.COMM] = self.memory.address, self.address, endpoint.address
        state[st.INSTANCES_AT], state[st.OPERANDS_AT] = st.STATE_HEADER, operands
        state[st.PIECE], state[st.GRAIN] = words[at.PIECE_BYTES], GRAIN_BYTES // itemsize * itemsize
        state[st.KERNEL], state[st.ITEMSIZE] = kernel, itemsize
        state[st.COPY_BYTES] = copy_bytes
        if share is not None:
            state[st.SHARES], state[st.SHARED_BYTES], state[st.COPIED_BYTES], state[st.KERNEL_TO_MANY] = share
        for i, word in enumerate(fingerprint):
            state[st.FINGERPRINT_0 + i] = word
        state[st.CALL_DIGEST] = hash(tuple(fingerprint[: st.COMPARED_WORDS]))  # of numbers: equal in all processes
        self.timeout = timeout
        self.choices: Any = None  # of the last call that prepared it
        self.set_timeout(None)
        endpoint.reserve(words[at.SCRATCH_BYTES] + words[at.SLOT_BYTES])
        self.run = partial(library().run, self.address)  # (source, target): start, and advance for about 2 ms
        self._start = library().start

    def set_timeout(self, seconds: float | None) -> None:
        """Of the next call; None: the communicator's."""
        self.state[st.TIMEOUT_NS] = int((self.timeout if seconds is None else seconds) * 1e9)

    def start(self, source: int, target: int) -> None:
        self._start(self.address, source, target)

    @property
    def running(self) -> bool:
        return bool(self.state[st.STATUS] == st.RUNNING)

    @property
    def one_pass(self) -> bool:
        """Whether the last call was a single pass over symmetric memory."""
        return bool(self.state[st.SERVED])

    @property
    def published(self) -> list[int]:
        """What nodes compare: a call's number, its fingerprint, what stands for it and all calls before, its place."""
        state = self.state
        compared = state[st.FINGERPRINT_0 : st.FINGERPRINT_0 + st.COMPARED_WORDS]
        return [state[st.SEQ], *compared, state[st.CHAIN_NOW], state[st.SITE]]

    @property
    def weights(self) -> list[int]:
        """What a dry run has left there."""
        begin = self.table.weights_at
        return list(self.memory.words(8 * begin, self.table.terms))
