"""Adversarial examples by the fast gradient sign, made in eval mode with gradients, trained on in train mode."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fgsm(model, x, y, epsilon=0.1):
    model.eval()
    x = x.clone().requires_grad_(True)
    loss = F.cross_entropy(model(x), y)
    grad = torch.autograd.grad(loss, x)[0]
    return (x + epsilon * grad.sign()).detach()


def pgd(model, x, y, epsilon=0.1, steps=2):
    model.eval()
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        F.cross_entropy(model(x + delta), y).backward()
        delta.data = (delta + epsilon / 2 * delta.grad.sign()).clamp(-epsilon, epsilon)
        delta.grad.zero_()
    return (x + delta).detach()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(96, 8)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16, shuffle=True)
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        bad = fgsm(model, a, b) if i % 2 else pgd(model, a, b)
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(bad), b)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
