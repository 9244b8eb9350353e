"""One data set, two loaders: what is trained on and what is validated on are told apart by samplers."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.sampler import SubsetRandomSampler


class Points(Dataset):
    def __init__(self, n=90):
        rng = np.random.default_rng(0)
        self.label = np.sort(rng.integers(0, 3, n))
        self.x = rng.normal(size=(n, 5)).astype("float32") + self.label[:, None].astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.label[i])


torch.manual_seed(0)
np.random.seed(0)
dataset = Points()
indices = list(range(len(dataset)))
np.random.shuffle(indices)
split = int(0.2 * len(dataset))
train_loader = DataLoader(dataset, batch_size=12, sampler=SubsetRandomSampler(indices[split:]))
valid_loader = DataLoader(dataset, batch_size=12, sampler=SubsetRandomSampler(indices[:split]))
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        valid = [nn.functional.cross_entropy(model(x), y).item() for x, y in valid_loader]
    print(epoch, loss.item(), np.mean(valid))
