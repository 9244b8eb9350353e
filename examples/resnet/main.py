"""Trains a ResNet-18 on a folder of images with a subfolder for each class; prints loss and accuracy per epoch."""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets, models, transforms

HERE = Path(__file__).parent


def make_dataset(folder, size):
    """The images of ``folder`` with the usual ImageNet augmentations, cropped to ``size`` x ``size`` pixels."""
    return datasets.ImageFolder(
        folder,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        ),
    )


def make_loader(dataset, args, use_cuda):
    """Shuffled batches, in an order that depends on the seed alone."""
    # A generator of its own: the global one is also drawn from by the augmentations, here or in the workers.
    generator = torch.Generator().manual_seed(args.seed)
    samples = (
        len(dataset) if args.limit is None else min(len(dataset), args.limit * args.batch_size)
    )
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=RandomSampler(dataset, num_samples=samples, generator=generator),
        num_workers=args.workers,
        # Without it every epoch starts its workers again.
        persistent_workers=args.workers > 0,
        pin_memory=use_cuda,
    )


def train_epoch(model, criterion, optimizer, loader, device):
    """Train on every batch once; return the mean loss and the accuracy over all samples."""
    model.train()
    # The sums stay on the device: reading a value at each step would make the host wait for the GPU.
    loss_sum = torch.zeros((), device=device)
    correct = torch.zeros((), device=device)
    seen = 0
    for inp, target in loader:
        inp = inp.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
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
    parser.add_argument(
        "--data", type=Path, default=HERE / "images", help="image folder (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--workers", type=int, default=2, help="loader processes; 0 loads in this one (%(default)s)"
    )
    # 224 is the size that ResNets are made for. On two CPU cores an epoch then takes half a minute; with 64, five seconds,
    # and the textures still show.
    parser.add_argument(
        "--size", type=int, help="side of the crops in pixels, at least 33 (224 on a GPU, else 64)"
    )
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--no-cuda", action="store_true", help="stay on the CPU even if there is a GPU"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="train on at most N batches an epoch"
    )
    args = parser.parse_args()
    if args.size is not None and args.size < 33:
        # Below it the last feature map has one pixel, and batch normalisation refuses a batch of one image.
        parser.error("--size must be at least 33")
    if not args.data.is_dir():
        sys.exit(
            f"{args.data}: no such folder. Make the images first: python {HERE / 'make_images.py'}"
        )

    torch.manual_seed(args.seed)
    use_cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda" if use_cuda else "cpu")

    dataset = make_dataset(args.data, args.size or (224 if use_cuda else 64))
    train_loader = make_loader(dataset, args, use_cuda)
    model = models.resnet18(weights=None, num_classes=len(dataset.classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    print(
        f"{len(dataset)} images, {len(dataset.classes)} classes, {len(train_loader)} batches an epoch, on {device.type}"
    )
    for epoch in range(args.epochs):
        mean_loss, accuracy = train_epoch(model, criterion, optimizer, train_loader, device)
        print(
            f"epoch {epoch + 1}/{args.epochs}: loss {mean_loss:.4f}, accuracy {accuracy:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
