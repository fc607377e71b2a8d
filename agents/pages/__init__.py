"""Pages of models and agents."""
