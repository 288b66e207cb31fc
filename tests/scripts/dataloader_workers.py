import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class SquaresDataset(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, idx):
        generator = torch.Generator().manual_seed(idx)
        x = torch.rand(4, generator=generator)
        return {"x": x, "y": (x * x).sum()}


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(SquaresDataset(480), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for epoch in range(2):
        for i, batch in enumerate(loader):
            pred = model(batch["x"]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(pred, batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 5 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
