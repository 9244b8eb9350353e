# cannot tell: no-gradient loss-not-connected misplaced-zero-grad foreign-parameters
"""One step of an optimizer whose parameters have no gradients: the loss is made again."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = torch.tensor(model(torch.randn(8, 4)).pow(2).mean().item(), requires_grad=True)
loss.backward()
optimizer.step()
print(loss.item())
