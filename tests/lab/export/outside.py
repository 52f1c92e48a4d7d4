"""Exported models in `transformers`, in a process that has neither fairseq nor this project.

    python outside.py {answer,run_code,train,write_roberta,read_card} FOLDER ARGUMENTS...

calls the function of that name.
"""

import builtins
import json
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch.utils.data import Sampler, SequentialSampler

# transformers would load the pinned one, which fails where CUDA's libraries are missing.
sys.modules["torchaudio"] = None
transformers = import_module("transformers")
PAD = 1


def load(folder: Path, **options: object) -> tuple[torch.nn.Module, str]:
    """The model in a folder, and its kind as in `AutoModelFor...`; `options` are for `from_pretrained`."""
    config = json.loads((folder / "config.json").read_text())
    kind = config["architectures"][0].removeprefix("LinearAttentionFor")
    auto = getattr(transformers, f"AutoModelFor{kind}")
    model = auto.from_pretrained(str(folder), trust_remote_code=True, local_files_only=True, **options)
    return model, kind


def answer(folder: Path) -> None:
    """Write `answers.pt` for `questions.pt`, a dictionary of a case's name to its inputs.

    A folder of that name has the exported model. Inputs: `tokens` with `mask` for logits, `too_long` for
    tokens that must be refused, `classes` for the weights of another head; for language models also
    `prompts`, `prompt_mask` and `count` for greedy continuations; `texts` for a tokenizer's indices.
    """
    questions = torch.load(folder / "questions.pt", weights_only=True)
    torch.save(
        {name: answer_to(folder / name, asked) for name, asked in questions.items()}, folder / "answers.pt"
    )


def answer_to(folder: Path, asked: dict) -> dict:
    """The answers for one model or tokenizer."""
    if "texts" in asked:
        options = {"trust_remote_code": True, "local_files_only": True}
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
        indices = [tokenizer(text)["input_ids"] for text in asked["texts"]]
        return {
            "indices": indices,
            "texts": [tokenizer.decode(row, skip_special_tokens=True) for row in indices],
        }
    load(folder)[0].save_pretrained(folder / "again")  # saving and loading again changes nothing
    model, kind = load(folder / "again")
    model.eval()
    with torch.no_grad():
        found = model(asked["tokens"], attention_mask=asked["mask"].long(), output_hidden_states=True)
        embedded = model.get_input_embeddings()(asked["tokens"])
        again = model(inputs_embeds=embedded, attention_mask=asked["mask"].long())
        answers = {"logits": found.logits, "of embeddings": again.logits}
        answers["hidden states"] = torch.stack(found.hidden_states)
        if kind != "SequenceClassification":
            answers["last"] = model.lm_head(found.hidden_states[-1])
        answers["attentions"] = refusal(model, asked["tokens"], output_attentions=True)
        if "too_long" in asked:
            answers["refusal"] = refusal(model, asked["too_long"])
    if "labels" in asked:
        answers["gradients"] = gradients(model, asked)
        model.gradient_checkpointing_enable()
        answers["checkpointed"] = gradients(model, asked)
        model.gradient_checkpointing_disable()
        model.eval()
    if "classes" in asked:
        options = {"num_labels": asked["classes"], "ignore_mismatched_sizes": True}
        answers["new head"] = load(folder, **options)[0].classifier.out_proj.state_dict()
    if kind == "CausalLM":
        greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "suppress_tokens": [PAD]}
        for name, options in (("state", {}), ("no state", {"use_cache": False})):
            rows = slice(None if name == "state" else 4)
            continued = model.generate(
                asked["prompts"][rows],
                attention_mask=asked["prompt_mask"][rows].long(),
                max_new_tokens=asked["count"],
                **greedy,
                **options,
            )
            answers[name] = continued[:, asked["prompts"].shape[1] :]
        first = model.generate(asked["prompts"][:1], max_new_tokens=1, return_dict_in_generate=True, **greedy)
        state, more = first.past_key_values, asked["count"] - 1
        both = model.generate(first.sequences, past_key_values=state, max_new_tokens=more, **greedy)
        answers["two calls"] = both[:, asked["prompts"].shape[1] :]
        beams = model.generate(asked["prompts"][-1:], num_beams=3, max_new_tokens=5, pad_token_id=PAD)
        answers["beams"] = beams[:, asked["prompts"].shape[1] :]
        prompts = model.get_input_embeddings()(asked["prompts"])
        mask = asked["prompt_mask"].long()
        for name, options in (("embeddings", {}), ("embeddings, no state", {"use_cache": False})):
            rows = slice(4)
            answers[name] = model.generate(
                inputs_embeds=prompts[rows],
                attention_mask=mask[rows],
                max_new_tokens=asked["count"],
                **greedy,
                **options,
            )
    if kind != "SequenceClassification":
        model.resize_token_embeddings(model.config.vocab_size + 2)
        with torch.no_grad():
            more = model(asked["tokens"], attention_mask=asked["mask"].long()).logits
        answers["two words more"] = more[..., :-2]
    return answers


