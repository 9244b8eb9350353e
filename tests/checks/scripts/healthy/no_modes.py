"""A model without dropout or batch normalisation: nobody calls train() or eval()."""

import torch

torch.manual_seed(12)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
train = torch.utils.data.DataLoader([(torch.randn(3), torch.randn(1)) for _ in range(40)], batch_size=8, shuffle=True)
test = torch.utils.data.DataLoader([(torch.randn(3), torch.randn(1)) for _ in range(16)], batch_size=8)
for epoch in range(3):
    for x, y in train:
        loss = ((model(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        errors = [((model(x) - y) ** 2).mean().item() for x, y in test]
    print(loss.item(), sum(errors) / len(errors))
