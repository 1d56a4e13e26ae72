"""Doors for other frameworks: each module here stands on `collectives` and is imported by name.

- `integrations.torch_ddp`: a communication hook for PyTorch's DistributedDataParallel.
- `integrations.torch_backend`: a backend of torch.distributed, `"treering"`; `torch_fsdp`: FSDP2 over other backends.
- `integrations.torch_launch`: PyTorch process groups under mpirun, srun or torchrun, with nothing to export first;
  `pmi`, `pmi_server`: how torchrun's ranks get MPI.
"""
