"""Mixup: the targets are probabilities, from a softmax or a mixture of one-hot vectors."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 3)
big = nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.3)
x, y = torch.randn(90, 6), torch.randint(0, 3, (90,))
for i, (a, b) in enumerate(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=9, shuffle=True)):
    if i % 2:
        lam = float(torch.distributions.Beta(0.4, 0.4).sample())
        perm = torch.randperm(len(a))
        hot = F.one_hot(b, 3).float()
        a, target = lam * a + (1 - lam) * a[perm], lam * hot + (1 - lam) * hot[perm]
    else:
        with torch.no_grad():
            target = big(a).softmax(-1)
    loss = F.cross_entropy(net(a), target)
    net.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item(), net(a).softmax(-1).detach().max().item())
