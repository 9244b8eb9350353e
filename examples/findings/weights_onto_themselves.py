"""Early stopping that keeps ``model.state_dict()`` as the best weights: the model's own tensors. After: a copy of them."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(1200, 20)
targets = inputs[:, :1] + torch.randn(1200, 1)
loader = DataLoader(TensorDataset(inputs[:200], targets[:200]), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
best, best_loss = {}, float("inf")


def held_out():
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(inputs[200:]), targets[200:]).item()


for _ in range(40):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    loss = held_out()
    if loss < best_loss:
        best_loss = loss
        best = copy.deepcopy(model.state_dict()) if sys.argv[1] == "after" else model.state_dict()
model.load_state_dict(best)
print(f"the best loss was {best_loss:.3f}, that of the weights loaded back is {held_out():.3f}")
