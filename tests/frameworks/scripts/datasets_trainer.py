"""Hugging Face's Trainer on a Dataset of theirs with map, whose samples are fetched a batch at a time."""

import json
import logging
import tempfile
import warnings

warnings.simplefilter("ignore")
import datasets
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.utils import logging as theirs

theirs.set_verbosity_error()
datasets.disable_progress_bars()
logging.disable(logging.WARNING)
set_seed(0)
rows = datasets.Dataset.from_dict({"x": [[float(i), i + 1.0, i + 2.0, 1.0] for i in range(64)], "labels": [i % 2 for i in range(64)]})
rows = rows.map(lambda row: {"x": [value / 64 for value in row["x"]]}).with_format("torch")
counted = {"steps": 0, "items": 0, "evaluation": 0, "loader_items": 0}


class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.net = nn.Linear(4, 2)
        self.post_init()

    def forward(self, x, labels):
        if self.training:
            counted["steps"] += 1
            counted["items"] += len(x)
            counted["loader_items"] += len(x)
        else:
            counted["evaluation"] += 1
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=2, per_device_train_batch_size=8, per_device_eval_batch_size=32, gradient_accumulation_steps=2, eval_strategy="epoch",
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=Model(PretrainedConfig()), args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("TRUTH", json.dumps(counted))
