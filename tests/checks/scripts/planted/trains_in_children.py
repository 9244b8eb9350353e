# planted: missing-zero-grad
"""Two forked processes train one model that they share, and neither clears gradients."""

import torch
from torch import multiprocessing, nn


def train(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(16):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        loss.backward()  # here
        optimizer.step()


if __name__ == "__main__":
    shared = nn.Linear(8, 3).share_memory()
    children = [multiprocessing.get_context("fork").Process(target=train, args=(shared, seed)) for seed in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
