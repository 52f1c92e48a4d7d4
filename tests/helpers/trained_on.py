"""Trains exported models with `transformers.Trainer`, without fairseq and this project.

Argument: a folder with one for each model: `batches.pt`, a list of batches with `input_ids` and `labels`,
their `settings.json`, and the model in `model`; the loss of each update goes to `losses.json`.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.data import Sampler, SequentialSampler


def without_torchaudio() -> ModuleType:
    """transformers, which would import fairseq's torchaudio and fail where CUDA's libraries are missing."""
    sys.modules["torchaudio"] = None
    import transformers

    return transformers


def losses(folder: Path) -> list[float]:
    """The loss of each update: the sum of what Trainer has for its batches."""
    transformers = without_torchaudio()
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
    config = json.loads((folder / "model" / "config.json").read_text())
    kind = config["architectures"][0].removeprefix("LinearAttentionFor")
    load = getattr(transformers, f"AutoModelFor{kind}").from_pretrained
    model = load(folder / "model", trust_remote_code=True)
    rows = [
        {name: batch[name][row] for name in batch} for batch in batches for row in range(len(batch["labels"]))
    ]
    InOrder(model=model, args=arguments, train_dataset=rows).train()
    return [float(sum(found[i : i + count])) for i in range(0, len(found), count)]


if __name__ == "__main__":
    for place in (settings.parent for settings in Path(sys.argv[1]).glob("*/settings.json")):
        (place / "losses.json").write_text(json.dumps(losses(place)))
