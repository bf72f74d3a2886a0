"""What a run says about itself: the closing table, plots, W&B panels and the speed tables."""
