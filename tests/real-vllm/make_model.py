"""Writes a model with random weights around a given tokenizer: make_model.py TOKENIZER_DIR OUT SIZE."""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, Qwen2Config, Qwen2ForCausalLM

# Layers, width and longest prompt. The tiny model computes next to nothing, which is enough for cache tests; the small
# one (27 million parameters) takes long enough for a prompt that a hit shows in the time to first token.
SIZES = {"tiny": (2, 128, 8192), "small": (8, 512, 8192), "long": (2, 128, 32_768), "image": (2, 128, 8192)}
IMAGE_TOKEN = "<image>"
# Images of 112 x 112 pixels in patches of 14: 64 tokens each, two blocks.
IMAGE_PIXELS, PATCH_PIXELS = 112, 14
IMAGE_TOKENS = (IMAGE_PIXELS // PATCH_PIXELS) ** 2


def text_config(tokenizer, size, **more):
    layers, hidden, longest = SIZES[size]
    # Attention on the CPU has kernels for heads of 32, 64, 96 and 128, so 4 heads of 32 are the minimum.
    return Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4 if hidden == 128 else 8,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        **more,
    )


def write_text_model(source, out, size):
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    shutil.copy(source / "tokenizer.json", out / "tokenizer.json")
    write_json(out / "tokenizer_config.json", tokenizer_settings(source, size))
    config = text_config(tokenizer, size, tie_word_embeddings=True)
    # Last: a folder with weights is whole.
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(out, safe_serialization=True)


def tokenizer_settings(source, size):
    settings = json.loads((source / "tokenizer_config.json").read_text())
    return {**settings, "model_max_length": SIZES[size][2]}


def write_image_model(source, out, size):
    """A LLaVA model: a CLIP tower before the same text model."""
    tokenizer = with_image_token(source, out, size)
    text = text_config(tokenizer, size, tie_word_embeddings=False, architectures=["Qwen2ForCausalLM"])
    tower = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=IMAGE_PIXELS,
        patch_size=PATCH_PIXELS,
        projection_dim=64,
    )
    config = LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=tokenizer.token_to_id(IMAGE_TOKEN),
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(config).to(torch.bfloat16)
    weights = {published_name(name): weight.contiguous() for name, weight in model.state_dict().items()}
    described = {**json.loads(config.to_json_string(use_diff=False)), "dtype": "bfloat16"}
    write_json(out / "config.json", {**described, "architectures": ["LlavaForConditionalGeneration"]})
    write_processor(out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def published_name(name):
    """The name of a weight in the published LLaVA models, which every release of vLLM reads."""
    name = name.removeprefix("model.")
    for inner, published in (
        ("lm_head.", "language_model.lm_head."),
        ("language_model.", "language_model.model."),
        ("vision_tower.", "vision_tower.vision_model."),
    ):
        if name.startswith(inner) and not name.startswith((published, "language_model.lm_head.")):
            return published + name.removeprefix(inner)
    return name


def with_image_token(source, out, size):
    """Writes the tokenizer with a token for images, and returns it."""
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(IMAGE_TOKEN, normalized=False, special=True)])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = tokenizer_settings(source, size)
    added = settings["added_tokens_decoder"]
    like = next(iter(added.values()))
    added[str(tokenizer.token_to_id(IMAGE_TOKEN))] = {**like, "content": IMAGE_TOKEN}
    write_json(out / "tokenizer_config.json", settings)
    return tokenizer


def write_processor(out):
    side = {"height": IMAGE_PIXELS, "width": IMAGE_PIXELS}
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": IMAGE_PIXELS},
        "crop_size": side,
    }
    write_json(out / "preprocessor_config.json", {**images, "processor_class": "LlavaProcessor"})
    prompts = {
        "processor_class": "LlavaProcessor",
        "image_token": IMAGE_TOKEN,
        "patch_size": PATCH_PIXELS,
        "vision_feature_select_strategy": "default",
        # The tower's own token, which that strategy drops.
        "num_additional_image_tokens": 1,
    }
    write_json(out / "processor_config.json", prompts)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    source, out = map(pathlib.Path, sys.argv[1:3])
    size = sys.argv[3]
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    write = write_image_model if size == "image" else write_text_model
    write(source, out, size)


if __name__ == "__main__":
    main()
