"""Logistic regression by LBFGS: the optimizer calls the closure as often as it likes."""

import torch

torch.manual_seed(0)
X = torch.randn(100, 5)
y = (X @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]) > 0).float()
w = torch.zeros(5, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
opt = torch.optim.LBFGS([w, b], lr=0.5, max_iter=4)


def closure():
    opt.zero_grad()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(X @ w + b, y) + 1e-3 * (w**2).sum()
    loss.backward()
    return loss


for it in range(6):
    loss = opt.step(closure)
    print(it, loss.item())
