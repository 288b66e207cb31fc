# torchrun --standalone --nproc_per_node=2 torchrun_ddp.py
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(rank, world_size, local_rank):
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    dataset = TensorDataset(x, x.norm(dim=1, keepdim=True))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=0)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, target in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world_size:.4f}", flush=True)


def main():
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    train(rank, world_size, local_rank)
    time.sleep(0.2)  # torch 2.13: exit aborts while a gloo thread still lets go of the last all_reduce
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
