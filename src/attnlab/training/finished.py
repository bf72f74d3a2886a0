"""A finished run, opened from its folder alone: its settings, its model, and the data that it meets now."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..attention import load
from ..data.spec import DataSpec
from ..errors import UserError
from ..tasks.spec import TaskSpec
from ..transforms.kernel import set_kernel
from .models import in_head_order, label_names, load_tokenizer, longest_input
from .run_folder import read_config, read_metrics

# what the run's own task was told of its data says nothing about another task's
OF_ONE_TASK = ("train", "val", "test", "text", "text_pair", "label", "choices", "group", "limit")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """settings: the run's, with another task where one was asked for. data, task: of that, labels as the model's."""

    folder: Path
    settings: dict[str, Any]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    data: DataSpec
    task: TaskSpec

    @property
    def limit(self) -> int:
        """Tokens of an input."""
        return min(self.data.max_length, self.tokenizer.model_max_length, longest_input(self.model.config))

    @property
    def no_answer_threshold(self) -> float | None:
        """Above which null odds a question is left unanswered, as the run's validation data chose."""
        found = read_metrics(self.folder).get("val", {}).get("no_answer_threshold")
        return None if found is None else float(found)


def open_run(
    folder: Path, *, task: Mapping[str, Any] | None = None, data: Mapping[str, object] | None = None
) -> Finished:
    """The run in `folder`; `task`: another task's config group, `data`: overrides of keys of the run's data group.

    Raises UserError for a folder that is no finished run, and for a task with other labels than the model's.
    """
    settings = read_config(folder)
    trained = str(settings["task"].get("name"))
    kind = settings["task"].get("kind")
    if task is not None:
        settings["task"] = dict(task)
        settings["data"].update(dict.fromkeys(OF_ONE_TASK))
    settings["data"].update(data or {})
    spec = DataSpec.from_config(settings["task"], settings["data"])
    if spec.kind != kind:
        raise UserError(f"task={spec.task} is a {spec.kind}, and the model of {folder} learned a {kind} ({trained})")
    set_kernel(settings["attn"]["kernel"])
    model = load(folder)
    labels = label_names(model) if spec.kind in ("classification", "multilabel") else ()
    if spec.labels is not None and set(spec.labels) != set(labels):
        raise UserError(
            f"task={spec.task} has the labels {', '.join(spec.labels)}, and the model of {folder}, trained on "
            f"task={trained}, knows {', '.join(labels)}: choose a task with the same labels"
        )
    if labels and spec.labels != labels:
        spec = replace(in_head_order(spec, model.config), labels=labels)
    return Finished(
        folder=folder,
        settings=settings,
        model=model,
        tokenizer=load_tokenizer(str(folder / "model")),
        data=spec,
        task=TaskSpec.from_config(settings["task"], labels),
    )
