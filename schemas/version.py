"""The version of preshard. Part of what decides a dataset's bytes."""

VERSION = "0.3.0"
