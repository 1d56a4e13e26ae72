"""A communicator's calls on GPUs: what they are is agreed on the host, and what they do is ordered on streams.

The first call is collective on the host too: ranks tell each other their GPUs, and map each other's windows where they
can. After that a call on the `cuda-ipc` path waits for nothing on the host: it publishes what it is, launches, and
returns.
"""

import ctypes
import json
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

from collectives.buffers import View
from collectives.calls import Options
from collectives.cuda import choice as choices
from collectives.cuda import launcher
from collectives.cuda import layout as at
from collectives.cuda.aware import Aware, DoneWork, cuda_aware
from collectives.cuda.choice import AWARE, IPC, KERNELS, STAGED, DeviceChoice
from collectives.cuda.driver import Driver, driver
from collectives.cuda.launcher import Request
from collectives.cuda.memory import DeviceMemory, SymmetricMemory, attempt
from collectives.cuda.requests import DeviceCall, Requests, Settled
from collectives.cuda.schedules import Schedules
from collectives.cuda.source import ELEMENTS
from collectives.cuda.staged import Staged
from collectives.cuda.views import no_counts, view
from collectives.cuda.window import Shape
from collectives.cuda.work import DevicePlan, DeviceWork
from collectives.dtypes import HALVES, ITEMSIZE
from collectives.engine import ENGINE
from collectives.errors import CollectiveError, CollectiveTimeout, CommunicatorBroken, UnsupportedError
from collectives.flight import diagnosis
from collectives.handles import Several
from collectives.native import layout as st
from collectives.native.program import Program
from collectives.says import remark
from collectives.tables.table import GPU

if TYPE_CHECKING:
    from collectives.communicator import Communicator
    from collectives.tables.table import Rule

MOST_CALLS = 256  # whose agreement is kept


