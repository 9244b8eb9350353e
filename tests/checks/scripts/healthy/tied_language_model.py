"""A small language model whose output layer shares its weight with the embedding; text is read in order, as one does."""

import torch
from torch import nn

torch.manual_seed(0)
VOCABULARY, WIDTH, WINDOW = 20, 16, 12
text = torch.randint(0, VOCABULARY, (1200,))
text[1::2] = (text[::2] + 1) % VOCABULARY


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens, state=None):
        seen, state = self.rnn(self.embed(tokens), state)
        return self.out(seen), state


model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
lanes = text.view(4, -1)
for epoch in range(2):
    state = None
    for at in range(0, lanes.shape[1] - WINDOW - 1, WINDOW):
        tokens, following = lanes[:, at : at + WINDOW], lanes[:, at + 1 : at + WINDOW + 1]
        logits, state = model(tokens, state)
        state = state.detach()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    print("perplexity", loss.exp().item())
