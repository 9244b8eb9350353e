"""Rows of token ids that are padded to 256, though most are short. After: each batch to its longest row, like lengths together."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
rows = [torch.randint(1, 500, (int(n),)) for n in torch.randint(8, 65, (640,))]
rows[7] = torch.randint(1, 500, (256,))


def padded(batch):
    ids = nn.utils.rnn.pad_sequence(batch, batch_first=True)
    return ids if sys.argv[1] == "after" else nn.functional.pad(ids, (0, 256 - ids.shape[1]))


embedding, layer, head = nn.Embedding(500, 64), nn.Linear(64, 256), nn.Linear(256, 500)
optimizer = torch.optim.SGD(
    [*embedding.parameters(), *layer.parameters(), *head.parameters()], lr=0.01
)
if sys.argv[1] == "after":
    rows.sort(key=len)
elements = 0
for _ in range(2):
    for ids in DataLoader(rows, batch_size=16, collate_fn=padded, shuffle=sys.argv[1] == "before"):
        optimizer.zero_grad()
        scores = head(layer(embedding(ids[:, :-1])).relu())
        nn.functional.cross_entropy(
            scores.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0
        ).backward()
        optimizer.step()
        elements += ids.numel()
print(f"{1 - 2 * sum(map(len, rows)) / elements:.0%} of {elements} tokens are padding")
