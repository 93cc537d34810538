"""The processes that read datasets, from inside: forked from one that has imported everything, then asked."""
