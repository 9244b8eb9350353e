"""Loading, the model and the script's own code take about a third of each step (each waits for something): no part takes half of it."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((16, 64), index / 100)


class Remote(nn.Linear):
    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)


torch.set_num_threads(1)
model = Remote(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Batches(), batch_size=None):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
    time.sleep(0.009)
