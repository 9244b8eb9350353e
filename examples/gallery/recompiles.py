"""A compiled model counts its calls in an attribute: each new number is compiled anew, up to torch's limit. After: in a buffer."""

import sys

import torch
from torch import nn

torch.set_num_threads(1)


class WarmedUp(nn.Module):
    """Its last layer grows in over the first 100 calls."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 4)
        )
        if sys.argv[1] == "before":
            self.calls = 0
        else:
            self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layers(x) * (self.calls / 100)


model = WarmedUp()
compiled = torch.compile(
    model, backend="aot_eager"
)  # compiles without a C++ compiler, in tenths of a second
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(32, 64)
for _ in range(300):
    optimizer.zero_grad()
    compiled(x).square().mean().backward()
    optimizer.step()
