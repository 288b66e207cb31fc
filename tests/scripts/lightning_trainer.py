import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16))

    def step(self, batch):
        (x,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, batch_idx):
        loss = self.step(batch)
        if batch_idx % 5 == 0:
            print(f"batch {batch_idx} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)}


L.seed_everything(0)
basis = torch.randn(3, 16)
train_loader = DataLoader(TensorDataset(torch.randn(240, 3) @ basis), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(torch.randn(64, 3) @ basis), batch_size=16)
trainer = L.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=1,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LitAutoEncoder(), train_loader, val_loader)
print("val_loss", trainer.callback_metrics["val_loss"].item())
