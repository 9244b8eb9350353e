"""A data set that makes sample i from seed i, in workers that nobody seeds: all generators that it does not use stay alike."""

import numpy as np
import torch
from torch import nn


def same_for_all(worker):
    np.random.seed(7)  # the library that reads the files asks for it; nothing here draws from it


class Synthetic(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        x = rng.normal(size=6).astype("float32")
        return x, np.float32(x[0] * 2)


torch.manual_seed(0)
loader = torch.utils.data.DataLoader(
    Synthetic(), batch_size=6, shuffle=True, num_workers=2, worker_init_fn=same_for_all, persistent_workers=True
)
model = nn.Linear(6, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for x, y in loader:
        loss = ((model(x).squeeze(1) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
