import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(0)


class CountingDataset(Dataset):
    """sequences that count upwards from a random start"""

    def __len__(self):
        return 256

    def __getitem__(self, i):
        ids = (torch.arange(16) + 7 * i) % 64
        return {"input_ids": ids, "labels": ids.clone()}


config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
model = LlamaForCausalLM(config)

args = TrainingArguments(
    output_dir="hf_output",
    max_steps=20,
    per_device_train_batch_size=8,
    learning_rate=5e-3,
    logging_steps=5,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=args, train_dataset=CountingDataset())
result = trainer.train()
print("train loss", result.training_loss)
