"""Trains a small multilayer perceptron on points of a noisy spiral and prints loss and accuracy per epoch."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

CLASSES = 3


def make_dataset(items, seed):
    """``items`` points on the arms of a spiral, one arm per class, drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.arange(items) % CLASSES
    radius = torch.rand(items, generator=generator)
    angle = 2 * math.pi * (arm / CLASSES + radius) + 0.2 * torch.randn(items, generator=generator)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points, arm)


def make_model(width):
    return nn.Sequential(
        nn.Linear(2, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def train_epoch(model, criterion, optimizer, loader, device):
    """Train on every batch once; return the mean loss and the accuracy over all samples."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), device=device)
    seen = 0
    for inp, target in loader:
        inp = inp.to(device)
        target = target.to(device)
        output = model(inp)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(target)
        correct += (output.argmax(dim=1) == target).sum()
        seen += len(target)
    return loss_sum.item() / seen, correct.item() / seen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--workers", type=int, default=0, help="loader processes; 0 loads in this one (%(default)s)"
    )
    parser.add_argument(
        "--width", type=int, default=128, help="units in each hidden layer (%(default)s)"
    )
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--items", type=int, default=12800, help="points to train on (%(default)s)")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")

    dataset = make_dataset(args.items, args.seed)
    # The order has a generator of its own, so that it stays the same whatever else draws random numbers.
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(args.seed))
    train_loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers
    )
    model = make_model(args.width).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        mean_loss, accuracy = train_epoch(model, criterion, optimizer, train_loader, device)
        print(
            f"epoch {epoch + 1}/{args.epochs}: loss {mean_loss:.4f}, accuracy {accuracy:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
