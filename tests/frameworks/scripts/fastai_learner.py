"""fastai's Learner: its DataLoader is its own, and makes torch's iterators by itself."""

import json

import fastai.callback.progress  # gives Learner its no_bar
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import SGD
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
counted = {"steps": 0, "items": 0, "evaluation": 0}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)

    def forward(self, x):
        if self.training:
            counted["steps"] += 1
            counted["items"] += len(x)
        else:
            counted["evaluation"] += 1
        return self.net(x)


loaders = DataLoaders(DataLoader(data, bs=16, shuffle=True, num_workers=0), DataLoader(data, bs=32, num_workers=0))
learner = Learner(loaders, Model(), loss_func=nn.CrossEntropyLoss(), opt_func=SGD)
with learner.no_bar(), learner.no_logging():
    learner.fit(2, 0.1)
print("TRUTH", json.dumps(counted))
