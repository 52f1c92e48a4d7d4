#!/usr/bin/env bash
# Export a model for transformers.
# Options and help: pipeline/commands/export/export_hf.py; the work: pipeline/export/export_hf.py.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

run_command export.export_hf "$@"
