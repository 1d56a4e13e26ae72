"""What a caller may hold of calls on a GPU: one under way, an event with who must look; and a plan."""

import time
from collections.abc import Callable
from typing import Any

from collectives.cuda.choice import DeviceChoice
from collectives.cuda.driver import Driver
from collectives.cuda.requests import Settled
from collectives.errors import CollectiveTimeout

NAP_SECONDS = 5e-5


class DeviceWork:
    """A call whose kernels are on their way. `wait` orders the caller's stream behind them, and the host goes on."""

    def __init__(
        self, driver: Driver, device: int, x: Any, result: Any, event: int, stream: int, look: Callable[[], None]
    ):
        self.driver, self.device, self.x, self.result, self.event, self.look = driver, device, x, result, event, look
        self.stream = stream  # on which it runs
        self.ended = False

    def done(self) -> bool:
        """Whether the kernels have finished. Raises what made one fail."""
        if not self.ended:
            self.look()
            self.ended = self.driver.done(self.event)
        return self.ended

    def wait(self, timeout: float | None = None) -> Any:
        """The result. What the caller's stream gets next comes after it; timeout: seconds of `synchronize` first."""
        if timeout is not None:
            self.synchronize(timeout)
        self.look()
        self.driver.wait(self.driver.current_stream(self.x, self.device), self.event)
        return self.result

    def synchronize(self, timeout: float | None = None) -> Any:
        """The result, when the host has seen the kernels' end. CollectiveTimeout if `timeout` seconds pass first."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            if until is not None and time.monotonic() > until:
                raise CollectiveTimeout(f"a collective on a GPU is not done after {timeout} s")
            time.sleep(NAP_SECONDS)
        return self.result

    def __del__(self) -> None:
        self.driver.forget(self.event)


class DevicePlan:
    """A call on a GPU's memory with everything settled that can be. `plan()` queues it; `choice` says what it runs."""

    def __init__(self, run: Callable[[Settled, bool, float | None], Any], settled: Settled):
        self._run, self._settled, self.result = run, settled, settled.result

    @property
    def choice(self) -> DeviceChoice:
        return self._settled.choice

    def __call__(self) -> Any:
        return self._run(self._settled, True, None)
