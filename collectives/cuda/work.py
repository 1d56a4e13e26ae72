"""A call on a GPU that is under way: an event, and who must look whether kernels have failed."""

import time
from collections.abc import Callable
from typing import Any

from collectives.cuda.driver import Driver
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
