"""Writes a small random RoBERTa with `transformers`, in a process that has nothing else.

Arguments: a new folder, the size of the vocabulary. It gets config.json, model.safetensors, and, in
`answers.pt`, `tokens` with padding on the right and the model's `logits`.
"""

import sys

import torch

PAD = 1

if __name__ == "__main__":
    sys.modules["torchaudio"] = None  # transformers would load the pinned one, which needs an older torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    folder, words = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=words, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
        max_position_embeddings=66, type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    model = RobertaForMaskedLM(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokens = torch.randint(4, words, (4, 50))
    for row in range(4):
        tokens[row, 50 - 7 * row :] = PAD
    with torch.no_grad():
        logits = model(tokens, attention_mask=(tokens != PAD).long()).logits
    torch.save({"tokens": tokens, "logits": logits}, f"{folder}/answers.pt")
