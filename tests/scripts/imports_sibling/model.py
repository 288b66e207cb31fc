from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.body(x)


def build_model(in_features, classes, width=32):
    return nn.Sequential(nn.Linear(in_features, width), Residual(width), Residual(width), nn.Linear(width, classes))
