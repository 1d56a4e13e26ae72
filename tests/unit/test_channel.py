"""Watching the processes of the node, from several threads at a time."""

import os
import subprocess
import sys
import threading

from collectives.channel import Channel


def test_threads_may_ask_at_a_time_who_has_ended():
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fd = os.pidfd_open(sleeper.pid)
    channel = Channel.__new__(Channel)
    channel._peers = {fd: 3}
    found: list[object] = []

    def ask(call):
        try:
            found.extend(call() for _ in range(200))
        except RuntimeError as error:  # a poll object's, where two threads use one
            found.append(error)

    try:
        threads = [threading.Thread(target=ask, args=(lambda: channel._ended_within(1),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[]] * 800
        assert channel.ended() == []
        sleeper.communicate(b"\n")
        assert channel.has_ended(3)
        assert not channel.has_ended(2)
        assert channel.ended() == [3]
    finally:
        sleeper.kill()
        os.close(fd)
