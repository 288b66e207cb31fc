# WGAN-GP
import torch
import torch.nn as nn

torch.manual_seed(0)

D = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.0, 0.9))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.0, 0.9))
lambda_gp, n_critic = 10.0, 3


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    d_interpolates = D(interpolates)
    gradients = torch.autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones_like(d_interpolates),
        create_graph=True,
        retain_graph=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


for i in range(30):
    real = torch.randn(64, 2) * 0.2 + torch.tensor([1.0, -1.0])
    fake = G(torch.randn(64, 4)).detach()
    d_loss = D(fake).mean() - D(real).mean() + lambda_gp * gradient_penalty(real, fake)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    if i % n_critic == 0:
        g_loss = -D(G(torch.randn(64, 4))).mean()
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        print(f"[{i}] D loss: {d_loss.item():.4f} G loss: {g_loss.item():.4f}")
