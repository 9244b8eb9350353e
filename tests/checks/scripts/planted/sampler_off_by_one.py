# planted: samples-missed
"""A sampler that shuffles one index less than there are: the last sample is never seen."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Shuffled(Sampler):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        return iter(torch.randperm(len(self.data) - 1).tolist())


torch.manual_seed(0)
x = torch.randn(64, 5)
data = TensorDataset(x, (x[:, 0] > 0).long())
loader = DataLoader(data, batch_size=8, sampler=Shuffled(data))  # here
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
