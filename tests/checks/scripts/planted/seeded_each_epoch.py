# planted: same-order
"""The seed is set again at the start of each epoch: the order is shuffled, and the same in each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, x[:, :2].argmax(1)), batch_size=8, shuffle=True)
model = nn.Linear(5, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    torch.manual_seed(42)
    for a, b in loader:  # here
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
