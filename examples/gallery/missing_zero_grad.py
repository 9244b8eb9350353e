"""Nobody clears the gradients: those of all batches so far add up. After: cleared before each backward pass."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(2000, 8)
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True).sign()), batch_size=50, shuffle=True)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    for inputs, target in loader:
        if sys.argv[1] == "after":
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        optimizer.step()
print(f"loss {nn.functional.mse_loss(model(x), x.prod(1, keepdim=True).sign()).item():.3f}")
