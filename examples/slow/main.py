"""Does a sound rise, fall, stay or tremble? A small network learns it from spectrograms of made-up sounds."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000  # samples a second
torch.manual_seed(0)
torch.set_num_threads(1)


class AddNoise:
    def __call__(self, sound):
        return sound + 0.3 * torch.randn_like(sound)


class Spectrogram:
    window = torch.hann_window(512)

    def __call__(self, sound):
        return (
            torch.stft(sound, 512, hop_length=256, window=self.window, return_complex=True).abs()
            ** 2
        )


class MelScale:
    """Adds frequencies up to 40 bands, narrow ones for low tones and wide ones for high tones, as an ear does."""

    def filters(self):
        edges = [700 * (10 ** (edge / 41 * 2840 / 2595) - 1) for edge in range(42)]
        filters = torch.zeros(40, 257)
        for band in range(40):
            low, middle, high = edges[band : band + 3]
            tones = [k * RATE / 512 for k in range(257)]
            filters[band] = torch.tensor(
                [
                    max(0, min((tone - low) / (middle - low), (high - tone) / (high - middle)))
                    for tone in tones
                ]
            )
        return filters

    def __call__(self, spectrogram):
        return self.filters() @ spectrogram


class Sounds(Dataset):
    """320 sounds of half a second."""

    transforms = (AddNoise(), Spectrogram(), MelScale(), torch.log1p)

    def __len__(self):
        return 320

    def __getitem__(self, index):
        kind, t = index % 4, torch.arange(RATE // 2) / RATE
        bend = (t**2, -(t**2), 0 * t, torch.cos(40 * t) / 40)[kind]
        sound = torch.sin(2 * math.pi * (600 + index) * (t + bend))
        for transform in self.transforms:
            sound = transform(sound)
        return sound[None], kind


def main():
    loader = DataLoader(Sounds(), batch_size=16, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 48, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(768, 4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for epoch in range(4):
        for sound, kind in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(sound), kind)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
