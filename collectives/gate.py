"""A lock for what is entered a million times by one thread, and seldom by another."""

import threading
import time
from types import TracebackType

NAP_SECONDS = 5e-5


class Gate:
    """Whoever takes the only item of a list is inside: much cheaper than threading.Lock where nobody else wants it.

    Who finds it taken looks again after a nap. Who enters over and over gives way in between, where others wait.
    """

    def __init__(self) -> None:
        items: list[None] = [None]
        self.take, self.put = items.pop, items.append  # each of them atomic
        self._waiting: set[int] = set()

    def wait(self) -> None:
        """Take the item when it is there again."""
        me = threading.get_ident()
        self._waiting.add(me)
        try:
            while True:
                time.sleep(NAP_SECONDS)
                try:
                    return self.take()
                except IndexError:
                    continue
        finally:
            self._waiting.discard(me)

    def give_way(self) -> None:
        """Let others in that wait."""
        if self._waiting:
            time.sleep(4 * NAP_SECONDS)

    def __enter__(self) -> None:
        try:
            self.take()
        except IndexError:
            self.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.put(None)
