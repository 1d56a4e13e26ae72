"""Lightning, with treering averaging DDP's gradients. It needs `pip install lightning`.

torchrun --nproc-per-node 2 examples/lightning_ddp.py
"""

try:
    import lightning
except ImportError:
    raise SystemExit("this example needs Lightning: pip install lightning") from None

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

from integrations.torch_ddp import DDPHookState, allreduce_hook


class Regression(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(20, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[0].sum(1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Strategy(DDPStrategy):  # type: ignore[misc]
    """A state's ranks meet when the process group is there, which Lightning makes after its strategy."""

    def setup_distributed(self) -> None:
        super().setup_distributed()
        self._ddp_comm_state, self._ddp_comm_hook = DDPHookState(), allreduce_hook


data = DataLoader(TensorDataset(torch.randn(512, 20)), batch_size=64)
strategy = Strategy(process_group_backend="gloo")
trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=5, strategy=strategy, logger=False)
trainer.fit(Regression(), data)
