"""Run a command of treering on ranks of a bed of hosts.

python -m tests.hosts.command [--rate 1gbit] [--library mpich] h1:2,h2:2 tune --sizes 8:4M:4 --output table.json
"""

import argparse
import os
import sys

from tests import launch
from tests.hosts.bed import AGENT, Bed, environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of each host's link, each way (default: %(default)s)")
    parser.add_argument("--library", default="mpich", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=600, help="after which it is ended (default: %(default)s)")
    parser.add_argument("hosts", help="h1:2,h2:2")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="tune, bench, explain, ... and its own flags")
    options = parser.parse_args()
    library = launch.find(options.library)
    if library is None:
        parser.error(f"no environment for {options.library}: run `make {options.library}`")
    name, *flags = options.command
    told = [library.python, "-m", "tuner.cli", name, "--hosts", options.hosts, "--agent", AGENT, *flags]
    hosts = [host.partition(":")[0] for host in options.hosts.split(",")]
    over_tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"} if options.library == "openmpi" else {}
    with Bed(hosts, options.rate) as bed:
        settings = library.environment(environment(options.library) | over_tcp)
        done = launch.run_command(bed.command("h1", told), settings, timeout=options.seconds, cwd=os.getcwd())
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
