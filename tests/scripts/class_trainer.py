from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    lr: float = 3e-3
    epochs: int = 3
    batch_size: int = 32
    log_every: int = 5


class Trainer:
    def __init__(self, model, train_data, config):
        self.model = model
        self.config = config
        self.loader = DataLoader(train_data, batch_size=config.batch_size, shuffle=True, drop_last=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss()
        self.global_step = 0

    def _to_device(self, batch):
        device = next(self.model.parameters()).device
        return [t.to(device) for t in batch]

    def training_step(self, batch):
        inputs, labels = self._to_device(batch)
        return self.criterion(self.model(inputs), labels)

    def optimizer_step(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def fit(self):
        for epoch in range(self.config.epochs):
            self.model.train()
            for batch in self.loader:
                loss = self.training_step(batch)
                self.optimizer_step(loss)
                self.global_step += 1
                if self.global_step % self.config.log_every == 0:
                    print(f"epoch={epoch} step={self.global_step} loss={loss.item():.4f}")
        return self


if __name__ == "__main__":
    torch.manual_seed(42)
    x = torch.randn(320, 20)
    labels = x[:, :4].argmax(dim=1)
    net = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
    Trainer(net, TensorDataset(x, labels), Config()).fit()
