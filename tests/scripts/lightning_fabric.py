import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run(fabric):
    seed_everything(0)
    x = torch.randn(480, 10)
    loader = DataLoader(TensorDataset(x, x.abs().sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for epoch in range(2):
        for i, (inputs, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), target)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=5.0)
            optimizer.step()
            if i % 5 == 0:
                fabric.print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
    fabric.launch()
    run(fabric)
