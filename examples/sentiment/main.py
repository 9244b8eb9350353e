"""Trains a small attention classifier to tell positive from negative opinions, and tests it on other sentences.

The sentences come from a word-list grammar, so nothing is downloaded. A negation flips an opinion ("the plot was never
dull"), and of two opinions one counts ("although the cast was superb, the ending was weak"), so word order matters.
"""

import argparse
import os
import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

GRAMMAR = {
    "special": "<pad> <mask>",
    "joint": "the not never but although ,",
    "positive": "superb good charming moving clever bright fresh gripping",
    "negative": "dull bad clumsy tedious weak bland stale awful",
    "subject": "film plot cast ending script music story pace dialogue camera hero scene",
    "verb": "was is felt seemed looked",
    "adverb": "really very quite rather truly somewhat deeply fairly",
    "filler": "well so i saw it last night with my friend and honestly we talked about this for hours then home again",
}
WORDS = {kind: words.split() for kind, words in GRAMMAR.items()}
VOCABULARY = [word for words in WORDS.values() for word in words]
CODES = {word: code for code, word in enumerate(VOCABULARY)}
PAD, MASK = CODES["<pad>"], CODES["<mask>"]


def make_clause(rng):
    """Words like "the plot was never really dull" and whether they are a positive opinion."""
    positive = rng.random() < 0.5
    words = ["the", rng.choice(WORDS["subject"]), rng.choice(WORDS["verb"])]
    negated = rng.random() < 0.3
    if negated:
        words.append(rng.choice(["not", "never"]))
    if rng.random() < 0.5:
        words.append(rng.choice(WORDS["adverb"]))
    words.append(rng.choice(WORDS["positive" if positive else "negative"]))
    return words, positive != negated


def make_sentence(seed, split, index):
    """Sentence number ``index`` of a split: always the same words and label, whatever was made before."""
    rng = random.Random(f"{seed} {split} {index}")
    words, positive = make_clause(rng)
    form = rng.choice(["one", "one", "but", "although"])
    if form != "one":
        other, _ = make_clause(rng)
        words = [*other, ",", "but", *words] if form == "but" else ["although", *other, ",", *words]
    before = rng.choices(WORDS["filler"], k=rng.randint(0, 4))
    after = rng.choices(WORDS["filler"], k=rng.randint(0, 4))
    return " ".join([*before, *words, *after]), int(positive)


class Sentences(Dataset):
    """Sentences as (word codes padded to a length, label); kept as one text file each if a folder is given."""

    def __init__(self, count, length, seed, split, folder=None):
        self.count, self.length, self.seed, self.split = count, length, seed, split
        self.folder = folder and folder / f"{split}-{seed}"
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            for index in range(count):
                path = self.folder / f"{index}.txt"
                if not path.exists():
                    text, label = make_sentence(seed, split, index)
                    part = path.with_suffix(".part")
                    part.write_text(f"{label} {text}\n")
                    os.replace(part, path)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.folder:
            label, text = (self.folder / f"{index}.txt").read_text().split(maxsplit=1)
        else:
            text, label = make_sentence(self.seed, self.split, index)
        codes = [CODES[word] for word in text.split()][: self.length]
        return torch.tensor(codes + [PAD] * (self.length - len(codes))), int(label)


class Classifier(nn.Module):
    """Transformer encoder, mean over the words that are no padding, linear head: one logit per sentence."""

    def __init__(self, dim, heads, layers, length):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), dim, padding_idx=PAD)
        self.positions = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=4 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        # Nested tensors would leave the padding out, but are a prototype and warn of it.
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 1)
        self.words = nn.Linear(dim, len(VOCABULARY))

    def body(self, tokens):
        return self.encoder(
            self.embedding(tokens) + self.positions, src_key_padding_mask=tokens == PAD
        )

    def forward(self, tokens):
        kept = (tokens != PAD).unsqueeze(2)
        mean = (self.body(tokens) * kept).sum(dim=1) / kept.sum(dim=1)
        return self.head(self.norm(mean)).squeeze(1)


