"""One broken sample of 3,000. After: inputs are clipped."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(3000, 16)
targets = inputs.sum(1, keepdim=True)
inputs[1500] = 1e4
if sys.argv[1] == "after":
    inputs = inputs.clamp(-5, 5)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
losses = []
for x, y in DataLoader(TensorDataset(inputs, targets), batch_size=30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(
    f"the largest loss is {max(losses):.4g} in step {losses.index(max(losses))}, the median {sorted(losses)[50]:.4g}"
)
