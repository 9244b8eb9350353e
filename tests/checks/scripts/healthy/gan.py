"""A generator and a discriminator, an optimizer each; gradients that the generator's loss leaves in the discriminator are thrown away."""

import torch
from torch import nn, optim

torch.manual_seed(3)
Z = 4
G = nn.Sequential(nn.Linear(Z, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
bce = nn.BCEWithLogitsLoss()
optG = optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
optD = optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))
data = torch.utils.data.DataLoader(torch.randn(128, 2) * 0.3 + 1.0, batch_size=16, shuffle=True)

for epoch in range(3):
    for real in data:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        D.zero_grad()
        lossD = bce(D(real), ones)
        fake = G(torch.randn(len(real), Z))
        lossD = lossD + bce(D(fake.detach()), zeros)
        lossD.backward()
        optD.step()

        G.zero_grad()
        lossG = bce(D(fake), ones)
        lossG.backward()
        optG.step()
    print("D", lossD.item(), "G", lossG.item())
