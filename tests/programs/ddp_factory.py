"""A model for `treering tune --ddp tests.programs.ddp_factory:make`."""

import torch
from torch import nn


def make() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))), torch.ones(2, 512)
