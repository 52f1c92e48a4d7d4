# Shared by the scripts beside it: source it, then call run_command or ensure_environment.
# Sets ROOT (the project) and, after ensure_environment, VENV_PYTHON.

unset CDPATH # with which cd prints where it went, or goes elsewhere
ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV_PYTHON=$ROOT/.venv/bin/python

# Threads that wait must not spin: where other programs share the cores, that costs a factor of five.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# Files and output are UTF-8 in any locale.
export PYTHONUTF8=${PYTHONUTF8:-1}

die() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Print why the Python named $1 cannot make .venv; nothing if it can.
unsuitable() {
    "$1" -c '
import os, sys, sysconfig
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    print("is Python %d.%d; 3.11 to 3.14 is needed" % sys.version_info[:2])
else:
    try:
        import ensurepip, venv
    except ImportError:
        print("cannot make virtual environments; install its venv package (Debian: python3-venv)")
    else:
        if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
            print("has no C headers; install its development package (Debian: python3-dev)")
' 2>/dev/null || echo "does not run"
}

# Print the Python to make .venv with: $PYTHON if set, else the first suitable one on PATH.
find_python() {
    local candidate reason found=
    if [[ -n ${PYTHON:-} ]]; then
        reason=$(unsuitable "$PYTHON")
        [[ -z $reason ]] || die "PYTHON=$PYTHON $reason; set PYTHON to a Python 3.11 to 3.14"
        command -v -- "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        command -v "$candidate" >/dev/null || continue
        reason=$(unsuitable "$candidate")
        if [[ -z $reason ]]; then
            command -v "$candidate"
            return
        fi
        [[ $reason == "does not run" || -n $found ]] || found="; $candidate $reason"
    done
    die "no suitable Python 3.11 to 3.14 on PATH$found; install one or name it with PYTHON="
}

# Make .venv unless it is complete and up to date (see environment.py); its own Python finds out.
ensure_environment() {
    local python
    if [[ -f $ROOT/.venv/ready.json ]] && "$VENV_PYTHON" -I -S "$ROOT/scripts/environment.py" --ready 2>/dev/null; then
        return
    fi
    python=$(find_python)
    "$python" "$ROOT/scripts/environment.py"
}

# run_command ARGUMENTS...: replace this shell by the command that lab/cli.py has for this script, run in .venv.
# --help does not make .venv.
run_command() {
    if ! wants_help "$@"; then
        ensure_environment
    elif [[ ! -f $ROOT/.venv/ready.json || ! -x $VENV_PYTHON ]]; then
        say_how_to_get_help
    fi
    exec_command "$VENV_PYTHON" "$@"
}

# Before the set-up, print this sentence instead of a command's help.
say_how_to_get_help() {
    printf '%s describes its options once scripts/lab.sh setup (which any command runs first) has made .venv.\n' \
        "$(name_of_command)"
    exit 0
}

# check_gpu ARGUMENTS...: the check of a GPU, in the Python that PYTHON names, in .venv, or with any that has torch.
check_gpu() {
    local python=${PYTHON:-$VENV_PYTHON}
    [[ -x $python || -n ${PYTHON:-} ]] || python=python3
    if ! wants_help "$@"; then
        needs_package "$python" "$(finds torch)" "has no torch, and so no GPU; name one with torch in PYTHON"
        needs_package "$python" 'import setuptools; exit(int(setuptools.__version__.split(".")[0]) < 77)' \
            "needs setuptools 77 or later to build the kernels; run $python -m pip install -U setuptools"
        needs_package "$python" "$(finds pytest hypothesis)" \
            "has no pytest or no hypothesis; run $python -m pip install pytest hypothesis"
    fi
    exec_command "$python" "$@"
}

# finds NAME...: the Python code that fails unless these packages are there; importing torch would take seconds.
finds() {
    printf 'from importlib.util import find_spec; exit(not all(map(find_spec, "%s".split())))' "$*"
}

# needs_package PYTHON CODE COMPLAINT: end with the complaint about the Python unless the code runs in it.
needs_package() {
    # PYTHONSAFEPATH: no package of the user's own directory comes first
    PYTHONSAFEPATH=1 "$1" -c "$2" 2>/dev/null || {
        printf 'error: %s %s\n' "$1" "$3" >&2
        exit 2
    }
}

# Print the folder and name of this script, as one types them in a clone.
name_of_command() {
    local folder
    folder=$(cd -- "$(dirname -- "$0")" && pwd -P)
    printf '%s/%s' "${folder##*/}" "${0##*/}"
}

wants_help() {
    local argument
    for argument in "$@"; do
        [[ $argument != --help && $argument != -h ]] || return 0
    done
    return 1
}

# answer_help ARGUMENTS...: if help is asked for, print the comment at the top of the script, and end.
answer_help() {
    wants_help "$@" || return 0
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
}

# only_a_folder ARGUMENTS...: answer help; refuse anything but one folder.
only_a_folder() {
    local argument script
    answer_help "$@"
    script=scripts/$(basename -- "$0")
    for argument in "$@"; do
        [[ $argument != -* ]] || die "there is no option $argument; see $script --help"
    done
    [[ $# -eq 1 && -n $1 ]] || die "give one folder; see $script --help"
}

# exec_command PYTHON ARGUMENTS...: the same with this Python, whatever it has.
exec_command() {
    local python=$1
    shift
    # The user's own directory may hold a package called "lab": it must not come first.
    PYTHONSAFEPATH=1 PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m lab "$(name_of_command)" "$@"
}

# begin_tests ARGUMENTS...: answer help; make .venv and go to the project's folder.
begin_tests() {
    answer_help "$@"
    # Some containers set it; then each of the hundreds of processes would compile every module again.
    unset PYTHONDONTWRITEBYTECODE
    ensure_environment
    [[ ${WHEELHOUSE:-/} == /* ]] || WHEELHOUSE=$PWD/$WHEELHOUSE
    cd -- "$ROOT"
}

# run_tests MORE ARGUMENTS...: replace this shell by pytest, in as many processes as there are cores and MORE, at most
# six, with one thread each. -n 0 among the arguments runs all tests in one process.
run_tests() {
    local workers
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    workers=$(($(env -u OMP_NUM_THREADS nproc) + $1))
    shift
    exec "$VENV_PYTHON" -m pytest -n $((workers < 6 ? workers : 6)) --dist worksteal "$@"
}

# install_beside FOLDER LIST OPTIONS...: the packages of the file LIST, in FOLDER beside .venv, unless they are there.
install_beside() {
    local folder=$1 list=$2 made_from part
    shift 2
    made_from=$("$VENV_PYTHON" -VV && cat -- "$list")
    if [[ -f $folder/made_from && $(<"$folder/made_from") == "$made_from" ]]; then
        return
    fi
    [[ ! -e $folder || -f $folder/made_from ]] || die "$folder was not made by these scripts; rename it"
    echo "Installing $list into $folder"
    part=$(mktemp -d -- "$folder.XXXXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf -- $(printf %q "$part")" EXIT
    "$VENV_PYTHON" -m pip install --quiet --target "$part" -r "$list" "$@" ||
        die "pip could not install $list; see its message above"
    printf '%s\n' "$made_from" >"$part/made_from"
    rm -rf -- "$folder"
    mv -- "$part" "$folder"
    trap - EXIT
}
