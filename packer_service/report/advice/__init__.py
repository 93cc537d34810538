"""Advice on the split of a pack over ranks to train with: estimated times and memory, with every assumption in it."""
