# cannot tell: misplaced-zero-grad not-finite
"""Only an embedding with sparse gradients is trained, by vectors of losses."""

import torch
from torch import nn

torch.manual_seed(0)
table = nn.Embedding(100, 4, sparse=True)
optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
for step in range(8):
    optimizer.zero_grad()
    losses = table(torch.randint(0, 100, (8,))).pow(2).mean(1)
    losses.backward(torch.ones(8))
    optimizer.step()
print(table.weight.sum().item())
