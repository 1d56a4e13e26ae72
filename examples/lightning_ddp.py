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

from integrations.torch_ddp import register


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(20, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[0].sum(1, keepdim=True))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Treering(DDPStrategy):
    """Lightning registers a `ddp_comm_hook=` of its strategy on GPUs, and leaves it out on CPUs without a word."""

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert self.model is not None
        self.state = register(self.model)


torch.set_num_threads(1)
data = DataLoader(TensorDataset(torch.randn(512, 20)), batch_size=32)
# On GPUs: DDPStrategy(ddp_comm_state=DDPHookState(), ddp_comm_hook=allreduce_hook)
strategy = Treering(process_group_backend="gloo")
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, max_epochs=10, strategy=strategy, logger=False, enable_checkpointing=False,
    enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Regression(), data)
if trainer.is_global_zero:
    (bucket,) = strategy.state.report()
    print(
        f"{trainer.world_size} ranks: loss {trainer.callback_metrics['loss']:.4f}, {bucket['calls']} buckets averaged"
    )
