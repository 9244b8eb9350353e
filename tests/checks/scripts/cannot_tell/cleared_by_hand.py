# cannot tell: misplaced-zero-grad
"""What clears the gradients before each step is no zero_grad."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    for parameter in model.parameters():
        parameter.grad = None
    optimizer.step()
print(model.weight.sum().item())
