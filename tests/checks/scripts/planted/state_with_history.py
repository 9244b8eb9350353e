# planted: graph-kept
"""The state of a recurrent net is carried on with its history: each backward pass goes through all steps before."""

import torch
from torch import nn

torch.manual_seed(0)
inner, head = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)
state = torch.zeros(8, 4)
for step in range(40):
    state = torch.tanh(inner(torch.randn(8, 4)) + 0.5 * state)
    loss = head(state).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # here
    optimizer.step()
print(loss.item())
