"""Parts that several answers share, computed from a dataset."""