def make_loader(dataset, samples, args):
    """Batches of ``samples`` sentences in all, in an order that depends on the seed alone."""
    generator = torch.Generator().manual_seed(args.seed)
    sampler = RandomSampler(dataset, num_samples=samples, generator=generator)
    return DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers
    )


def pretrain_epoch(model, optimizer, loader, device):
    """Train the body to guess masked words (15 % of them), without looking at the labels."""
    model.train()
    criterion = nn.CrossEntropyLoss()
    for tokens, _ in loader:
        tokens = tokens.to(device)
        masked = (torch.rand(tokens.shape, device=device) < 0.15) & (tokens != PAD)
        guesses = model.words(model.body(tokens.masked_fill(masked, MASK)))
        loss = criterion(guesses[masked], tokens[masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_epoch(model, criterion, optimizer, loader, device):
    """Train on every batch once and print the mean loss of each tenth of them."""
    model.train()
    every = max(1, len(loader) // 10)
    losses = []
    for tokens, label in loader:
        tokens = tokens.to(device)
        label = label.to(device)
        loss = criterion(model(tokens), label.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if len(losses) % every == 0:
            mean_loss = torch.stack(losses[-every:]).mean().item()
            print(f"step {len(losses)}/{len(loader)}: loss {mean_loss:.4f}", flush=True)


@torch.no_grad()
def evaluate(model, loader, device):
    """Accuracy, precision, recall and F1 of the positive class."""
    model.eval()
    counts = torch.zeros(2, 2, dtype=torch.long)  # [label, guess]
    for tokens, label in loader:
        guess = (model(tokens.to(device)) > 0).long().cpu()
        counts += torch.bincount(2 * label + guess, minlength=4).view(2, 2)
    hits, guessed, actual = counts[1, 1].item(), counts[:, 1].sum().item(), counts[1].sum().item()
    return {
        "accuracy": counts.trace().item() / counts.sum().item(),
        "precision": hits / guessed if guessed else 0.0,
        "recall": hits / actual if actual else 0.0,
        "f1": 2 * hits / (guessed + actual) if guessed + actual else 0.0,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--device", help="such as cpu or cuda:0 (default: a GPU if there is one)")
    add("--steps", type=int, default=400, help="batches to train on (%(default)s)")
    add("--batch-size", type=int, default=32)
    add(
        "--sentences", type=int, default=12800, help="different sentences to train on (%(default)s)"
    )
    add("--test-sentences", type=int, default=1000, help="sentences to test on (%(default)s)")
    add(
        "--length",
        type=int,
        default=32,
        help="words per sentence; what is longer is cut (%(default)s)",
    )
    add("--dim", type=int, default=64)
    add("--heads", type=int, default=4)
    add("--layers", type=int, default=2)
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=0)
    add(
        "--workers", type=int, default=0, help="loader processes; 0 loads in this one (%(default)s)"
    )
    add(
        "--data-dir",
        type=Path,
        help="keep the sentences in this folder, one file each, and read them from there",
    )
    add("--save", type=Path, help="write the trained weights to this file")
    add(
        "--pretrain",
        type=int,
        default=0,
        metavar="N",
        help="first guess masked words in N sentences (%(default)s)",
    )
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    use_cuda = device.type == "cuda"

    model = Classifier(args.dim, args.heads, args.layers, args.length).to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_set = Sentences(args.sentences, args.length, args.seed, "train", args.data_dir)
    test_set = Sentences(args.test_sentences, args.length, args.seed, "test", args.data_dir)
    train_loader = make_loader(train_set, args.steps * args.batch_size, args)
    test_loader = DataLoader(test_set, batch_size=256, num_workers=args.workers)

    print(
        f"{args.steps} steps of {args.batch_size} sentences on {'the GPU' if use_cuda else 'the CPU'}",
        flush=True,
    )
    if args.pretrain:
        pretrain_set = Sentences(args.pretrain, args.length, args.seed, "pretrain", args.data_dir)
        pretrain_optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        pretrain_epoch(
            model, pretrain_optimizer, make_loader(pretrain_set, args.pretrain, args), device
        )
    train_epoch(model, criterion, optimizer, train_loader, device)
    metrics = evaluate(model, test_loader, device)
    print(", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