class OnDevice:
    """One communicator's GPU. Made at the first call; `ready` is collective."""

    def __init__(self, comm: "Communicator", timeout: float):
        self.comm, self.timeout, self.rank, self.size = weakref.proxy(comm), timeout, comm.rank, comm.size
        self.channel, self.plans, self.peers = comm._channel, comm._plans, comm._group.comm
        self.paths: tuple[str, ...] = ()
        self.why_not = ""  # the ipc path is not there
        self.last: DeviceChoice | None = None
        self.device = -1
        self._agreed: dict[tuple[object, ...], Program] = {}
        self._byte = ctypes.create_string_buffer(8)
        self._staged: Staged | None = None
        self._aware: Aware | None = None

    # ------------------------------------------------------------ getting ready
    def ready(self, device: int) -> None:
        """Meet the other ranks' GPUs. Collective; UnsupportedError on all ranks where one has none that serves."""
        if self.paths:
            return
        self.device, node = device, self.comm._group.node

        def introduce() -> bytes:
            self.driver: Driver = driver()
            self.driver.use(device)
            about = self.driver.properties(device)
            return json.dumps([about.name, about.bus, about.multiprocessors]).encode()

        everyone = [json.loads(said) for said in attempt(self.peers, "use CUDA", introduce)]
        self.names = [name for name, _, _ in everyone]
        self.side = self.driver.stream()
        self.ordered = self.driver.event()
        self.stream_before = self.side
        self.memory = DeviceMemory(self.driver, self.peers)
        sharing = max(sum(1 for _, bus, _ in everyone if bus == mine) for _, mine, _ in everyone)
        self.resident = max(1, min(count for _, _, count in everyone) // sharing)
        self.shape = Shape()
        if node.size != self.size:
            self.why_not = "the ranks are on several nodes"
        elif self.size > at.MAX_RANKS:
            self.why_not = f"there are {self.size} ranks, and a window is for {at.MAX_RANKS}"
        else:
            try:
                self._map_windows()
            except UnsupportedError as error:
                self.why_not = str(error)
        aware = self.peers.mpi is not None and self.peers.agree(cuda_aware())
        self.paths = (IPC,) * (not self.why_not) + (STAGED,) + (AWARE,) * aware
        if sharing > 1 and self.rank == 0:
            remark(f"{sharing} ranks share a GPU: without MPS (nvidia-cuda-mps-control) their kernels take turns")

    def _map_windows(self) -> None:
        window = self.memory.share(self.shape.window_bytes(self.size))
        self.report = self.driver.pin(4 * at.REPORT_WORDS)
        self.said = (ctypes.c_uint32 * at.REPORT_WORDS).from_address(self.report)
        self.symmetric = SymmetricMemory(self.memory, self.side)
        self.group = self.shape.group(
            self.rank, window.bases, int(self.timeout * 1e9), self.report, self.symmetric.table
        )  # fmt: skip
        self.schedules = Schedules(self.driver, self.rank, self.size, self.shape, self.side)
        self.window = window

    def agree(self, collective: str, dtype: str, op: str, root: int, count: int, what: str, memory: str) -> None:
        """Say to all ranks what the call is. The first of its kind waits until all have said the same."""
        key = collective, dtype, op, root, count, what, memory
        program = self._agreed.get(key)
        mark = diagnosis.fingerprint(collective, dtype, op, root, count, "", what, memory)
        address, first = ctypes.addressof(self._byte), program is None
        try:
            ENGINE.call(self.channel, program or self.plans.agreement(mark), address, address, self._byte)
        except CollectiveError:
            if IPC in self.paths:
                self.said[at.R_STOP] = 1  # kernels that wait for ranks which do something else
            raise
        if first:
            if len(self._agreed) == MOST_CALLS:
                self._agreed.clear()
            self._agreed[key] = self.plans.agreement(mark, waits=False)

    # ------------------------------------------------------------ calls
    def call(
        self, collective: str, x: Any, out: Any, how: dict[str, Any], blocking: bool, timeout: float | None,
        op: str, root: int, count: int | None,
    ) -> Any:  # fmt: skip
        """Run a collective on device memory, or one on each array of a list. What cannot be served is said on all
        ranks."""
        if how.pop("native", False):
            raise UnsupportedError("native=True is for memory of the host; leave it out")
        options = Options.of(how)

        def begin(x: Any, out: Any) -> Any:
            return self.run(self.prepare(DeviceCall(collective, x, out, op, root, options, count)), blocking, timeout)

        if not isinstance(x, list | tuple):
            return begin(x, out)
        works = [begin(each, None) for each in x]
        return x if blocking else Several(works, x)

    def prepare(self, call: DeviceCall) -> Settled:
        """Look at the call's memory, and choose what serves. The first call of a communicator is collective here."""
        takes = call.collective == "scatter" and call.root != self.rank  # and may have passed anything as x
        x = call.out if takes else call.x
        try:
            device = self._device_of(x)
            requests = Requests(self.rank, self.size, self._view, driver().like)
            request, result = requests.of(call.collective, call.x, call.out, call.op, call.root, call.count)
        except (TypeError, ValueError, BufferError, UnsupportedError) as error:
            self._refuse(call.collective, error)
            raise
        self.ready_for(call.collective, device)
        try:
            return Settled(request, self._choose(request, call.options), call.options, result, x)
        except (ValueError, UnsupportedError) as error:
            self._refuse(call.collective, error)
            raise

    def plan(self, collective: str, x: Any, arguments: Mapping[str, Any], options: Options) -> DevicePlan:
        """A call to be made often. arguments: what its method takes beside x, by name."""
        no_counts(arguments.get("send_counts"), arguments.get("recv_counts"))
        op, root = arguments.get("op", diagnosis.NO_OP), arguments.get("root", 0)
        call = DeviceCall(collective, x, arguments.get("out"), op, root, options, arguments.get("count"))
        return DevicePlan(self.run, self.prepare(call))

    def run(self, settled: Settled, blocking: bool, timeout: float | None) -> Any:
        """Say what the call is, and make it."""
        request, chosen = settled.request, settled.choice
        self.agree(
            request.collective, request.dtype, request.op, request.root, request.count,
            f"{chosen.algorithm} {chosen.params}", diagnosis.DEVICE,
        )  # fmt: skip
        self.last = chosen
        if chosen.path == STAGED:
            return self._through_the_host(settled, blocking, timeout)
        if chosen.path == AWARE:
            return self._by_messages(settled, blocking, timeout)
        return self._launch(settled, blocking, timeout)

    def ready_for(self, collective: str, device: int) -> None:
        """As `ready`, once all ranks are seen to come with device memory."""
        if not self.paths:
            self.agree(collective, "uint8", diagnosis.NO_OP, 0, 0, "first call", diagnosis.DEVICE)
            self.ready(device)

    def _refuse(self, collective: str, error: BaseException) -> None:
        """Tell the others that this rank cannot make its call: they get a MismatchError, and this rank its own."""
        with suppress(CollectiveError):
            self.agree(collective, "uint8", diagnosis.NO_OP, 0, 0, str(error), diagnosis.REFUSED)

    def _device_of(self, x: Any) -> int:
        if self.device >= 0:
            return self.device
        torch_device = getattr(getattr(x, "device", None), "index", None)
        if torch_device is not None:
            return int(torch_device)
        return driver().owner(x.__cuda_array_interface__["data"][0]).device

    def _view(self, x: Any, name: str, writes: bool) -> View:
        known = self.driver if self.paths else driver()
        return view(x, known, self._device_of(x), name, writes)

    def _choose(self, request: Request, options: Options) -> DeviceChoice:
        settings, params = self.comm._settings, dict(options.params)
        name, because = options.algorithm, "by default"
        if name is not None:
            because = "the call names it"
        elif request.collective in settings.overrides:
            name, given = settings.overrides[request.collective]
            params, because = {**given, **params}, "the communicator or TREERING_ALGORITHM names it"
        elif (rule := self._rule(request)) is not None:
            name, params = rule.algorithm, {**rule.params, **params}
            because = f"the rule for {rule}"
        chosen = choices.choose(
            request.collective, request.nbytes, self.size, self.paths, name, params, because=because
        )  # fmt: skip
        once = request.op == diagnosis.NO_OP or chosen.folds_once or chosen.path == STAGED
        if not once and (options.order == "fixed" or (options.precision == "accurate" and request.dtype in HALVES)):
            raise UnsupportedError(
                f"{request.collective} {chosen.algorithm} folds ranks in no fixed order, and more than once; "
                f"{', '.join(KERNELS[request.collective])} serves"
            )
        return chosen

    def _rule(self, request: Request) -> "Rule | None":
        """The table's, where the table is for this topology and this GPU."""
        table, kind = self.comm._settings.table, request.op if request.op != diagnosis.NO_OP else None
        if table is None or table.topology.fingerprint != self.comm.topology.fingerprint:
            return None
        if table.topology.device != self.names[0] or IPC not in self.paths:
            return None
        rule: Rule | None = table.find(request.collective, request.nbytes, request.dtype, kind, GPU)
        return rule

    # ------------------------------------------------------------ kernels
    def _launch(self, settled: Settled, blocking: bool, timeout: float | None) -> Any:
        self.look()
        request, chosen, result, x = settled.request, settled.choice, settled.result, settled.x
        d, kernels = self.driver, KERNELS[request.collective]
        current = d.current_stream(x, self.device)
        stream = current if blocking else self.side
        recorded = d.capturing(stream)  # into a graph: whoever replays it keeps it in order with other calls
        if request.count:
            if not blocking:
                self._after(stream, current)
            if self.stream_before != stream and not recorded:  # kernels of one rank take turns on its window
                d.wait(stream, self.ordered)
            self.group.patience = int((self.timeout if timeout is None else timeout) * 1e9)
            if chosen.algorithm in kernels:
                self._launch_kernel(request, chosen, stream)
            else:
                self._launch_steps(request, chosen, stream)
            if not recorded:
                d.record(self.ordered, stream)
                self.stream_before = stream
        if blocking:
            return result
        event = d.event()
        d.record(event, stream)
        return DeviceWork(d, self.device, x, result, event, stream, self.look)

    def _after(self, stream: int, before: int) -> None:
        """What `stream` gets from here on begins after what `before` has."""
        event = self.driver.event()
        self.driver.record(event, before)
        self.driver.wait(stream, event)
        self.driver.forget(event)  # CUDA frees it when it has served

    def _launch_kernel(self, request: Request, chosen: DeviceChoice, stream: int) -> None:
        shared = request.shared
        place = self.symmetric.find(shared.address, shared.n_bytes) if shared is not None else (0, 0)
        arguments = launcher.call(request, chosen, self.shape, place)
        blocks = launcher.grid(request.nbytes, self.resident, chosen["blocks"])
        kernel = "one_shot" if chosen.algorithm == choices.ONE_SHOT else "exchange"
        function = self.driver.function(kernel, request.dtype, request.folds)
        self.driver.launch(function, blocks, chosen["threads"], (self.group, arguments), stream)

    def _launch_steps(self, request: Request, chosen: DeviceChoice, stream: int) -> None:
        kept = self.schedules.find(request, chosen, self.resident)
        source, target = request.source.address, request.target.address
        if request.collective == "allreduce" and source != target:
            self.driver.copy(target, source, request.target.n_bytes, stream)
        function = self.driver.function("steps", request.dtype, request.folds)
        self.driver.launch(function, kept.blocks, chosen["threads"], (self.group, kept.steps(source, target)), stream)

    def look(self) -> None:
        """Raise what has gone wrong since: a kernel gave up, or the communicator is broken, which stops kernels."""
        code = self.said[at.R_CODE]
        if code and self.channel.broken is None:
            self.channel.break_(st.TIMEOUT, self._explain())
        if self.channel.broken is not None:
            self.said[at.R_STOP] = 1
            if isinstance(self.channel.broken, CollectiveTimeout) and code:
                raise self.channel.broken
            raise self.channel.broken_now()

    def _explain(self) -> CollectiveError:
        r = self.said
        if r[at.R_CODE] == at.STOPPED:
            return CommunicatorBroken("a kernel was stopped by its host")
        return CollectiveTimeout(
            f"rank {self.rank}: a kernel gave up: in block {r[at.R_BLOCK]}, waiting for rank {r[at.R_PEER]} "
            f"({at.KINDS[r[at.R_KIND]]}: {r[at.R_WANTED]} wanted, {r[at.R_SEEN]} seen). That rank is late, or does not "
            "make this call; timeout= or TREERING_TIMEOUT sets another deadline"
        )

    # ------------------------------------------------------------ through the host
    def _through_the_host(self, settled: Settled, blocking: bool, timeout: float | None) -> Any:
        request, chosen, options = settled.request, settled.choice, settled.options
        if self._staged is None:
            host = self.comm.split(0)
            self._staged = Staged(self.driver, self.device, host, self.timeout)
        stream = self.driver.current_stream(settled.x, self.device)
        how = {"order": options.order, "precision": options.precision} if request.op != diagnosis.NO_OP else {}
        work = self._staged.submit(
            request, settled.result, settled.x, stream, chosen["piece_bytes"], chosen["slots"], how
        )
        return work.wait(timeout) if blocking else work

    def _by_messages(self, settled: Settled, blocking: bool, timeout: float | None) -> Any:
        if self._aware is None:
            self._aware = Aware(self.driver, self.peers.mpi.Dup(), self.resident)
        stream, limit = self.driver.current_stream(settled.x, self.device), self.timeout if timeout is None else timeout
        try:
            self._aware.run(settled.request, stream, settled.choice["threads"], limit)
        except CollectiveTimeout as error:
            self.channel.break_(st.TIMEOUT, error)
            raise
        return settled.result if blocking else DoneWork(settled.result)

    # ------------------------------------------------------------ memory
    def empty(self, shape: int | Sequence[int], dtype: Any, device: str) -> Any:
        """Symmetric memory of a device, "cuda:1". Collective; UnsupportedError where ranks cannot map each other's."""
        name = str(dtype).removeprefix("torch.")
        kind, _, index = device.partition(":")
        if kind != "cuda" or name not in ELEMENTS:
            raise TypeError(f"device {device!r} is cuda or cuda:N, and dtype {name!r} one of {', '.join(ELEMENTS)}")
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        n_bytes = max(1, prod(sizes) * ITEMSIZE[name])
        self.ready_for("allreduce", int(index) if index else max(self.device, 0))
        self.agree("allreduce", name, diagnosis.NO_OP, 0, n_bytes, "empty", diagnosis.DEVICE)
        if IPC not in self.paths:
            raise UnsupportedError(f"these ranks cannot share memory of their GPUs: {self.why_not}")
        self.driver.synchronize(self.stream_before)  # no kernel uses what may be freed
        return self.symmetric.empty(name, sizes, n_bytes)

    def close(self) -> None:
        """Collective, with no call under way on any rank."""
        if not self.paths:
            return
        self.driver.synchronize(self.stream_before)
        if self._staged is not None:
            self._staged.close()
        if self._aware is not None:
            self._aware.close()
        if IPC in self.paths:
            self.schedules.close()
            self.symmetric.close()
            self.peers.meet()
            self.memory.close()
            self.driver.unpin(self.report)
