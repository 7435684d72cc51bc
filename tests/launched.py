"""torchrun, of processes that are killed: `python -m tests.launched --nproc-per-node 2 ... run_glue.py ...`.

A server that has imported everything, and runs no thread, forks the processes, so that each of them starts at once.
"""

import multiprocessing
import os
import signal
import sys

from torch.distributed import run as torchrun


UPDATES = {("0", "1"): 3, ("1", "0"): 5}  # (start, process) -> the update after which it is killed, one in each start


def kill_after(moment: int | None, argv: list[str]) -> None:
    """A run whose process is killed after this update."""
    import run_glue  # which the launcher itself does without
    from elmo_gpt_bert.training import loop

    update = loop._Training.update

    def update_and_end(self, *parts) -> None:
        update(self, *parts)
        if self.progress.update == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    loop._Training.update = update_and_end
    run_glue.main(argv)


def work(argv: list[str]) -> None:
    """What each process does."""
    kill_after(UPDATES.get((os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])), argv)


def main(words: list[str]) -> None:
    """What torchrun does with these words, of which the last ones are "run_glue.py" and the flags of the run."""
    multiprocessing.set_forkserver_preload(["run_glue"])
    read_arguments = torchrun.config_from_args

    def with_server(args: object) -> tuple:
        config = read_arguments(args)[0]
        config.start_method = "forkserver"
        return config, work, (args.training_script_args,)

    torchrun.config_from_args = with_server
    torchrun.main(words)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    from tests.launched import main  # so that the processes find `work` by its name

    main(sys.argv[1:])
