"""The loss of each step is kept with its graph, for a curve at the end. After: its number."""

import resource
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(12800, 64), torch.randn(12800, 64))
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
curve = []
for x, y in DataLoader(data, batch_size=64):
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.mse_loss(output, y) + 0.01 * output.abs().sum(1).sqrt().mean()
    loss.backward(retain_graph=sys.argv[1] == "before")
    optimizer.step()
    curve.append(loss if sys.argv[1] == "before" else loss.item())
print(
    f"{len(curve)} losses kept, peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB"
)
