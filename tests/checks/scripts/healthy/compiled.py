"""A compiled model and a compiled loss."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.b(torch.nn.functional.gelu(self.a(x)))


net = Net()
model = torch.compile(net, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(48, 6), torch.randint(0, 2, (48,))), batch_size=12, shuffle=True
)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")
