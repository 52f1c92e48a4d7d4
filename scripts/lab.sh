#!/usr/bin/env bash
# Run a command without a script of its own, as `lab.sh VERB`; --help lists the verbs.
# Links to this file are names of earlier releases; lab/cli.py has the new names.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

[[ $# -gt 0 || -L $0 ]] || set -- --help
if [[ ${0##*/} == gpu_check.sh || "${1:-} ${2:-}" == "check gpu" ]]; then
    check_gpu "$@"
elif [[ ${1:-} == setup ]]; then
    if wants_help "$@"; then
        printf 'usage: scripts/lab.sh setup\n\nMake .venv; PYTHON= and TORCH_SPEC= choose interpreter and torch.\n'
        exit 0
    fi
    [[ $# -eq 1 ]] || die "scripts/lab.sh setup takes no options, but got ${*:2}; leave them out"
    ensure_environment
else
    run_command "$@"
fi
