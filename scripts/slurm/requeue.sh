# Shared by the .sbatch files beside it: source it, then call `step COMMAND...`, which ends the script.

# Run a command as the job's step. Slurm's notice before the time limit (#SBATCH --signal=B:USR1@...) and the SIGTERM
# of a preemption are handed to it: it saves at the next update and ends with 75, or with 143 if it trained nothing.
# The job then goes back to the queue, where the same command resumes.
step() {
    local code=0 pid asked=
    trap 'asked=yes; kill -USR1 "$pid" 2>/dev/null' USR1 TERM
    "$@" &
    pid=$!
    wait "$pid" || code=$?
    while kill -0 "$pid" 2>/dev/null; do # only the trap has ended the wait
        code=0
        wait "$pid" || code=$?
    done
    if [[ $code == 75 || (-n $asked && $code == 143) ]]; then
        echo "stopped as asked; the job goes back to the queue"
        exec scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$code"
}
