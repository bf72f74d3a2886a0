"""Table 4: every transform by itself: time against softmax and the entmax package, support, error, laws, memory.

The transforms are called as a user calls them, on float32 scores; inside an encoder layer compiled as a whole they are
part of its code and cost less (table `steps`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.attention import AttentionSpec
from attnlab.errors import UserError
from attnlab.report.bench.laws import LAWS, laws_kept, mean_support, memory_held, worst_errors
from attnlab.report.bench.models import device
from attnlab.report.bench.options import BenchOptions
from attnlab.report.bench.oracles import ORACLES
from attnlab.report.bench.page import Result, Target
from attnlab.report.bench.timing import paired_ratio, take_turns
from attnlab.training.speed import keep_freed_memory
from attnlab.transforms import TRANSFORMS, build_transform
from attnlab.transforms.entmax import entmax
from attnlab.transforms.kernel import use_kernel

HEADS = 12
SHAPES = ((32, HEADS, 128, 128), (8, HEADS, 512, 512))
QUICK_SHAPES = ((8, HEADS, 128, 128), (1, HEADS, 512, 512))
ROUNDS, QUICK_ROUNDS, WARM_UP = 15, 5, 3
PACKAGE_ROUNDS = 3
ROWS, QUICK_ROWS = 20, 4
MOST_OF_SOFTMAX = {"sparsemax": 2.0, "entmax15": 2.0, "entmax learned": 4.0}
LEAST_OF_PACKAGE = {"sparsemax": 10.0, "entmax15": 10.0, "entmax learned": 20.0}
MOST_HELD = {"sparsemax": 1.0, "entmax15": 1.0, "entmax": 1.0}
SHORT = {"permutation": "perm"}

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: a transform of the catalogue with its default dials, and what is changed in them."""

    label: str
    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> AttentionSpec:
        parameters = inspect.signature(TRANSFORMS[self.name]).parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        return AttentionSpec(name=self.name, dials={**defaults, **self.changes})

    def build(self, where: torch.device) -> nn.Module:
        return build_transform(self.name, num_heads=HEADS, head_dim=32, **self.spec.dials).to(where)


def cases() -> list[Case]:
    """All transforms, and entmax with an alpha learned for each head."""
    learned = Case(label="entmax learned", name="entmax", changes={"learn_alpha": "head"})
    rows = [Case(label=name, name=name) for name in TRANSFORMS]
    return [one for row in rows for one in ([row, learned] if row.name == "entmax" else [row])]


def measure(options: BenchOptions, chosen: Sequence[Case] | None = None) -> Result:
    """Ratios (median within the rounds) and what `laws` measures, for each case; all of them by default."""
    shapes = QUICK_SHAPES if options.quick else SHAPES
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    package_rounds = min(rounds, 1 if options.quick else PACKAGE_ROUNDS)
    where = device()
    keep_freed_memory()
    rows, targets = [], []
    numbers: dict[str, Any] = {}
    with use_kernel("auto" if options.compile else "eager"):
        for case in chosen or cases():
            transform = case.build(where)
            speeds = {str(shape[-1]): _speed(case, transform, shape, rounds, package_rounds) for shape in shapes}
            found = {**_properties(case, transform, QUICK_ROWS if options.quick else ROWS), "speed": speeds}
            numbers[case.label] = found
            rows.append(_row(case, found))
            targets += _targets(case, found)
    return Result(
        name="transforms",
        title=f"Transforms, forward and backward of float32 scores {' and '.join(map(str, shapes))}",
        columns=(
            "transform",
            *(f"soft-\nmax\n{shape[-1]}" for shape in shapes),
            *(f"ent-\nmax\n{shape[-1]}" for shape in shapes),
            "keys",
            "worst\nerror",
            "held",
            "laws",
        ),
        rows=rows,
        targets=targets,
        notes=(
            f"median of {rounds} rounds in turns with torch.softmax, {package_rounds} with the entmax package",
            "softmax: ours / torch.softmax; entmax: entmax package / ours; number: keys a query",
            "keys: with p > 0, of 128 scores from N(0, 2^2); worst error: against float64, twelve kinds of rows",
            "held: memory kept for the backward, in sizes of the probabilities",
            "laws: rows sum to 1, shift, permutation, order, sparse; - where broken",
        ),
        numbers=numbers,
    )


