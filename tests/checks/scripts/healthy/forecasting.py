"""A time series: windows come in the order of time, on purpose, and the state of the network goes on from batch to batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, length=10):
        self.series, self.length = series, length

    def __len__(self):
        return len(self.series) - self.length - 1

    def __getitem__(self, i):
        return self.series[i : i + self.length, None], self.series[i + self.length]


torch.manual_seed(0)
time = torch.arange(0, 24, 0.1)
series = torch.sin(time) + 0.05 * torch.randn(len(time))
split = 180
train = DataLoader(Windows(series[:split]), batch_size=16, shuffle=False, drop_last=True)
test = DataLoader(Windows(series[split:]), batch_size=16, shuffle=False)
rnn, head = nn.RNN(1, 12, batch_first=True), nn.Linear(12, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for epoch in range(3):
    state = torch.zeros(1, 16, 12)
    for x, y in train:
        out, state = rnn(x, state)
        state = state.detach()
        loss = nn.functional.mse_loss(head(out[:, -1]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = sum(nn.functional.mse_loss(head(rnn(x)[0][:, -1]).squeeze(1), y).item() for x, y in test)
    print(epoch, loss.item(), error)
