"""A diffusion model of points, with a moving average of its weights that is used to sample."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
STEPS = 20
beta = torch.linspace(1e-3, 0.2, STEPS)
alpha = torch.cumprod(1 - beta, 0)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.when = nn.Embedding(STEPS, 8)
        self.net = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.when(t)], 1))


model = Denoiser()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
angle = torch.rand(256) * 6.283
points = torch.stack([angle.cos(), angle.sin()], 1)
for it in range(25):
    x0 = points[torch.randint(0, 256, (32,))]
    t = torch.randint(0, STEPS, (32,))
    noise = torch.randn_like(x0)
    xt = alpha[t, None].sqrt() * x0 + (1 - alpha[t, None]).sqrt() * noise
    loss = nn.functional.mse_loss(model(xt, t), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    print(it, loss.item())


@torch.no_grad()
def sample(n=8):
    ema.eval()
    x = torch.randn(n, 2)
    for t in reversed(range(STEPS)):
        guess = ema(x, torch.full((n,), t))
        x = (x - beta[t] / (1 - alpha[t]).sqrt() * guess) / (1 - beta[t]).sqrt()
        if t:
            x = x + beta[t].sqrt() * torch.randn_like(x)
    return x


print(sample().norm(dim=1).mean().item())