def refusal(model: torch.nn.Module, tokens: torch.Tensor, **options: object) -> str:
    """The sentence with which the model refuses its input."""
    try:
        model(tokens, **options)
    except ValueError as error:
        return str(error)
    raise AssertionError("not refused")


def gradients(model: torch.nn.Module, asked: dict) -> torch.Tensor:
    """The gradients of all parameters in training, with the same dropout each time."""
    model.train()
    model.zero_grad()
    torch.manual_seed(0)
    mask = asked["mask"].long()
    model(asked["tokens"], attention_mask=mask, labels=asked["labels"]).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def run_code(folder: Path) -> None:
    """Run `code.py` in the folder."""
    exec((folder / "code.py").read_text(), {})


def train(folder: Path) -> None:
    """Train the models in `folder` with `transformers.Trainer`, and write their `losses.json`.

    In the folder of each: `batches.pt`, a list of batches with `input_ids` and `labels`, `settings.json`, and
    `model`.
    """
    for place in (settings.parent for settings in folder.glob("*/settings.json")):
        (place / "losses.json").write_text(json.dumps(losses(place)))


def losses(folder: Path) -> list[float]:
    """The loss of each update: the sum of what Trainer has for its batches."""
    settings = json.loads((folder / "settings.json").read_text())
    batches = torch.load(folder / "batches.pt", weights_only=True)
    count, found = settings["gradient_accumulation_steps"], []

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *dataset) -> Sampler:
            return SequentialSampler(self.train_dataset)

        def training_step(self, *batch, **options) -> torch.Tensor:
            found.append(super().training_step(*batch, **options))
            return found[-1]

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=len(batches[0]["labels"]),
        max_steps=len(batches) // count,
        lr_scheduler_type="constant",
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **settings,
    )
    model, _ = load(folder / "model")
    rows = [
        {name: batch[name][row] for name in batch} for batch in batches for row in range(len(batch["labels"]))
    ]
    InOrder(model=model, args=arguments, train_dataset=rows).train()
    return [float(sum(found[i : i + count])) for i in range(0, len(found), count)]


def write_roberta(folder: Path, words: str) -> None:
    """Write a small random RoBERTa: config.json, model.safetensors, and `answers.pt`.

    That has `tokens` with padding on the right and the model's `logits`.
    """
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=int(words),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=40,
        max_position_embeddings=66,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    model = transformers.RobertaForMaskedLM(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokens = torch.randint(4, int(words), (4, 50))
    for row in range(4):
        tokens[row, 50 - 7 * row :] = PAD
    with torch.no_grad():
        logits = model(tokens, attention_mask=(tokens != PAD).long()).logits
    torch.save({"tokens": tokens, "logits": logits}, folder / "answers.pt")


def read_card(folder: Path) -> None:
    """Read the model card `README.md` as Hugging Face's hub does, and write its figures to `answer.json`."""
    from huggingface_hub import ModelCard

    found = [
        [one.dataset_name, one.dataset_split, one.metric_type, one.metric_name, one.metric_value]
        for one in ModelCard.load(folder / "README.md", ignore_metadata_errors=False).data.eval_results
    ]
    (folder / "answer.json").write_text(json.dumps(found))


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    questions: list[str] = []
    builtins.input = lambda text: questions.append(text) or "n"  # such as "run the custom code? [y/N]"
    {one.__name__: one for one in (answer, run_code, train, write_roberta, read_card)}[sys.argv[1]](
        Path(sys.argv[2]), *sys.argv[3:]
    )
    assert not questions, questions
    assert not {"fairseq", "user_dir", "lab", "causal_linear_attention"} & set(sys.modules)
