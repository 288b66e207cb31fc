from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


@dataclass
class DetectorOutput:
    logits: torch.Tensor
    boxes: torch.Tensor
    loss: torch.Tensor | None = None


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 32)

    def forward(self, *, pixels, scale=None):
        h = torch.relu(self.proj(pixels))
        return {"features": h if scale is None else h * scale, "pooled": (h.mean(1), h.amax(1))}


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.cls = nn.Linear(32, 3)
        self.box = nn.Linear(64, 4)

    def forward(self, pixels=None, labels=None):
        enc = self.encoder(pixels=pixels)
        out = DetectorOutput(logits=self.cls(enc["features"]), boxes=self.box(torch.cat(enc["pooled"], dim=-1)))
        if labels is not None:
            cls_loss = F.cross_entropy(out.logits.flatten(0, 1), labels["classes"].flatten())
            out.loss = cls_loss + F.l1_loss(out.boxes, labels["boxes"])
        return out


model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(30):
    pixels = torch.randn(16, 5, 12)
    labels = {"classes": pixels[..., :3].argmax(-1), "boxes": pixels.mean(1)[:, :4]}
    batch = {"pixels": pixels, "labels": labels}
    output = model(**batch)
    optimizer.zero_grad()
    output.loss.backward()
    optimizer.step()
    print({"step": step, "loss": round(output.loss.item(), 4)})