def _row(case: Case, found: Mapping[str, Any]) -> list[str]:
    speeds = found["speed"].values()
    names = {law: SHORT.get(law, law) for law in LAWS}
    kept = " ".join(f"{name if law in found['laws'] else '-':<{len(name)}}" for law, name in names.items())
    return [
        case.label,
        *(f"{speed['ours/softmax']:.2f}" for speed in speeds),
        *(f"{speed['package/ours']:.1f}" if "package/ours" in speed else "" for speed in speeds),
        f"{found['support']:.1f}",
        f"{max(found['errors'].values()):.0e}",
        f"{found['held']:.2f}",
        kept,
    ]


def _targets(case: Case, found: Mapping[str, Any]) -> list[Target]:
    targets = []
    for length, speed in found["speed"].items():
        for key, name, bounds, at_most in (
            ("ours/softmax", f"{case.label} / softmax at {length}", MOST_OF_SOFTMAX, True),
            ("package/ours", f"entmax package / {case.label} at {length}", LEAST_OF_PACKAGE, False),
        ):
            if case.label in bounds and key in speed:
                targets.append(Target(name=name, ratio=speed[key], bound=bounds[case.label], at_most=at_most))
    if case.label in MOST_HELD:
        bound = MOST_HELD[case.label]
        targets.append(Target(name=f"memory of {case.label}", ratio=found["held"], bound=bound, at_most=True))
    return targets


def _properties(case: Case, transform: nn.Module, rows: int) -> dict[str, Any]:
    where = device()
    # A learned dial starts where it was given.
    dials = case.spec.dials
    return {
        "support": mean_support(transform, HEADS, where),
        "errors": worst_errors(transform, lambda scores: ORACLES[case.name](scores, **dials), HEADS, rows, where),
        "laws": [law for law in LAWS if law in laws_kept(transform, HEADS, where)],
        "held": memory_held(transform, HEADS, where),
    }


def _speed(
    case: Case, transform: nn.Module, shape: tuple[int, ...], rounds: int, package_rounds: int
) -> dict[str, Any]:
    ours = _forward_and_backward(_ours(case, transform), shape)
    softmax = _forward_and_backward(lambda scores: torch.softmax(scores, -1), shape)
    seconds = take_turns({"softmax": softmax, "ours": ours}, rounds=rounds, warm_up=WARM_UP)
    found = {
        "ours/softmax": paired_ratio(seconds["ours"], seconds["softmax"]),
        "softmax ms": median(seconds["softmax"]) * 1000,
        "ours ms": median(seconds["ours"]) * 1000,
    }
    package = _package(case)
    if package is not None:
        theirs = _forward_and_backward(package, shape)
        seconds = take_turns({"ours": ours, "package": theirs}, rounds=package_rounds, warm_up=0)
        found["package/ours"] = paired_ratio(seconds["package"], seconds["ours"])
        found["package ms"] = median(seconds["package"]) * 1000
    return found


def _forward_and_backward(function: Function, shape: tuple[int, ...]) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(shape, generator=generator).to(device()).requires_grad_()
    upstream = torch.randn(shape, generator=generator).to(device())

    def run() -> None:
        function(scores).backward(upstream)
        scores.grad = None
        if scores.is_cuda:
            torch.cuda.synchronize()

    return run


def _learned_alphas() -> Tensor:
    """1.2 to 1.8, one a head, as after some training: 1.5 in all heads would be a faster kernel of its own."""
    return torch.linspace(1.2, 1.8, HEADS, device=device()).view(HEADS, 1, 1).requires_grad_()


def _ours(case: Case, transform: nn.Module) -> Function:
    if case.label != "entmax learned":
        return transform
    alpha = _learned_alphas()
    return lambda scores: entmax(scores, alpha=alpha)


def _package(case: Case) -> Function | None:
    """The entmax package's transform with the same dials, where it has one."""
    try:
        import entmax as package
    except ImportError as error:
        raise UserError("the comparison needs the entmax package: pip install 'attnlab[dev]'") from error
    dials = case.spec.dials
    if case.label == "entmax learned":
        alpha = _learned_alphas()
        return lambda scores: package.entmax_bisect(scores, alpha, dim=-1)
    functions: dict[str, Function] = {
        "sparsemax": lambda scores: package.sparsemax(scores, dim=-1),
        "entmax15": lambda scores: package.entmax15(scores, dim=-1),
        "entmax": lambda scores: package.entmax_bisect(scores, dials["alpha"], dim=-1),
        "normmax": lambda scores: package.normmax_bisect(scores, dials["alpha"], dim=-1),
        "budget": lambda scores: package.budget_bisect(scores, dials["budget"], dim=-1),
    }
    return functions.get(case.name)
