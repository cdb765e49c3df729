#!/usr/bin/env python3
"""Trains a small tokenizer on generated text and writes it as a model's folder.

  make_tokenizer.py FOLDER

Needs the package `tokenizers`. The text and therefore the tokenizer are the same every time.
"""

import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ENTRIES = 32_000
CONTEXT_TOKENS = 131_072
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def training_text():
    """Returns lines of words of random letters, like the prompts of the load, and a few real sentences."""
    source = random.Random(1)

    def word():
        return "".join(source.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(source.randint(2, 9)))

    lines = [" ".join(word() for _ in range(12)) for _ in range(4000)]
    return lines + ["You are helpful.", "Say hello number 12345, please.", "tok hello world"] * 50


def train():
    """Returns a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_tokenizer.py FOLDER")
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    tokenizer = train()
    files = {
        "config.json": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": CONTEXT_TOKENS,
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        "generation_config.json": {"eos_token_id": 1, "bos_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHAT_TEMPLATE,
            "eos_token": "<|im_end|>",
            "bos_token": "<|im_start|>",
            "model_max_length": CONTEXT_TOKENS,
        },
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    # It is last, so that a folder with it is complete.
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


if __name__ == "__main__":
    main()
