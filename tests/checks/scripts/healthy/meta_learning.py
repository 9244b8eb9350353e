"""MAML by torch.func: inner updates on parameters that are not parameters of any optimizer."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
params = dict(net.named_parameters())
meta = torch.optim.Adam(params.values(), lr=5e-3)


def loss_of(p, x, y):
    return ((functional_call(net, p, (x,)) - y) ** 2).mean()


def task_loss(xs, ys, xq, yq):
    inner = grad(loss_of)(params, xs, ys)
    fast = {k: params[k] - 0.05 * inner[k] for k in params}
    return loss_of(fast, xq, yq)


for it in range(12):
    amplitude, phase = torch.rand(4, 1, 1) * 2 + 0.5, torch.rand(4, 1, 1) * 3
    x = torch.rand(4, 10, 1) * 6 - 3
    y = amplitude * torch.sin(x + phase)
    loss = vmap(task_loss)(x[:, :5], y[:, :5], x[:, 5:], y[:, 5:]).mean()
    meta.zero_grad()
    loss.backward()
    meta.step()
    print(it, round(loss.item(), 6))
