"""Tuning an MPI library's own collectives, for programs that never heard of treering."""

from tuner.targets.impi import IntelMPI
from tuner.targets.mpich import MPICH
from tuner.targets.openmpi import OpenMPI
from tuner.targets.target import DEFAULT, Target

__all__ = ["DEFAULT", "TARGETS", "Target"]

TARGETS: dict[str, Target] = {target.name: target for target in (OpenMPI(), MPICH(), IntelMPI())}
