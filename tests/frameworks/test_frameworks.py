"""Frameworks that own the training loop need no special case: their scripts print the same, and steps, items and evaluation are counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Place
from frameworks_env import ENV
from pages import DOCS, check

pytestmark = pytest.mark.frameworks

MADE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(128, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
"""

LIGHTNING = """
import warnings
warnings.simplefilter("ignore")
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning
from made import DataLoader, data, nn, torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)
    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.net(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model = Model()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(model, DataLoader(data, batch_size=16), DataLoader(data, batch_size=32))
print(model.net.weight.sum().item())
"""

ACCELERATE = """
from accelerate import Accelerator
from made import DataLoader, data, nn, torch

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
for epoch in range(2):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    print(loss.item())
"""

TRAINER = """
import logging, os, tempfile, warnings
warnings.simplefilter("ignore")
import torch
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.utils import logging as theirs
theirs.set_verbosity_error()
set_seed(0)
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16)

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return {"input_ids": torch.arange(i, i + 8) % 50, "labels": torch.tensor(i % 2)}

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=16, per_device_eval_batch_size=32, eval_strategy="epoch", use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), eval_dataset=Texts())
    trainer.remove_callback(PrinterCallback)  # it prints times
    trainer.train()
print(model.classifier.weight.sum().item())
"""


def trained(place: Place, script: str) -> Mapping[str, Any]:
    """The summary of a script that prints under voirkit what it prints under python."""
    place.write(main=script, made=MADE)
    theirs = place.python("main.py", env=ENV, timeout=280)
    ours = place.voirkit("--quiet", "main.py", env=ENV, timeout=280)
    assert (ours.code, ours.out) == (theirs.code, theirs.out), ours.err
    assert theirs.code == 0, theirs.err
    found: dict[str, Any] = json.loads((place.folder / "run" / "summary.json").read_text())
    return found


def test_lightning(place: Place) -> None:
    # It counts its batches, and never asks for the one that is not there.
    summary = trained(place, LIGHTNING)
    assert (summary["steps"]["n"], summary["steps"]["items"]) == (16, 256)
    assert summary["evaluation"]["n"] == 8


def test_accelerate_with_accumulated_gradients(place: Place) -> None:
    summary = trained(place, ACCELERATE)
    assert (summary["steps"]["n"], summary["steps"]["items"]) == (16, 256)


def test_the_trainer_of_transformers(place: Place) -> None:
    summary = trained(place, TRAINER)
    assert (summary["steps"]["n"], summary["steps"]["items"]) == (8, 128)
    assert summary["evaluation"]["n"] == 4


def test_the_page_of_frameworks_does_what_it_shows(tmp_path: Path) -> None:
    check(DOCS / "howto" / "frameworks.md", tmp_path, ENV)
