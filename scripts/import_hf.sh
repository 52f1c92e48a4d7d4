#!/usr/bin/env bash
# Turn RoBERTa weights of transformers into a checkpoint.
# Options and help: pipeline/commands/export/import_hf.py; the work: pipeline/export/import_hf.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command export.import_hf "$@"
