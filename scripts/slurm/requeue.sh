# Shared by the .sbatch files beside it: source it, then call `step COMMAND...`, which ends the script.

# Run a command as the job's step. Slurm's notice before the time limit (#SBATCH --signal=B:USR1@...) and the SIGTERM
# of a preemption are handed to it: it saves at the next update and ends with 75, or with 143 or 138 if it trained
# nothing. The job then goes back to the queue, where the same command resumes.
step() {
    local code ended=127 pid= asked= trapped=yes
    trap 'asked=yes; trapped=yes; kill -USR1 ${pid:+"$pid"} 2>/dev/null || true' USR1 TERM
    "$@" &
    pid=$!
    [[ -z $asked ]] || kill -USR1 "$pid" 2>/dev/null || true # the notice came before there was a command
    while [[ -n $trapped ]]; do # the trap ends a wait, too, with a code that is not the command's
        trapped=
        code=0
        wait "$pid" || code=$?
        [[ $code == 127 ]] || ended=$code # 127: its code was given before
    done
    if [[ $ended == 75 || (-n $asked && ($ended == 143 || $ended == 138)) ]]; then
        echo "stopped as asked; the job goes back to the queue"
        exec scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$ended"
}
