"""WGAN-GP: five steps of the critic a step of the generator, with a penalty on gradients of gradients."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
critic = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 1))
opt_g = torch.optim.Adam(generator.parameters(), 1e-3)
opt_c = torch.optim.Adam(critic.parameters(), 1e-3)
real_data = torch.randn(512, 2) * 0.5 + 2


def penalty(real, fake):
    eps = torch.rand(len(real), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    (g,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


for it in range(30):
    real = real_data[torch.randint(0, 512, (16,))]
    with torch.no_grad():
        fake = generator(torch.randn(16, 3))
    loss_c = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    if it % 5 == 4:
        for p in critic.parameters():
            p.requires_grad = False
        loss_g = -critic(generator(torch.randn(16, 3))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        for p in critic.parameters():
            p.requires_grad = True
        print(it, loss_c.item(), loss_g.item())
