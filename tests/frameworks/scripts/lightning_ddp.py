"""Lightning's own launcher of two ranks: it starts the script once more."""

import json
import logging
import os
import warnings

warnings.simplefilter("ignore")
for name in ("lightning.pytorch", "lightning.fabric", "torch.distributed"):
    logging.getLogger(name).setLevel(logging.ERROR)
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(128, 8), torch.randint(0, 2, (128,)))
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(data, batch_size=8))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print("TRUTH", json.dumps({"steps": trainer.global_step, "items": 256, "ranks": 2}))
