"""The contract between packer and trainer: what is on disk, as types. Imports nothing else of preshard."""
