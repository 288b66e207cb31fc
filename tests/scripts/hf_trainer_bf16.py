import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


def make_split(n):
    g = torch.Generator().manual_seed(n)
    ids = torch.randint(5, 100, (n, 12), generator=g)
    labels = (ids[:, 0] > 50).long()
    return [{"input_ids": i, "attention_mask": torch.ones_like(i), "labels": y} for i, y in zip(ids, labels)]


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    opts = parser.parse_args()
    set_seed(1)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    training_args = TrainingArguments(
        output_dir="hf_bf16_output",
        bf16=opts.bf16,
        use_cpu=True,
        max_steps=20,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="no",
        report_to=[],
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=make_split(640),
        eval_dataset=make_split(64),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
