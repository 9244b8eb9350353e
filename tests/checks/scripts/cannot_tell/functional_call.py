# cannot tell: eval-while-training train-while-evaluating dead-units softmax-before-cross-entropy loss-broadcast
"""The model is a function of a dictionary of tensors, and its loss is written by hand."""

import torch

torch.manual_seed(0)
weights = {"first": torch.randn(4, 8, requires_grad=True), "second": torch.randn(8, 3, requires_grad=True)}
optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
for step in range(10):
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    chances = torch.softmax(torch.tanh(x @ weights["first"]) @ weights["second"], 1)
    loss = -chances.gather(1, y[:, None]).log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
