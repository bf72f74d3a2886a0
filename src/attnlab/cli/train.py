"""attnlab train: one run, a sweep (-m), or a resumed run."""

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from traceback import clear_frames
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from attnlab.cli.choices import conf_dir
from attnlab.cli.overrides import Plan, check, check_jobs, job_folder
from attnlab.cli.reference import reference_config, softmax_references, sweeps_density
from attnlab.cli.resume import require_run, resume_target, resumed_config
from attnlab.cli.sweep import Job, print_table, report_failure, show_density, show_glue, show_masks, write_table
from attnlab.errors import UserError, closest
from attnlab.files import shown

MULTIRUN = ("-m", "--multirun")


def train_command(argv: Sequence[str]) -> int:
    """Exit code 0, 1 (a job of a sweep failed) or 130 (Ctrl-C); raises what a single run raised."""
    options, flags = _parse(argv)
    words: list[str] = options.overrides
    if options.hydra_help or options.info or options.shell_completion:
        _hydra_main(flags, words, lambda cfg: None)
        return 0
    if options.multirun and options.cfg:
        raise UserError("--cfg shows one config: leave out -m")
    resumed = resume_target(words)
    if resumed is not None:
        return _resume(resumed, words, multirun=options.multirun)
    extra = Path(options.config_dir) if options.config_dir else None
    if extra and not extra.is_dir():
        raise UserError(f"--config-dir {extra}: there is no such folder")
    plan = check(words, multirun=options.multirun, extra_conf=extra)
    if options.cfg:
        _hydra_main(flags, words, lambda cfg: None)
        return 0
    return _sweep(flags, words, plan) if options.multirun else _single(flags, words)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Hydra's options, wherever they stand among the overrides, and the words that make them up."""
    parser = get_args_parser()
    parser.allow_abbrev = False  # a misspelt option must not pass for another
    options, unknown = parser.parse_known_intermixed_args(list(argv))
    known = {name for action in parser._actions for name in action.option_strings}
    for word in unknown:
        raise UserError(f"unknown option {word!r}{closest(word, known)}")
    return options, [word for word in argv if word not in options.overrides]


def _hydra_main(flags: Sequence[str], words: Sequence[str], task: Any) -> None:
    """Runs the task, once per job. Hydra takes its arguments from sys.argv only."""
    sys.argv = [sys.argv[0], *flags, *words]

    def job(cfg: DictConfig) -> None:
        task(cfg)

    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(job)()


def _single(flags: Sequence[str], words: Sequence[str]) -> int:
    jobs: list[Job] = []
    _hydra_main(flags, words, lambda cfg: jobs.append(_run_job(_hydra_job(words), lambda: cfg)))
    for job in jobs:
        if job.status == "interrupted":
            _say_how_to_resume(job.folder)
            raise KeyboardInterrupt
        if job.error is not None:
            raise job.error
    return 0


