"""Reads the model card `README.md` as Hugging Face's hub does and writes its figures to `answer.json`."""

import json
import sys
from pathlib import Path

from huggingface_hub import ModelCard

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = [
        [one.dataset_name, one.dataset_split, one.metric_type, one.metric_name, one.metric_value]
        for one in ModelCard.load(folder / "README.md", ignore_metadata_errors=False).data.eval_results
    ]
    (folder / "answer.json").write_text(json.dumps(found))
