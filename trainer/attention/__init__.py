"""Exact attention under the mask of a pack, over the ranks of a context-parallel group."""
