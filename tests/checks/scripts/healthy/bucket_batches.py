"""Sequences of alike length make a batch: a batch sampler of one's own."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler


class Sequences(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.items = []
        for _ in range(60):
            n = int(torch.randint(3, 12, (1,), generator=generator))
            words = torch.randint(1, 30, (n,), generator=generator)
            self.items.append((words, int(words.sum() % 2)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Buckets(Sampler):
    def __init__(self, data, size):
        self.order = sorted(range(len(data)), key=lambda i: len(data.items[i][0]))
        self.size = size

    def __len__(self):
        return (len(self.order) + self.size - 1) // self.size

    def __iter__(self):
        batches = [self.order[i : i + self.size] for i in range(0, len(self.order), self.size)]
        random.shuffle(batches)
        yield from batches


def collate(items):
    return pad_sequence([w for w, _ in items], batch_first=True), torch.tensor([y for _, y in items])


random.seed(0)
torch.manual_seed(0)
data = Sequences()
loader = DataLoader(data, batch_sampler=Buckets(data, 8), collate_fn=collate)
embed, lstm, out = nn.Embedding(30, 12, padding_idx=0), nn.LSTM(12, 12, batch_first=True), nn.Linear(12, 2)
model = nn.ModuleList([embed, lstm, out])
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for words, labels in loader:
        _, (h, _) = lstm(embed(words))
        loss = nn.functional.cross_entropy(out(h[-1]), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())
