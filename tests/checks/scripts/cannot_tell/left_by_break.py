# cannot tell: same-augmentation samples-missed samples-twice not-shuffled same-order
"""No epoch of training ends; those of the validation do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
training, held_out = DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for n, (x, y) in enumerate(training):
        if n == 5:
            break
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        print(sum(nn.functional.cross_entropy(model(x), y).item() for x, y in held_out))
