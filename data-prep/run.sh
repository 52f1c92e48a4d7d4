# Sourced by the scripts beside it.

source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

# run_script FILE ARGUMENTS...: a Python file of this folder in .venv, in place of this shell;
# --help needs no .venv.
run_script() {
    local argument file=$ROOT/data-prep/$1
    shift
    for argument in "$@"; do
        if [[ $argument == --help || $argument == -h ]]; then
            exec "$(find_python)" "$file" --help
        fi
    done
    ensure_environment
    exec "$VENV_PYTHON" "$file" "$@"
}
