import lightning.pytorch as pl
import torch
import torch.nn.functional as F


class Classifier(pl.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        print(batch_idx, loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    pl.seed_everything(7)
    x = torch.randn(320, 20)
    dataset = torch.utils.data.TensorDataset(x, x[:, :5].argmax(dim=1))
    loader = torch.utils.data.DataLoader(dataset, batch_size=16)
    trainer = pl.Trainer(
        precision="bf16-mixed",
        max_steps=20,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
