"""From a config to a trained model: the loop, checkpoints, protocols, records."""
