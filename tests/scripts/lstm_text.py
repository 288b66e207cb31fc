# 字符级 LSTM 语言模型(课程作业)
import torch
import torch.nn as nn

torch.manual_seed(0)

text = "白日依山尽,黄河入海流。欲穷千里目,更上一层楼。\n床前明月光,疑是地上霜。举头望明月,低头思故乡。\n" * 8
chars = sorted(set(text))
char2idx = {c: i for i, c in enumerate(chars)}
data = torch.tensor([char2idx[c] for c in text])
print("字符总数:", len(data), "字典大小:", len(chars))

batch_size, seq_len = 8, 24


class CharLSTM(nn.Module):
    def __init__(self, vocab_size, embed_dim=24, hidden_dim=48):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_dim, num_layers=2, batch_first=True, dropout=0.1)
        self.fc = nn.Linear(hidden_dim, vocab_size)

    def forward(self, x, hidden=None):
        out, hidden = self.lstm(self.embedding(x), hidden)
        return self.fc(out), hidden


model = CharLSTM(len(chars))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

for step in range(30):
    ix = torch.randint(len(data) - seq_len - 1, (batch_size,)).tolist()
    x = torch.stack([data[i : i + seq_len] for i in ix])
    y = torch.stack([data[i + 1 : i + seq_len + 1] for i in ix])

    logits, _ = model(x)
    loss = criterion(logits.reshape(-1, len(chars)), y.reshape(-1))

    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if (step + 1) % 5 == 0:
        print(f"第 {step + 1} 步,损失 {loss.item():.4f}")
