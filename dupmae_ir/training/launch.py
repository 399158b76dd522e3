"""Several processes of one command on this machine, started by torch's launcher (``torch.distributed.run``)."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dupmae_ir.console import say
from dupmae_ir.device import processors

LAUNCHER = "DUPMAE_IR_LAUNCHER"
"""Environment variable with the process id of the launcher, for the processes that it started."""


def launch(verb: str, words: Sequence[str], processes: int) -> int:
    """Run ``dupmae-ir VERB WORDS`` in several processes of this machine and return the exit status.

    The first process prints; of the others, only an error that it does not report is passed on. Signals such as Ctrl-C
    reach all processes, which also end when the launcher is killed; the same command then resumes.
    """
    # Imported here: it takes as long as torch.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # Errors are reported once, by the processes.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ[LAUNCHER] = str(os.getpid())
    # torch's launcher would give each process one thread.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // processes)))
    with tempfile.TemporaryDirectory() as logs:
        # Both streams (3) of all processes but the first go into files.
        redirects = ",".join(f"{rank}:3" for rank in range(1, processes))
        options = [
            "--standalone",
            "--nproc-per-node",
            str(processes),
            "--redirects",
            redirects,
            "--log-dir",
            logs,
        ]
        try:
            run(parse_args([*options, "-m", f"dupmae_ir.{verb}", *words]))
        except SignalException as e:
            return 128 + e.sigval
        except ChildFailedError as e:
            statuses = {rank: failure.exitcode for rank, failure in e.failures.items()}
            return _report(statuses, Path(logs))
    return 0


def _report(failures: Mapping[int, int], logs: Path) -> int:
    """Print the errors that the first process has not printed, and return its exit status, or that of another.

    ``failures``: rank -> exit status; negative for a signal.
    """
    for rank in sorted(failures.keys() - {0}):
        log = next(logs.rglob(f"{rank}/stderr.log"))
        _, _, last_line = log.read_text(errors="replace").strip().rpartition("\n")
        # An error of the toolkit occurs in all processes, and the first has printed it.
        reported_by_first = 0 in failures and last_line.startswith("dupmae-ir ")
        if not reported_by_first:
            say(f"process {rank} ended with status {failures[rank]}: {last_line}")
    # A signal has a negative status.
    return max(1, failures[min(failures)])


def end_with_launcher() -> None:
    """End this process as soon as the launcher that started it is gone: killed, it cannot pass the signal on."""

    def wait(launcher: int) -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        # sys.exit would end this thread alone.
        os._exit(1)

    if LAUNCHER in os.environ:
        threading.Thread(target=wait, args=(int(os.environ[LAUNCHER]),), daemon=True).start()
