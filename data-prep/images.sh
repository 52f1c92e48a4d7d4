#!/usr/bin/env bash
# Prepare images for --task pixels; --help says how. pipeline/data/images/prepare.py does the work.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

run_module data.images.prepare "$@"
