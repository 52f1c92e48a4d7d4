#!/usr/bin/env bash
# Prepare the tasks of the Long Range Arena; --help says how. pipeline/data/lra/prepare.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_module data.lra.prepare "$@"
