"""Five folds, a model and an optimizer each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
X = torch.randn(60, 4)
data = TensorDataset(X, X @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]]))
order = torch.randperm(len(data)).tolist()
scores = []
for k in range(5):
    held = order[k * 12 : (k + 1) * 12]
    rest = [i for i in order if i not in held]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    for epoch in range(2):
        model.train()
        for x, y in DataLoader(Subset(data, rest), batch_size=8, shuffle=True):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
    model.eval()
    with torch.no_grad():
        scores.append(sum(nn.functional.mse_loss(model(x), y).item() for x, y in DataLoader(Subset(data, held), batch_size=12)))
    print("fold", k, loss.item(), scores[-1])
