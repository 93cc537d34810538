"""What several answers are made of, computed from a dataset."""
