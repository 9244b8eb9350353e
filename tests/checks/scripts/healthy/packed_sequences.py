"""Sequences of different length, packed; attention with a softmax inside the model, before a layer and a cross-entropy."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(25, 10, padding_idx=0)
        self.lstm = nn.LSTM(10, 8, batch_first=True, bidirectional=True)
        self.score, self.out = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        seen, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        weight = torch.softmax(self.score(seen), dim=1)
        return self.out((weight * seen).sum(1))


def collate(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]), torch.tensor(ys)


g = torch.Generator().manual_seed(0)
texts = []
for _ in range(64):
    words = torch.randint(1, 25, (int(torch.randint(2, 9, (1,), generator=g)),), generator=g)
    texts.append((words, int(words[0] % 3)))
torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for x, n, y in DataLoader(texts, batch_size=8, shuffle=True, collate_fn=collate):
        model.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x, n), y)
        loss.backward()
        optimizer.step()
    print(loss.item())
