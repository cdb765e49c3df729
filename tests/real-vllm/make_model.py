"""Writes a causal language model with random weights around a given tokenizer: make_model.py TOKENIZER_DIR OUT SIZE."""

import pathlib
import shutil
import sys

import torch
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

source, out = map(pathlib.Path, sys.argv[1:3])
# Layers and width. The tiny model computes next to nothing, which is enough for cache tests; the small one (27
# million parameters) takes long enough for a prompt that a hit shows in the time to first token.
layers, hidden = {"tiny": (2, 128), "small": (8, 512)}[sys.argv[3]]
out.mkdir(parents=True, exist_ok=True)
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(source / name, out / name)
tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
torch.manual_seed(7)
# Attention on the CPU has kernels for heads of 32, 64, 96 and 128, so 4 heads of 32 are the minimum.
config = Qwen2Config(
    vocab_size=tokenizer.get_vocab_size(),
    hidden_size=hidden,
    intermediate_size=3 * hidden,
    num_hidden_layers=layers,
    num_attention_heads=4 if hidden == 128 else 8,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=tokenizer.token_to_id("<|im_end|>"),
    pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
)
Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
