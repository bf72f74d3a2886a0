"""`python train.py task=sst2 attn=sparsemax`, the same as `attnlab train ...`."""

from attnlab.cli import main

if __name__ == "__main__":
    main()
