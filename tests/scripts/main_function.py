import random

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(16, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 3)
        self.dropout = nn.Dropout(p=0.1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = self.dropout(torch.relu(self.fc2(x)))
        return self.fc3(x)


def main():
    set_seed(1234)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = torch.from_numpy(np.random.randn(300, 16).astype(np.float32))
    labels = torch.from_numpy(np.random.randint(0, 3, size=300))
    inputs[:, :3] += 2.0 * nn.functional.one_hot(labels, 3)

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(net.parameters(), lr=0.003)

    running_loss = 0.0
    for i in range(30):
        idx = torch.randint(0, 300, (32,))
        batch, target = inputs[idx].to(device), labels[idx].to(device)
        optimizer.zero_grad()
        loss = criterion(net(batch), target)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 10 == 9:
            print("[%d] loss: %.3f" % (i + 1, running_loss / 10))
            running_loss = 0.0
    print("Finished Training")


if __name__ == "__main__":
    main()
