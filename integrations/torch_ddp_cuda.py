"""DDP's buckets on a GPU: averaged on a stream of the communicator's, beside the backward pass.

On the cuda-ipc path the host waits for nothing: a bucket's future is completed as soon as its kernels are launched,
under the stream that they run on, so that whoever uses it is ordered behind them. Through the host, buckets are
finished when the backward pass has ended.
"""

from typing import TYPE_CHECKING, Any

import torch

from collectives.cuda.work import DeviceWork
from integrations.buckets import as_numbers

if TYPE_CHECKING:
    import collectives


class GpuBuckets:
    """What one state's buckets on a GPU have begun and not ended."""

    def __init__(self) -> None:
        self.begun: list[tuple[Any, torch.Tensor, Any]] = []
        self.tasks: set[int] = set()

    def begin(self, comm: "collectives.Communicator", tensor: torch.Tensor) -> Any:
        """The future of a bucket's average. Kernels fold all ranks at once, hence a mean is one pass."""
        future: Any = torch.futures.Future(devices=[tensor.device])
        work = comm.allreduce(as_numbers(tensor), op="avg", blocking=False)
        if isinstance(work, DeviceWork):
            with torch.cuda.stream(torch.cuda.ExternalStream(work.stream, tensor.device)):
                future.set_result(tensor)  # records an event there, for whoever waits
            tensor.record_stream(torch.cuda.ExternalStream(work.stream, tensor.device))
        else:
            self.begun.append((work, tensor, future))
            self._finish_after_backward()
        return future

    def _finish_after_backward(self) -> None:
        task = torch._C._current_graph_task_id()
        if torch._C._current_autograd_node() is None:
            self.finish()
        elif task not in self.tasks:
            self.tasks.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def finish(self) -> None:
        """Wait for what went through the host. Raises what made it fail."""
        begun, self.begun = self.begun, []
        self.tasks.clear()
        for work, tensor, future in begun:
            work.wait()
            future.set_result(tensor)
