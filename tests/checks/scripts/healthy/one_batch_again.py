"""Can it learn one batch by heart? The first batch of a loader, again and again."""

import torch
from torch import nn

torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), batch_size=8)
x, y = next(iter(loader))
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(20):
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
