#!/bin/bash
# A run on the machines of a Slurm cluster, one task for each process:
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 --time 4:00:00 \
#       configs/slurm.sh run_glue.py RECIPE.yaml --output_dir DIR
# Each task sees all GPUs of its machine and takes the one of its number, so leave out --gpus-per-task. Five minutes
# before the time limit the tasks are told to stop. They save a checkpoint, and the job is queued again and resumes. So
# it does after a machine has failed. PYTHON names the interpreter, if it is not the first one on the path.
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append

set -u

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
export WORLD_SIZE="$SLURM_NTASKS" LOCAL_WORLD_SIZE="${SLURM_TASKS_PER_NODE%%(*}" PYTHON="${PYTHON:-python}"

# With exec, the signal reaches Python itself. A task that ends does not end the others, which may still be saving.
# shellcheck disable=SC2016  # each task reads its own numbers
srun --kill-on-bad-exit=0 \
    bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$PYTHON" "$@"' task "$@" --resume
status=$?

if [ "$status" -eq 130 ]; then # stopped by a signal, with a checkpoint
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
