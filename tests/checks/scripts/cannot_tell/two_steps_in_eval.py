# cannot tell: eval-while-training learning-rate-zero dead-units
"""Two steps in eval mode, with a learning rate of 0 and units that are never above zero."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
with torch.no_grad():
    model[0].bias.fill_(-100.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(64, 4)).pow(2).mean().backward()
    optimizer.step()
print(model[0].weight.sum().item())
