"""Makes tokenizer.json: byte-level BPE, 2048 merges and bytes, trained on the text files named on the command line."""

import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

tokenizer = Tokenizer(models.BPE())
tokenizer.normalizer = normalizers.NFC()
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=2045,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
tokenizer.train(sorted(sys.argv[1:]), trainer)
# Behind the vocabulary, as most chat models have them.
tokenizer.add_special_tokens(SPECIAL)
out = pathlib.Path(__file__).with_name("tokenizer.json")
out.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
print(out, out.stat().st_size, tokenizer.get_vocab_size())
