# SPDX-License-Identifier: Apache-2.0
"""A small convolutional net with batch normalization on scikit-learn's 8x8 digits."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Images of 8x8 grey values from 0 to 16, scaled to [0, 1]."""

    def __init__(self, images, labels):
        self.images = torch.tensor(images / 16.0, dtype=torch.float32).unsqueeze(1)
        self.labels = torch.tensor(labels, dtype=torch.long)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def conv_block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(1, 96),
            conv_block(96, 96),
            nn.MaxPool2d(2),
            conv_block(96, 192),
            conv_block(192, 192),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(192 * 2 * 2, 128),
            nn.ReLU(inplace=True),
            nn.Dropout(0.2),
            nn.Linear(128, 10),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def train_epoch(model, loader, optimizer):
    """Run one epoch and return the mean training loss."""
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader):
    """Return the share of digits that the model names correctly."""
    model.eval()
    correct = 0
    for images, labels in loader:
        correct += (model(images).argmax(dim=1) == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    digits = load_digits()
    split = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=args.seed, stratify=digits.target
    )
    train_images, test_images, train_labels, test_labels = split
    train_loader = DataLoader(Digits(train_images, train_labels), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Digits(test_images, test_labels), batch_size=256)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, train_loader, optimizer)
        scheduler.step()
        print(f"epoch {epoch:2d}  loss {loss:.4f}", flush=True)
    print(f"test accuracy {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
