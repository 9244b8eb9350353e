"""No loader, no optimizer, no module: batches by slices of a permutation, gradients set to None, weights moved under no_grad."""

import torch

torch.manual_seed(0)
x = torch.randn(128, 3)
y = x @ torch.tensor([[1.5], [-2.0], [0.3]]) + 0.1
w1 = (torch.randn(3, 8) * 0.3).requires_grad_()
w2 = (torch.randn(8, 1) * 0.3).requires_grad_()
for epoch in range(3):
    order = torch.randperm(128)
    for i in range(0, 128, 32):
        pick = order[i : i + 32]
        loss = ((x[pick] @ w1).relu() @ w2 - y[pick]).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for w in (w1, w2):
                w -= 0.1 * w.grad
                w.grad = None
    print(loss.item())
