import torch
from torch import nn, optim

from data.loader import get_loader
from model import build_model


def train():
    torch.manual_seed(7)
    model = build_model(in_features=12, classes=3)
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        total = 0.0
        for x, y in get_loader(batch_size=16):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 8:.4f}")


if __name__ == "__main__":
    train()
