import torch
from torch import nn

torch.manual_seed(0)


class LanguageModel(nn.Module):
    def __init__(self, ntoken, ninp):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.layer = nn.TransformerEncoderLayer(ninp, nhead=2, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.decoder = nn.Linear(ninp, ntoken, bias=False)
        nn.init.normal_(self.encoder.weight, std=0.1)
        self.decoder.weight = self.encoder.weight  # tie

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        return self.decoder(self.layer(self.encoder(tokens), src_mask=mask, is_causal=True))


model = LanguageModel(30, 32)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()

for i in range(30):
    start = torch.randint(0, 30, (16, 1))
    seq = (start + torch.arange(13)) % 30
    output = model(seq[:, :-1])
    loss = criterion(output.reshape(-1, 30), seq[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("| batch %2d | loss %.3f" % (i, loss.item()))
