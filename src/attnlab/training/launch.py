"""Several processes on one machine: each child is given the run folder, not the command line.

Lightning's own launcher repeats the command that started the first process. Under `-m` that starts the whole sweep
again in each child, in other folders. Here a child runs `python -m attnlab.training.worker RUN_FOLDER`, which trains
from the resolved config found there, whatever the parent was: a script, a sweep, a test.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

LAUNCHER_VARIABLES = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class _RunFolderLauncher(_SubprocessScriptLauncher):
    run_dir: Path

    def _call_children_scripts(self) -> None:
        self._check_can_spawn_children()
        self.procs = []
        os.environ["MASTER_ADDR"] = self.cluster_environment.main_address
        os.environ["MASTER_PORT"] = str(self.cluster_environment.main_port)
        os.environ["NODE_RANK"] = str(self.cluster_environment.node_rank())
        os.environ["LOCAL_RANK"] = str(self.cluster_environment.local_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        for rank in range(1, self.num_processes):
            command = [sys.executable, "-m", "attnlab.training.worker", str(self.run_dir)]
            self.procs.append(subprocess.Popen(command, env={**os.environ, "LOCAL_RANK": str(rank)}))

    def stop_children(self) -> None:
        """End the processes that were started, and the watch that would kill this one when they fail."""
        for process in self.procs:
            process.kill()  # Lightning answers SIGTERM only between batches, which may never come
        for process in self.procs:
            process.wait()
        self.procs.clear()


class RunFolderDDP(DDPStrategy):
    """Distributed data parallel whose children train from the run folder's config.

    Buffers are not broadcast: none of ours differs between processes, and processes evaluate unequal shares.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__(broadcast_buffers=False)
        self.run_dir = run_dir

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        launcher = _RunFolderLauncher(self.cluster_environment, self.num_processes, self.num_nodes)
        launcher.run_dir = self.run_dir
        self._launcher = launcher

    def stop_children(self) -> None:
        if isinstance(self._launcher, _RunFolderLauncher):
            self._launcher.stop_children()


@contextmanager
def process_group_cleared() -> Iterator[None]:
    """Leave no process group and no launcher variable behind, so that the next job of a sweep starts clean."""
    before = {name: os.environ.get(name) for name in LAUNCHER_VARIABLES}
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
