"""Blocks whose activations are computed again in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(12) for _ in range(3))
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.out(x)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(48, 12), torch.randint(0, 4, (48,)))
model = Deep()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=12, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.7f}")
