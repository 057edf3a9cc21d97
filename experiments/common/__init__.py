"""What the experiments share: attention by name, models, data, training, timing, results."""
