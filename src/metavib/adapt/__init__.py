"""How a trained model is used: adapt to a task, learn on, predict, keep what was learned in a file."""
