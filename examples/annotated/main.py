"""The training of ../mlp with annotations: what each part of it is, said in the script itself. It prints the same."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from voirkit import ai

CLASSES = 3


class Points(Dataset):
    """Points and the arms that they lie on."""

    @ai.data.init
    def __init__(self, points, arm):
        self.points, self.arm = points, arm

    def __len__(self):
        return len(self.points)

    @ai.data.item
    def __getitem__(self, i):
        return self.points[i], self.arm[i]


@ai.data.preprocess
def make_dataset(items, seed):
    """``items`` points on the arms of a spiral, one arm per class, drawn from the seed."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.arange(items) % CLASSES
    radius = torch.rand(items, generator=generator)
    angle = 2 * math.pi * (arm / CLASSES + radius) + 0.2 * torch.randn(items, generator=generator)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return Points(points, arm)


def make_model(width):
    return nn.Sequential(
        nn.Linear(2, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


@ai.compute.forward
def compute_loss(model, criterion, inp, target):
    output = model(inp)
    return output, criterion(output, target)


@ai.compute
def train_step(model, criterion, optimizer, inp, target):
    output, loss = compute_loss(model, criterion, inp, target)
    optimizer.zero_grad()
    with ai.compute.backward:
        loss.backward()
    with ai.compute.step:
        optimizer.step()
    return output, loss


@ai.pipeline.train
def train_epoch(model, criterion, optimizer, loader, device):
    """Train on every batch once; return the mean loss and the accuracy over all samples."""
    model.train()
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), device=device)
    seen = 0
    for step, (inp, target) in enumerate(ai.dataloader.fetch.iter(loader)):
        ai.update(step=step)
        with ai.device.transfer:
            inp = inp.to(device)
            target = target.to(device)
        output, loss = train_step(model, criterion, optimizer, inp, target)
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

    for epoch in ai.pipeline.epoch.iter(range(args.epochs)):
        ai.update(epoch=epoch)
        mean_loss, accuracy = train_epoch(model, criterion, optimizer, train_loader, device)
        print(
            f"epoch {epoch + 1}/{args.epochs}: loss {mean_loss:.4f}, accuracy {accuracy:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
