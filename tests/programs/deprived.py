"""Run a command on a machine that lacks something: python -m tests.programs.deprived WANTS COMMAND...

WANTS, joined by commas: `memory` leaves 64 MB of /dev/shm, `home` a home that cannot be written, `ports` none that is
free, `reading` forbids process_vm_readv. For root, in namespaces of their own: nothing outside notices.
"""

import ctypes
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PORT = 50_000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}
# Of classic BPF: load a word, jump where equal, return; what a filter answers.
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # with EPERM
APART = ["unshare", "--mount", "--net", "--ipc"]


def memory() -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"], check=True)


def home() -> None:
    folder = tempfile.mkdtemp()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], check=True)
    os.environ["HOME"] = folder
    for name in ("XDG_CACHE_HOME", "TREERING_CACHE_DIR"):
        os.environ.pop(name, None)


def ports() -> None:
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(f"{PORT} {PORT}")
    taken = socket.create_server(("", PORT))
    taken.set_inheritable(True)
    taken.detach()


def reading() -> None:
    filters = [(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 1, PROCESS_VM_READV[platform.machine()]), (RETURN, 0, 0, REFUSE)]
    code = b"".join(struct.pack("HBBI", *each) for each in [*filters, (RETURN, 0, 0, ALLOW)])
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter can be set")


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for want in sys.argv[1].split(","):
        {"memory": memory, "home": home, "ports": ports, "reading": reading}[want]()
    os.execvp(sys.argv[2], sys.argv[2:])
