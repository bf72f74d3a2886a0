"""The page that --help prints."""

import textwrap

from attnlab.cli.choices import conf_dir, group_choices

QUESTIONS = {
    "task": "what is predicted",
    "model": "which encoder; any other: model.name=<Hub id or folder>",
    "attn": "which attention",
    "sparsity": "how sparse, as a density to be reached",
    "mask": "which pairs may be attended to at all",
    "optim": "which optimiser",
    "trainer": "how long, where, how precisely",
    "strategy": "one process or several",
    "logger": "where the curves go",
    "experiment": "a whole setting out of a paper",
    "sweep": "several runs, with -m",
}

KEYS = """\
  attn.layers=[8,9,10,11]      sparse in these layers only, the rest is softmax
  attn.alpha attn.lam attn.k attn.p ...
                               the attention's own dial
  sparsity.density=0.1         turn that dial until so many pairs are kept
  mask.target_density=0.2      with mask=dam: so many pairs are kept at the end
  mask.path=FOLDER             with mask=file: a mask that was exported
  optim.lr optim.layer_decay optim.weight_decay optim.warmup_ratio
  trainer.max_epochs=3         length of the training
  trainer.fast=true            a few steps only, to see that everything runs
  trainer.precision=auto       auto | 32 | bf16 | 16
  trainer.devices=2            with strategy=ddp
  trainer.patience=3           stop when the metric has not risen three times
  data.root=FOLDER             where the datasets are (or set ATTNLAB_DATA)
  data.source=auto             auto | local | hub
  data.train data.val data.test data.text data.text_pair data.label
                               your own files and columns, with task=custom
  data.batch_size data.max_length data.limit
  seed=1                       same seed, same CPU run to the last bit
  resume=auto | FOLDER         go on where a run was stopped
"""

EXAMPLES = """\
  python train.py
  python train.py task=sst2 attn=sparsemax
  python train.py task=cola model=bert_base attn=entmax15 optim.lr=3e-5
  python train.py -m task=sst2,mrpc attn=softmax,sparsegen seed=1,2,3
  python train.py -m task=sst2 attn=entmax,topk sparsity.density=0.5,0.1
  python train.py task=custom data.train=my.csv data.val=dev.csv \\
      data.text=review data.label=stars
  attnlab evaluate run=outputs/sst2/sparsemax/2026-01-31_10-00-00_s1
  attnlab predict run=FOLDER input=new.jsonl output=predictions.jsonl
  attnlab submission runs=outputs
  attnlab export run=FOLDER what=mask
"""


def help_page() -> str:
    return "\n".join(
        [
            "attnlab: fine-tune BERT-like encoders with sparse attention.\n",
            "usage: python train.py [-m] [group=choice ...] [key=value ...]",
            "       attnlab train | evaluate | predict | submission | export | bench   (the",
            "       default is train; attnlab COMMAND --help says more)\n",
            "Groups and their choices (the files in conf/):",
            _groups(),
            "Keys that are used most (all of them: --cfg job):",
            KEYS,
            "Options:",
            "  -m, --multirun               every combination of comma lists, one run each",
            "  --cfg job                    print the composed config and stop",
            "  --config-dir FOLDER          more YAML files, in folders as in conf/",
            "  --hydra-help                 Hydra's own options\n",
            "Examples:",
            EXAMPLES.rstrip("\n"),
        ]
    )


def _groups() -> str:
    lines = []
    choices = group_choices([conf_dir()])
    for group in sorted(choices, key=lambda name: [*QUESTIONS, name].index(name)):
        lines.append(f"  {group + '=':<12}{QUESTIONS.get(group, '')}")
        names = "  ".join(choices[group])
        lines.append(textwrap.fill(names, 78, initial_indent=" " * 14, subsequent_indent=" " * 14))
    return "\n".join(lines) + "\n"
