"""Runs exported models with `transformers` in a process that has neither fairseq nor this project.

Argument: a folder with `questions.pt`, a dictionary of a case's name to its inputs, and a folder of that name
for each exported model; `answers.pt` is written. Inputs: `tokens` with `mask` for logits, `too_long` for
tokens that must be refused; for language models also `prompts`, `prompt_mask` and `count` for greedy
continuations; `texts` for a tokenizer's indices.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

PAD = 1


def model_of(folder: Path) -> tuple[torch.nn.Module, str]:
    kind = json.loads((folder / "config.json").read_text())["architectures"][0].removeprefix(
        "LinearAttentionFor"
    )
    load = getattr(transformers, f"AutoModelFor{kind}").from_pretrained
    model = load(str(folder), trust_remote_code=True, local_files_only=True)
    # Saved and loaded again, it is what it was.
    again = folder / "again"
    model.save_pretrained(again)
    return load(str(again), trust_remote_code=True, local_files_only=True).eval(), kind


def answer(folder: Path, asked: dict) -> dict:
    if "texts" in asked:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        indices = [tokenizer(text)["input_ids"] for text in asked["texts"]]
        return {
            "indices": indices,
            "texts": [tokenizer.decode(row, skip_special_tokens=True) for row in indices],
        }
    model, kind = model_of(folder)
    with torch.no_grad():
        answers = {"logits": model(asked["tokens"], attention_mask=asked["mask"].long()).logits}
        if "too_long" in asked:
            try:
                model(asked["too_long"])
            except ValueError as error:
                answers["refusal"] = str(error)
    if kind == "CausalLM":
        for name, options in (("state", {}), ("no state", {"use_cache": False})):
            rows = slice(None if name == "state" else 4)
            continued = model.generate(
                asked["prompts"][rows],
                attention_mask=asked["prompt_mask"][rows].long(),
                max_new_tokens=asked["count"],
                do_sample=False,
                eos_token_id=None,
                pad_token_id=PAD,
                suppress_tokens=[PAD],
                **options,
            )
            answers[name] = continued[:, asked["prompts"].shape[1] :]
        beams = model.generate(asked["prompts"][-1:], num_beams=3, max_new_tokens=5, pad_token_id=PAD)
        answers["beams"] = beams[:, asked["prompts"].shape[1] :]
    return answers


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = Path(sys.argv[1])
    questions = torch.load(place / "questions.pt", weights_only=True)
    answers = {name: answer(place / name, asked) for name, asked in questions.items()}
    assert not {"fairseq", "user_dir", "pipeline", "causal_linear_attention"} & set(sys.modules)
    torch.save(answers, place / "answers.pt")
