# planted: not-shuffled
"""The batches are counted, as trainers do: the iterator is never asked for one more than there are. The data set is sorted by class."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(4).repeat_interleave(24)
data = TensorDataset(torch.randn(96, 6) + labels[:, None], labels)
loader = DataLoader(data, batch_size=12)  # here
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    batches = iter(loader)
    for _ in range(8):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(loss.item())
