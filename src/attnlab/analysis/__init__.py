"""What a trained model's attention does."""
