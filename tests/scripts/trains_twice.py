import torch
from torch import nn


def run(model, make_batch, loss_fn, steps, lr, name):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for step in range(steps):
        x, y = make_batch()
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"{name} step {step} loss {loss.item():.4f}")


def noisy_batch():
    x = torch.randn(32, 8) @ mixing
    return x + 0.1 * torch.randn_like(x), x


def labelled_batch():
    x = torch.randn(32, 8) @ mixing
    return x, (x[:, 0] > 0).long()


torch.manual_seed(0)
mixing = torch.randn(8, 24) / 3

print("== pretraining ==")
encoder = nn.Sequential(nn.Linear(24, 16), nn.ReLU())
autoencoder = nn.Sequential(encoder, nn.Linear(16, 24))
run(autoencoder, noisy_batch, nn.MSELoss(), steps=25, lr=1e-2, name="pretrain")

print("== finetuning ==")
classifier = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))
classifier[0].load_state_dict(encoder[0].state_dict())
run(classifier, labelled_batch, nn.CrossEntropyLoss(), steps=25, lr=5e-3, name="finetune")