def _sweep(flags: Sequence[str], words: Sequence[str], plan: Plan) -> int:
    """Every job, then the softmax references; after each job, sweep.csv is up to date."""
    check_jobs(plan)
    jobs: list[Job] = []
    references = softmax_references(plan)
    total = plan.jobs + len(references)
    # with nothing swept, a job is known by everything that was typed
    fixed = [key for key in plan.fixed if not (references and key in ("attn", "sparsity"))] if plan.swept else []
    root = Path()
    console, errors = Console(), Console(stderr=True)

    def run(job: Job, config: Callable[[], DictConfig], kind: str = "") -> None:
        console.rule(f"job {len(jobs) + 1} of {total}{kind}", align="left", style="dim")
        console.print(" ".join(job.overrides), markup=False, highlight=False)
        with _own_command([*(f for f in flags if f not in MULTIRUN), *job.overrides]):
            jobs.append(_run_job(job, config))
        if job.error is not None:
            report_failure(job, errors)
            _let_go(job.error)
        try:
            write_table(root, jobs, fixed)
        except OSError as error:  # the next job writes it again
            console.print(f"note: sweep.csv could not be written: {error.strerror}", highlight=False)
        if job.status == "interrupted":
            raise KeyboardInterrupt

    def task(cfg: DictConfig) -> None:
        nonlocal root
        root = Path(HydraConfig.get().sweep.dir).absolute()
        run(_hydra_job(words), lambda: cfg)

    # a folder is named after what differs between the jobs
    naming = [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"] if fixed else []
    interrupted = False
    try:
        _hydra_main(flags, [*words, *naming], task)
        for own in references:
            name = job_folder(",".join(sorted(word for word in own if word.partition("=")[0] not in fixed)))
            job = Job(overrides=own, folder=_own_folder(root / name, words))
            run(job, partial(reference_config, plan, own), ": softmax, the reference")
    except KeyboardInterrupt:
        interrupted = True
    print_table(jobs, total, fixed, console)
    if "task" in plan.swept:
        show_glue(jobs, fixed, console)
    if jobs and sweeps_density(plan):
        show_density(root, jobs, fixed, console)
    if jobs and any(key.partition(".")[0] == "mask" for key in plan.swept):
        show_masks(root, console)
    if interrupted:
        return 130
    return int(any(job.status != "done" for job in jobs))


def _hydra_job(words: Sequence[str]) -> Job:
    """The job that Hydra is about to run."""
    hydra_config = HydraConfig.get()
    folder = _own_folder(Path(hydra_config.runtime.output_dir), words)
    return Job(overrides=tuple(hydra_config.overrides.task), folder=folder)


def _run_job(job: Job, config: Callable[[], DictConfig]) -> Job:
    """Trains in the job's folder. An error is kept in the job: Hydra would stop the sweep."""
    try:
        cfg = config()
        if cfg.resume == "auto":
            job.folder = _unfinished_or(job.folder, cfg)
        _train(cfg, job)
    except KeyboardInterrupt:
        job.status = "interrupted"
    except Exception as error:
        job.status, job.error = "failed", error
        _remove_if_empty(job.folder)
    return job


def _own_folder(folder: Path, words: Sequence[str]) -> Path:
    """The folder, or `folder_2`, ... when another command that started in the same second has it.

    A folder that the user named is taken as it is.
    """
    if any(word.startswith(("hydra.run.dir", "hydra.sweep.")) for word in words):
        return folder
    own, number = folder, 1
    while True:
        own.mkdir(parents=True, exist_ok=True)
        try:
            (own / ".started").touch(exist_ok=False)
            return own
        except FileExistsError:
            number += 1
            own = folder.with_name(f"{folder.name}_{number}")


def _let_go(error: BaseException | None) -> None:
    """Empties the frames that the error holds: its model would stay in memory for the rest of the sweep."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _train(cfg: DictConfig, job: Job) -> None:
    from attnlab.report.run import train  # here, because it takes seconds to import
    from attnlab.tasks.spec import TaskSpec

    try:
        result = train(cfg, job.folder)
    except SystemExit as stop:
        # Lightning turns Ctrl-C into exit(1)
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        # else it is its answer to SIGTERM, whose own code is 0: a scheduler would take the run for done
        _say_how_to_resume(job.folder)
        raise SystemExit(128 + signal.SIGTERM) from stop
    job.status = "done"
    monitored = TaskSpec.from_config(cfg.task, ()).metrics[0]
    value = result.metrics.get("val", {}).get(monitored)
    job.metric = "" if value is None else f"val {monitored} {value:.4f}"


def _unfinished_or(folder: Path, cfg: DictConfig) -> Path:
    """resume=auto: the newest unfinished run of this config, else the new folder."""
    from attnlab.training.run_folder import find_unfinished

    found = find_unfinished(cfg)
    if found is None:
        print("resume=auto: no unfinished run of this configuration, starting a new one")
        cfg.resume = None
        return folder
    print(f"resume=auto: going on in {found}")
    cfg.resume = str(found)
    if folder.resolve() != Path(found).resolve():
        _remove_if_empty(folder)
    return Path(found)


def _remove_if_empty(folder: Path) -> None:
    """Leaves no empty folders behind when nothing was begun; stops at the working folder."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [".started"]:
            (folder / ".started").unlink()
        while folder != Path.cwd() and folder.is_relative_to(Path.cwd()):
            folder.rmdir()
            folder = folder.parent


@contextmanager
def _own_command(words: Sequence[str]) -> Iterator[None]:
    """Makes sys.argv the command that would run this job alone; provenance.json records it."""
    argv = sys.argv
    sys.argv = [argv[0], *words]
    try:
        yield
    finally:
        sys.argv = argv


def _resume(folder: Path, words: Sequence[str], *, multirun: bool) -> int:
    if multirun:
        raise UserError("resume=FOLDER goes on with one run: leave out -m, or use resume=auto")
    folder = require_run(folder)
    cfg, changes = resumed_config(folder, words)
    # what Hydra does for a new run, which this is not
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("attnlab").setLevel(logging.INFO)
    print(f"resuming {folder}")
    for change in changes:
        print(f"  {change}")
    job = Job(overrides=tuple(words), folder=folder)
    try:
        _train(cfg, job)
    except KeyboardInterrupt:
        _say_how_to_resume(folder)
        raise
    return 0


def _say_how_to_resume(folder: Path) -> None:
    print(f"interrupted; to go on: python train.py resume={shown(folder)}", file=sys.stderr)
