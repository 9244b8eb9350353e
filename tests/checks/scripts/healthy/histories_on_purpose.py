"""Graphs that live longer than a step on purpose: truncated backpropagation, an episode's losses, the best loss, a window of the last ones."""

from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-2)
window, best, losses = deque(maxlen=4), None, []
for episode in range(40):
    state, loss = torch.zeros(16, 8), 0
    for _ in range(3):
        state = cell(torch.randn(16, 4), state)
        loss = loss + head(state).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    window.append(loss)
    losses.append(loss.detach())
    best = loss if best is None or loss < best else best
print(best.item(), sum(window).item(), torch.stack(losses).mean().item())
